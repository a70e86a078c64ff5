#include "test/unit/cuda/EmulatedGraph.h"

namespace merak::cuda {

namespace {

using Ready = std::set<size_t>;
// The entries of one launch, in an order that `pick` chooses among those that
// may come next.
class Launch {
public:
  using Pick = std::function<Ready::iterator(Ready &)>;
  Launch(std::vector<EmulatedGraph::Entry> entries, Pick pick)
      : entries_(std::move(entries)), pick_(std::move(pick)),
        open_(entries_.size()), before_(entries_.size()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      open_[i] = entries_[i].after.size();
      for (size_t other : entries_[i].after)
        before_[other].push_back(i);
      if (open_[i] == 0)
        ready_.insert(i);
    }
  }
  // As far as it gets without other processes; whether that is the end.
  bool advance() {
    for (Ready asked; status_.ok() && !ready_.empty();) {
      const size_t i = *pick_(ready_);
      ready_.erase(i);
      if (!entries_[i].work.isReady()) {
        asked.insert(i);
        if (!ready_.empty())
          continue;
        ready_ = std::move(asked);
        return false;
      }
      status_ = entries_[i].work.run();
      ready_.merge(asked);
      for (size_t later : before_[i])
        if (--open_[later] == 0)
          ready_.insert(later);
    }
    return true;
  }
  Status status() const { return status_; }

private:
  const std::vector<EmulatedGraph::Entry> entries_;
  const Pick pick_;
  std::vector<size_t> open_;
  std::vector<std::vector<size_t>> before_;
  Ready ready_;
  Status status_;
};

} // namespace

// What a launch was asked for does not change by later updates.
Status EmulatedGraph::launch(Stream stream) {
  const uint64_t number = launches_++;
  Launch::Pick pick;
  if (seed_ == 0) // of what may come next the first, or the last, in turns
    pick = [number](Ready &ready) {
      return number % 2 == 0 ? std::prev(ready.end()) : ready.begin();
    };
  else
    pick = [draw = std::mt19937_64(seed_ + number)](Ready &ready) mutable {
      return std::next(ready.begin(), int64_t(draw() % ready.size()));
    };
  auto own = std::make_shared<Launch>(entries_, std::move(pick));
  return submit_(stream, {[own] { return own->advance(); },
                          [own] { return own->status(); }});
}

Result<EmulatedGraph::Entry *> EmulatedGraph::entry(Node node,
                                                    const void *kernel) {
  const size_t index = reinterpret_cast<size_t>(node) - 1;
  if (index >= entries_.size() || entries_[index].kernel != kernel)
    return Status::error("updates what is not this kernel");
  return &entries_[index];
}

Status EmulatedGraph::update(Node node, KernelId kernel, Grid grid,
                             const void *args) {
  auto found = entry(node, kernelMark(kernel));
  if (!found)
    return found.status();
  (*found)->work = rework_(kernel, grid, args);
  return {};
}

Status EmulatedGraph::update(Node node, Function function, Grid grid,
                             size_t operands,
                             const std::vector<uint64_t> &words) {
  auto found = entry(node, function);
  if (!found)
    return found.status();
  (*found)->work = reworkFunction_(function, grid, operands, words);
  return {};
}

const void *kernelMark(KernelId kernel) {
  static const char marks[static_cast<int>(KernelId::Count)] = {};
  return &marks[static_cast<int>(kernel)];
}

Status EmulatedCaptures::breaks(Capture &capture, const std::string &why) {
  if (capture.broken.empty())
    capture.broken = why;
  return Status::error(why);
}

Status EmulatedCaptures::begin(Stream stream) {
  std::lock_guard lock(mutex_);
  if (!stream || streams_.count(stream))
    return Status::error("a stream that cannot be captured");
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  streams_[stream] = {capture, {}};
  return {};
}

