// Ends a run after a step that all processes have done, although a signal
// reaches them at different times, or one of them only.
//
// The process that is asked tells all others. From then on nobody begins a
// step, everybody tells how many it has begun, and the run ends after the
// largest of these numbers: whoever is in that step needs the others to do it
// too. Without a signal a step costs nothing.
#pragma once

#include "runtime/comm/rendezvous/Store.h"

#include <mutex>

namespace merak::runtime {

class StopTogether {
public:
  // Without a store there is one process, which stops when it is asked.
  explicit StopTogether(Store *store);
  ~StopTogether();

  // Whether to do one more step. `signal`: that this process got, or 0.
  Result<bool> mayBegin(int signal);
  // Why the run ends early, e.g. "SIGTERM"; empty if it does not.
  std::string cause() const;

private:
  void ask(const std::string &cause);

  Store *store_;
  mutable std::mutex mutex_;
  std::string cause_; // not empty: no step begins without the decision
  int64_t begun_ = 0, limit_ = -1;
};

} // namespace merak::runtime
