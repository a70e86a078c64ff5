#include "test/unit/cuda/EmulatedStreams.h"

#include <chrono>
#include <thread>

namespace merak::cuda {

EmulatedStreams::EmulatedStreams(uint64_t seed)
    : draw_(seed), pulls_(seed % 2 == 0) {
  const uint64_t rates[] = {16, 128, uint64_t{1} << 40};
  changes_ = rates[draw_() % 3];
  patient_ = oneIn(2);
}

void EmulatedStreams::letOthersAsk() const {
  uint64_t seen = patient_ ? ~asked_ : asked_.load();
  while (seen != asked_) {
    seen = asked_;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

EmulatedStreams::Queue &EmulatedStreams::queue(Stream stream) {
  auto [found, isNew] = queues_.try_emplace(stream);
  if (isNew)
    found->second.eager = oneIn(2);
  return found->second;
}

bool EmulatedStreams::ready(const Queue &queue) {
  return !queue.items.empty() &&
         (!queue.items.front().after || queue.items.front().after->passed) &&
         queue.items.front().work.isReady();
}

void EmulatedStreams::push(Stream stream, Item item) {
  Queue &own = queue(stream);
  own.items.push_back(std::move(item));
  ++asked_;
  if (oneIn(changes_))
    own.eager = !own.eager;
  stir();
}

void EmulatedStreams::runHead(Queue &queue) {
  Item item = std::move(queue.items.front());
  queue.items.pop_front();
  if (!item.work.run)
    return;
  Status status = item.work.run();
  if (failure_.ok())
    failure_ = std::move(status);
}

void EmulatedStreams::stir() {
  do {
    while (true) {
      std::vector<Queue *> may;
      for (auto &[stream, queue] : queues_)
        if (queue.eager && ready(queue))
          may.push_back(&queue);
      if (may.empty())
        break;
      runHead(*may[draw_() % may.size()]);
    }
  } while (pulls_ && pull());
}

bool EmulatedStreams::pull() {
  std::vector<Queue *> waiting;
  for (auto &[stream, queue] : queues_)
    if (queue.eager && !queue.items.empty() && queue.items.front().after)
      waiting.push_back(&queue);
  if (waiting.empty())
    return false;
  const std::shared_ptr<Mark> after =
      waiting[draw_() % waiting.size()]->items.front().after;
  return force(after->stream, after.get(), false);
}

void EmulatedStreams::waitForOthers() {
  for (auto &[stream, queue] : queues_)
    if (ready(queue))
      return runHead(queue);
  mutex_.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  mutex_.lock();
}

void EmulatedStreams::advance() {
  std::lock_guard lock(mutex_);
  waitForOthers();
}

bool EmulatedStreams::force(Stream stream, const Mark *until, bool waits) {
  Queue &own = queue(stream);
  while (until ? !until->passed : !own.items.empty()) {
    if (ready(own)) {
      runHead(own);
      continue;
    }
    const std::shared_ptr<Mark> after = own.items.front().after;
    // A record precedes its waits, so that this comes to an end.
    if (after && !after->passed) {
      if (!force(after->stream, after.get(), waits))
        return false;
    } else if (waits) {
      waitForOthers();
    } else {
      return false;
    }
  }
  return true;
}

Status EmulatedStreams::enqueue(Stream stream, EmulatedWork work) {
  std::lock_guard lock(mutex_);
  push(stream, {std::move(work), nullptr});
  return failure_;
}

Status EmulatedStreams::record(Event event, Stream stream,
                               std::function<void()> passed) {
  std::lock_guard lock(mutex_);
  auto mark = std::make_shared<Mark>();
  mark->stream = stream;
  events_[event] = mark;
  push(stream, {[mark, passed = std::move(passed)] {
                  mark->passed = true;
                  passed();
                  return Status();
                },
                nullptr});
  return failure_;
}

Status EmulatedStreams::wait(Stream stream, Event event) {
  std::lock_guard lock(mutex_);
  if (auto found = events_.find(event); found != events_.end())
    push(stream, {EmulatedWork(), found->second});
  return failure_;
}

Status EmulatedStreams::synchronize(Stream stream) {
  letOthersAsk();
  std::lock_guard lock(mutex_);
  force(stream, nullptr);
  stir();
  return failure_;
}

Status EmulatedStreams::synchronizeEvent(Event event) {
  std::lock_guard lock(mutex_);
  if (auto found = events_.find(event); found != events_.end()) {
    const std::shared_ptr<Mark> mark = found->second;
    force(mark->stream, mark.get());
    stir();
  }
  return failure_;
}

void EmulatedStreams::drain() {
  std::lock_guard lock(mutex_);
  std::vector<Stream> all;
  for (const auto &[stream, queue] : queues_)
    all.push_back(stream);
  for (Stream stream : all)
    force(stream, nullptr);
}

void EmulatedStreams::forget(Event event) {
  std::lock_guard lock(mutex_);
  events_.erase(event);
}

void EmulatedStreams::destroy(Stream stream) {
  std::lock_guard lock(mutex_);
  force(stream, nullptr);
  queues_.erase(stream);
}

} // namespace merak::cuda
