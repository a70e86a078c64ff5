// Notices that no rank makes progress any more, says where each waits, and
// stops the run.
#pragma once

#include "runtime/core/Executor.h"

#include <functional>
#include <thread>

namespace merak::runtime {

class Watchdog {
public:
  // `stalled` gets one line for each lane that is busy.
  Watchdog(std::vector<const Executor *> executors, double seconds,
           std::function<void(std::vector<std::string>)> stalled);
  ~Watchdog();

  // Between these a lack of progress counts.
  void stepBegins() { running_ = true; }
  void stepEnds() { running_ = false; }

private:
  void main();

  std::vector<const Executor *> executors_;
  double seconds_;
  std::function<void(std::vector<std::string>)> stalled_;
  std::atomic<bool> running_{false}, stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

} // namespace merak::runtime
