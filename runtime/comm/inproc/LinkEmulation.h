// Makes in-process ranks communicate as slowly as a cluster would: every
// collective and transfer ends no earlier than its links allow. The ranks sleep
// until then, so that computation goes on meanwhile; values do not change.
#pragma once

#include "runtime/comm/Communicator.h"
#include "runtime/plan/Links.h"

#include <mutex>

namespace merak::runtime {

// The time that links live in. Tests give their own.
class LinkClock {
public:
  virtual ~LinkClock() = default;
  virtual double now() = 0; // seconds
  // Returns at `time`, or soon after `abort` is raised.
  virtual void sleepUntil(double time, const std::atomic<bool> &abort) = 0;
};
// The steady clock. Sleeps use no processor time.
std::unique_ptr<LinkClock> steadyLinkClock();

// The links of all ranks of a process. Any thread.
class LinkEmulation {
public:
  LinkEmulation(const Links &links, int ranks,
                std::unique_ptr<LinkClock> clock = steadyLinkClock());

  double now() { return clock_->now(); }
  // When a collective ends that the last member came to at `ready`. `bytes`:
  // the larger of a member's input and output. `last`: of several operands of
  // one instruction, which pay for latency together.
  double collective(const CommSpec &spec, double bytes, bool last,
                    double ready);
  double transfer(int from, int to, double bytes, double ready);
  void sleepUntil(double time, const std::atomic<bool> &abort) {
    clock_->sleepUntil(time, abort);
  }

private:
  std::unique_ptr<LinkClock> clock_;
  std::mutex mutex_;
  LinkUse use_;
};

} // namespace merak::runtime
