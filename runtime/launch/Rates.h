// The rates of a run's devices while it trains (runtime/rates): gathered from
// all processes after steps that were measured, for the log and for people.
#pragma once

#include "runtime/comm/rendezvous/Store.h"
#include "runtime/launch/Session.h"
#include "runtime/rates/RateBook.h"

namespace merak::runtime {

// What the instructions of each rank should take in a step, by class of kernel.
using ExpectedSeconds =
    std::function<Result<std::vector<rates::Seconds>>(const LoadedPlan &plan)>;

class RateKeeper {
public:
  // Without `expected`, or where it fails, all ranks are expected to take what
  // they take at first; `store`: of other processes.
  RateKeeper(const LoadedPlan &plan, const ExpectedSeconds &expected,
             Store *store);

  // Of a step that was measured, by all processes: fills its rates. Returns
  // what the user should know.
  Result<std::vector<std::string>> add(StepResult &step);

private:
  Store *store_;
  rates::RateBook book_;
  std::vector<rates::Seconds> expected_; // by rank
};

// For people, what the log of a run says of it by now: its last step, and each
// rank's rate. Errors: not a log, or one without rates.
Result<std::string> statusOf(const std::string &logPath);

} // namespace merak::runtime