Result<std::vector<EmulatedGraph::Entry>> EmulatedCaptures::end(Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end() || found->second.capture->origin != stream)
    return Status::error("ends a capture that did not begin");
  const Tail tail = found->second;
  for (auto it = streams_.begin(); it != streams_.end();)
    it =
        it->second.capture == tail.capture ? streams_.erase(it) : std::next(it);
  Capture &capture = *tail.capture;
  if (!capture.broken.empty())
    return Status::error("the capture is broken: " + capture.broken);
  // Every entry must be awaited by the first stream.
  std::vector<bool> joined(capture.entries.size());
  std::vector<size_t> open(tail.entries.begin(), tail.entries.end());
  while (!open.empty()) {
    const size_t i = open.back();
    open.pop_back();
    if (joined[i])
      continue;
    joined[i] = true;
    for (size_t other : capture.entries[i].after)
      open.push_back(other);
  }
  for (bool good : joined)
    if (!good)
      return Status::error("a captured stream was not joined");
  return std::move(capture.entries);
}

Result<bool> EmulatedCaptures::take(Stream stream, const EmulatedWork &work,
                                    const void *kernel, size_t most) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end())
    return false;
  Tail &tail = found->second;
  Capture &capture = *tail.capture;
  if (!capture.broken.empty())
    return Status::error("the capture is broken: " + capture.broken);
  if (capture.entries.size() >= most)
    return breaks(capture, "an operation that cannot be captured");
  capture.entries.push_back(
      {work, kernel, {tail.entries.begin(), tail.entries.end()}});
  tail.entries = {capture.entries.size() - 1};
  return true;
}

Status EmulatedCaptures::record(Event event, Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) {
    events_.erase(event);
    recorded_.insert(event);
    return {};
  }
  recorded_.erase(event);
  events_[event] = found->second;
  return {};
}

Status EmulatedCaptures::wait(Stream stream, Event event) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  auto captured = events_.find(event);
  if (captured == events_.end()) {
    if (!recorded_.count(event))
      return Status::error("waits for an event that was not recorded");
    return found == streams_.end()
               ? Status()
               : breaks(*found->second.capture,
                        "a captured stream waits for an event from outside");
  }
  const Tail &tail = captured->second;
  const bool goesOn = streams_.count(tail.capture->origin) &&
                      streams_[tail.capture->origin].capture == tail.capture;
  if (!goesOn)
    return Status::error("waits for an event of a capture that has ended");
  if (found == streams_.end()) {
    streams_[stream] = tail;
    return {};
  }
  if (found->second.capture != tail.capture)
    return breaks(*found->second.capture, "waits for another capture");
  found->second.entries.insert(tail.entries.begin(), tail.entries.end());
  return {};
}

Status EmulatedCaptures::hostWaits(Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  return found == streams_.end()
             ? Status()
             : breaks(*found->second.capture,
                      "the host waits for a captured stream");
}

Status EmulatedCaptures::hostWaitsFor(Event event) {
  std::lock_guard lock(mutex_);
  auto captured = events_.find(event);
  if (captured != events_.end())
    return breaks(*captured->second.capture,
                  "the host waits for a captured event");
  return recorded_.count(event)
             ? Status()
             : Status::error("waits for an event that was not recorded");
}

Status EmulatedCaptures::allocates() {
  std::lock_guard lock(mutex_);
  return streams_.empty() ? Status()
                          : breaks(*streams_.begin()->second.capture,
                                   "memory is taken during a capture");
}

bool EmulatedCaptures::captures(Stream stream) {
  std::lock_guard lock(mutex_);
  return streams_.count(stream) > 0;
}

Result<Node> EmulatedCaptures::last(Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end() || found->second.entries.size() != 1)
    return Status::error("the stream captures no kernel");
  return reinterpret_cast<Node>(*found->second.entries.begin() + 1);
}

void EmulatedCaptures::forget(Event event) {
  std::lock_guard lock(mutex_);
  events_.erase(event);
  recorded_.erase(event);
}

} // namespace merak::cuda
