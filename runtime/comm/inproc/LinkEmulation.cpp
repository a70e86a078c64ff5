#include "runtime/comm/inproc/LinkEmulation.h"

#include "runtime/core/PromptThread.h"
#include "runtime/core/ThreadPool.h"

#include <chrono>
#include <sys/prctl.h>
#include <thread>

namespace merak::runtime {
namespace {

class SteadyLinkClock : public LinkClock {
public:
  double now() override { return seconds(Clock::now().time_since_epoch()); }

  void sleepUntil(double time, const std::atomic<bool> &abort) override {
    // The kernel may delay wake-ups by 50 us otherwise, as long as a small
    // transfer takes.
    thread_local const int kPrecise = prctl(PR_SET_TIMERSLACK, 1000UL);
    (void)kPrecise;
    while (!abort.load()) {
      const double left = time - now();
      if (left <= 0)
        return;
      // Waking up takes about as long as a small transfer: not for the last
      // moments, in which only the core is offered to others. Brief threads
      // keep it, for a shorter moment: others would not soon give it back.
      const double last = wakesPromptly() ? kLastMoments / 2 : kLastMoments;
      if (left > last)
        std::this_thread::sleep_for(std::chrono::duration<double>(
            std::min(left - last, kLongestSleep)));
      else if (wakesPromptly())
        cpuRelax();
      else
        std::this_thread::yield();
    }
  }

private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kLongestSleep = 0.05; // then looks at `abort`
  static constexpr double kLastMoments = 1e-4;
  static double seconds(Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  }
};

} // namespace

std::unique_ptr<LinkClock> steadyLinkClock() {
  return std::make_unique<SteadyLinkClock>();
}

LinkEmulation::LinkEmulation(const Links &links, int ranks,
                             std::unique_ptr<LinkClock> clock)
    : clock_(std::move(clock)), use_(links, ranks) {}

double LinkEmulation::collective(const CommSpec &spec, double bytes, bool last,
                                 double ready) {
  CollectiveCost cost =
      collectiveCost(commKindName(spec.kind), bytes,
                     static_cast<int>(spec.members.size()), use_.direct());
  if (!last)
    cost.rounds = 0;
  std::lock_guard lock(mutex_);
  return use_.collective(spec.members, cost, ready).end;
}

double LinkEmulation::transfer(int from, int to, double bytes, double ready) {
  std::lock_guard lock(mutex_);
  return use_.transfer(from, to, bytes, ready).end;
}

} // namespace merak::runtime
