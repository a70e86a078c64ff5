// Ends a run, or saves, after a step that all processes have done, although a
// signal reaches them at different times, or one of them only.
//
// The process that is asked tells all others: a round begins. From then on
// nobody begins a step, everybody tells how many it has begun and what it was
// asked itself, and the round ends after the largest of these numbers: whoever
// is in that step needs the others to do it too. Then all do what any was
// asked. Without a signal a step costs nothing.
#pragma once

#include "runtime/comm/rendezvous/Store.h"
#include "runtime/launch/Signals.h"

#include <mutex>

namespace merak::runtime {

class StopTogether {
public:
  // Without a store there is one process, which does what it is asked.
  explicit StopTogether(Store *store);
  ~StopTogether();

  struct Turn {
    bool step = true;  // whether to do one more step
    bool save = false; // before it
    int64_t look = 0;  // instead of it: as the wish says
  };
  // Before a step. `wish`: what this process was asked.
  Result<Turn> next(const Wish &wish);
  // Why the run ends early, e.g. "SIGTERM"; empty if it does not.
  std::string cause() const;

private:
  void hear(const std::string &round);
  void join();
  Status decide(std::unique_lock<std::mutex> &lock);

  Store *store_;
  mutable std::mutex mutex_;
  int64_t begun_ = 0; // steps
  // Of rounds: how many are over; whether this process takes part in the next,
  // and whether another one already waits for the one after.
  int64_t round_ = 0;
  bool joined_ = false, awaited_ = false;
  int64_t limit_ = -1; // steps, once it is decided
  Wish mine_, decided_;
};

} // namespace merak::runtime
