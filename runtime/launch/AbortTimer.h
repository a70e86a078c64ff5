// Ends a process whose run was aborted but that does not come to its end, for
// instance because a kernel takes long: nobody shall wait for it.
#pragma once

#include "runtime/comm/rendezvous/Store.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace merak::runtime {

class AbortTimer {
public:
  // `seconds`: from the abort until the process is ended with exit code 1.
  AbortTimer(const Store &store, double seconds);
  ~AbortTimer();

private:
  void main();

  const Store &store_;
  double seconds_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace merak::runtime
