#include "runtime/data/ReadAhead.h"

#include "runtime/core/DType.h"

#include <algorithm>

namespace merak::runtime {

namespace {

bool sameBoxes(const std::vector<layout::Box> &a,
               const std::vector<layout::Box> &b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const layout::Box &x, const layout::Box &y) {
                      return x.globalOrigin == y.globalOrigin &&
                             x.localOrigin == y.localOrigin &&
                             x.extent == y.extent;
                    });
}

// More is not kept: inputs of a step are small beside its activations.
constexpr int64_t kMostBytes = int64_t{1} << 30;

} // namespace

ReadAhead::ReadAhead(DataSource &source, const planpb::PlanFile &plan)
    : source_(source), plan_(plan), thread_([this] { work(); }) {}

ReadAhead::~ReadAhead() {
  {
    std::lock_guard<std::mutex> lock(lock_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t ReadAhead::elementSize(const std::string &input) const {
  for (const planpb::Input &proto : plan_.inputs())
    if (proto.name() == input)
      return dtypeSize(proto.dtype());
  return 0;
}

Status ReadAhead::read(const std::string &input, int64_t step,
                       const std::vector<layout::Box> &boxes, void *data,
                       const std::vector<int64_t> &shape) {
  std::shared_ptr<Request> ready = take(input, step, boxes, shape);
  const int64_t size = elementSize(input);
  if (!ready)
    MERAK_RETURN_IF_ERROR(source_.read(input, step, boxes, data, shape));
  else
    MERAK_RETURN_IF_ERROR(ready->status);
  if (ready) {
    ++hits_;
    for (const layout::Box &box : boxes)
      layout::copyBox(ready->data.data(), shape, box.localOrigin, data, shape,
                      box.localOrigin, box.extent, size);
  } else {
    int64_t bytes = size;
    for (int64_t n : shape)
      bytes *= n;
    if (bytes > kMostBytes)
      return {};
    ready = std::make_shared<Request>();
    ready->input = input;
    ready->boxes = boxes;
    ready->shape = shape;
    ready->data.resize(static_cast<size_t>(bytes));
  }
  ready->step = step + 1;
  order(std::move(ready));
  return {};
}

// What was read ahead, waited for if it is being read; else nothing.
std::shared_ptr<ReadAhead::Request>
ReadAhead::take(const std::string &input, int64_t step,
                const std::vector<layout::Box> &boxes,
                const std::vector<int64_t> &shape) {
  std::unique_lock<std::mutex> lock(lock_);
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [&](const std::shared_ptr<Request> &request) {
                                    return !request->taken &&
                                           request->step == step &&
                                           request->input == input &&
                                           request->shape == shape &&
                                           sameBoxes(request->boxes, boxes);
                                  });
  if (found == requests_.end())
    return nullptr;
  std::shared_ptr<Request> request = *found;
  if (request->state == Request::Waiting) {
    // Not begun: who needs it reads it, into the same memory.
    request->state = Request::Reading;
    requests_.erase(found);
    lock.unlock();
    request->status =
        source_.read(input, step, boxes, request->data.data(), shape);
    return request;
  }
  request->taken = true;
  changed_.wait(lock, [&] { return request->state == Request::Done; });
  requests_.erase(std::find(requests_.begin(), requests_.end(), request));
  return request;
}

void ReadAhead::order(std::shared_ptr<Request> request) {
  request->state = Request::Waiting;
  request->taken = false;
  {
    std::lock_guard<std::mutex> lock(lock_);
    requests_.push_back(std::move(request));
  }
  changed_.notify_all();
}

void ReadAhead::work() {
  std::unique_lock<std::mutex> lock(lock_);
  while (true) {
    std::shared_ptr<Request> next;
    changed_.wait(lock, [&] {
      for (const std::shared_ptr<Request> &request : requests_)
        if (!next && request->state == Request::Waiting)
          next = request;
      return stop_ || next;
    });
    if (stop_)
      return;
    next->state = Request::Reading;
    lock.unlock();
    Status status = source_.read(next->input, next->step, next->boxes,
                                 next->data.data(), next->shape);
    lock.lock();
    next->status = std::move(status);
    next->state = Request::Done;
    changed_.notify_all();
  }
}

} // namespace merak::runtime
