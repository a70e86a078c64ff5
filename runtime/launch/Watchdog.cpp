#include "runtime/launch/Watchdog.h"

#include <algorithm>

namespace merak::runtime {

Watchdog::Watchdog(std::vector<const Executor *> executors, double seconds,
                   std::function<void(std::vector<std::string>)> stalled)
    : executors_(std::move(executors)), seconds_(seconds),
      stalled_(std::move(stalled)), thread_([this] { main(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::main() {
  using Clock = std::chrono::steady_clock;
  const auto period =
      std::chrono::duration<double>(std::clamp(seconds_ / 10, 0.01, 1.0));
  uint64_t last = 0;
  Clock::time_point moved = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, period);
    uint64_t progress = 0;
    for (const Executor *executor : executors_)
      progress += executor->progress();
    if (!running_ || progress != last) {
      last = progress;
      moved = Clock::now();
      continue;
    }
    if (std::chrono::duration<double>(Clock::now() - moved).count() < seconds_)
      continue;
    std::vector<std::string> lines;
    for (const Executor *executor : executors_)
      for (std::string &line : executor->positions())
        lines.push_back(std::move(line));
    stalled_(std::move(lines));
    moved = Clock::now();
  }
}

} // namespace merak::runtime
