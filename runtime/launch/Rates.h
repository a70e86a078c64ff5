// The rates of a run's devices while it trains (runtime/rates): gathered from
// all processes after steps that were measured, for the log and for people.
#pragma once

#include "runtime/comm/rendezvous/Store.h"
#include "runtime/launch/Session.h"
#include "runtime/rates/RateBook.h"

#include <deque>
#include <map>

namespace merak::runtime {

// What the instructions of each rank should take in a step, by class of kernel.
using ExpectedSeconds =
    std::function<Result<std::vector<rates::Seconds>>(const LoadedPlan &plan)>;

// By rank.
std::vector<int> devicesOf(const planpb::PlanFile &plan);

class RateKeeper {
public:
  // Without `expected`, or where it fails, all ranks are expected to take what
  // they take at first; `store`: of other processes. `before`: what is known of
  // all devices, of which the plan may leave some out; none: a device a rank.
  // `idle`: the rate of one that is left out, after a step.
  using IdleRate = std::function<double(int device, int64_t step)>;
  RateKeeper(const LoadedPlan &plan, const ExpectedSeconds &expected,
             Store *store, const rates::Known &before = {},
             IdleRate idle = nullptr);

  // Of a step that was measured, by all processes: fills its rates. Returns
  // what the user should know.
  Result<std::vector<std::string>> add(StepResult &step);
  // Of all devices.
  rates::Known known() const;

private:
  const char *what() const;
  void lookAtIdle(int64_t step, std::vector<std::string> &news);

  Store *store_;
  std::vector<int> devices_; // by rank
  rates::Known before_;      // of all devices, by number
  std::vector<int> idle_;    // devices
  IdleRate idleRate_;
  std::map<int, std::deque<double>> idleRates_; // the last ones
  rates::RateBook book_;
  std::vector<rates::Seconds> expected_; // by rank
};

} // namespace merak::runtime
