#include "runtime/launch/AbortTimer.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

namespace merak::runtime {

AbortTimer::AbortTimer(const Store &store, double seconds)
    : store_(store), seconds_(seconds), thread_([this] { main(); }) {}

AbortTimer::~AbortTimer() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void AbortTimer::main() {
  std::unique_lock lock(mutex_);
  while (!stop_ && !store_.aborted())
    wake_.wait_for(lock, std::chrono::milliseconds(200));
  wake_.wait_for(lock, std::chrono::duration<double>(seconds_),
                 [&] { return stop_; });
  if (stop_)
    return;
  const Status reason = store_.abortReason();
  fmt::print(stderr, "merak-run: error: rank {} is busy and is ended: {}\n",
             store_.rank(),
             reason.messages().empty() ? "" : reason.messages().front());
  std::fflush(nullptr);
  std::_Exit(1);
}

} // namespace merak::runtime
