#include "runtime/core/ThreadPool.h"

#include <algorithm>

namespace merak::runtime {
namespace {

// About 50 microseconds: longer than the gap between two kernels of a step,
// shorter than what a sleeping core would be missed for.
constexpr int kWorkerSpins = 2000;
constexpr int kCallerSpins = 4000;

bool partsLeft(uint64_t ticket) {
  return ((ticket >> 16) & 0xffff) < (ticket & 0xffff);
}

} // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < std::min(threads, 0xffff); ++i)
    workers_.emplace_back([this] { workerMain(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(sleepMutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread &worker : workers_)
    worker.join();
}

bool ThreadPool::runOnePart() {
  uint64_t ticket = ticket_.load();
  while (partsLeft(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + (uint64_t{1} << 16)))
      continue;
    const int64_t part = static_cast<int64_t>((ticket >> 16) & 0xffff);
    const int64_t begin = part * job_.chunk;
    job_.function(job_.context, begin, std::min(job_.n, begin + job_.chunk));
    pending_.fetch_sub(1);
    return true;
  }
  return false;
}

void ThreadPool::run(int64_t n, int64_t grain, Function function,
                     void *context) {
  if (busy_.test_and_set(std::memory_order_acquire)) {
    function(context, 0, n);
    return;
  }
  grain = std::max<int64_t>(grain, 1);
  int64_t parts = std::min<int64_t>(threads(), (n + grain - 1) / grain);
  const int64_t chunk = (n + parts - 1) / parts;
  parts = (n + chunk - 1) / chunk;
  job_ = {function, context, n, chunk};
  pending_.store(static_cast<int>(parts));
  const uint64_t loop = (ticket_.load() >> 32) + 1;
  ticket_.store(loop << 32 | static_cast<uint64_t>(parts));
  if (sleepers_.load() > 0) {
    { std::lock_guard lock(sleepMutex_); }
    wake_.notify_all();
  }
  while (runOnePart()) {
  }
  for (int spins = 0; pending_.load() > 0; ++spins) {
    if (spins < kCallerSpins)
      cpuRelax();
    else
      std::this_thread::yield();
  }
  busy_.clear(std::memory_order_release);
}

void ThreadPool::workerMain() {
  while (!stop_.load(std::memory_order_relaxed)) {
    bool worked = false;
    for (int spins = 0; spins < kWorkerSpins && !worked; ++spins) {
      worked = runOnePart();
      if (!worked)
        cpuRelax();
    }
    if (worked)
      continue;
    std::unique_lock lock(sleepMutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [this] { return stop_ || partsLeft(ticket_.load()); });
    sleepers_.fetch_sub(1);
  }
}

} // namespace merak::runtime
