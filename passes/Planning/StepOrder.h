// The steps of all stages of a schedule, one behind the other so that none
// waits for a later one. When a step runs depends on times, that order does
// not: each stage runs its list in order, and each link its messages. So it is
// found once, and each simulation is one pass over it.
#pragma once

#include "passes/Planning/ScheduleSimulate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace merak::planning {

class StepOrder {
public:
  StepOrder() = default; // of no steps
  // `transfers`: what stages wait for; empty: their neighbours. They wait for
  // `sums` besides. The schedule is not kept.
  explicit StepOrder(const Schedule &schedule,
                     std::vector<Transfer> transfers = {},
                     const std::vector<Transfer> &sums = {});

  struct Ran {
    uint32_t work, microbatch;
  };
  // An action of a part of the model; an R that waits for the gradient is
  // another one than an R that does not.
  struct Work {
    int stage = 0, virtualStage = 0;
    Action action = Action::F;
    uint32_t ins = 0, endOfIns = 0, outs = 0, endOfOuts = 0;
  };
  struct Out {
    size_t arrivals, link; // of its first microbatch; the two stages
    uint32_t transfer;
  };

  // All steps are there; else some wait for each other without end.
  bool finished() const { return isFinished; }
  const Work &workOf(const Ran &step) const { return works[step.work]; }
  // What a step sends.
  template <typename Take> void forOuts(const Work &work, Take take) const {
    for (uint32_t i = work.outs; i < work.endOfOuts; ++i)
      take(outs[i]);
  }

  // Seconds and bytes of transfers, and seconds of actions.
  struct Costs {
    std::vector<double> works, transfers, bytes;
  };
  Costs costsOf(const SimulateOptions &options) const;

  // Calls ran(step, start, end) for each; `clock`: from when on each stage is
  // free.
  template <typename Call>
  void run(const Costs &costs, std::vector<double> clock, Call ran) const;

  // As simulate() finds them, with these transfers.
  struct Time {
    double total = 0;
    std::vector<double> busy; // per stage
  };
  Time timeOf(const SimulateOptions &options) const;

private:
  // When something arrives that nobody sends.
  static constexpr double kAbsent = -2;

  void addWorks(const std::vector<Transfer> &transfers);
  void place(const Schedule &schedule);
  uint32_t workAt(int virtualStage, Action action, bool late) const {
    return uint32_t(virtualStage) * (kActions + 1) +
           uint32_t(late ? kActions : int(action));
  }

  int stages = 0, virtualStages = 0;
  size_t microbatches = 0;
  bool isFinished = true;
  std::vector<Transfer> transfers; // those of neighbours first, then sums
  std::vector<Work> works;
  std::vector<size_t> ins; // arrivals of the first microbatch
  std::vector<Out> outs;
  std::vector<Ran> steps;
};

template <typename Call>
void StepOrder::run(const Costs &costs, std::vector<double> clock,
                    Call ran) const {
  std::vector<double> arrivals(transfers.size() * microbatches, kAbsent);
  std::vector<double> links(size_t(stages) * stages, 0); // when free again
  for (const Ran &step : steps) {
    const Work &work = works[step.work];
    double start = clock[work.stage];
    for (uint32_t i = work.ins; i < work.endOfIns; ++i)
      start = std::max(start, arrivals[ins[i] + step.microbatch]);
    const double end = start + costs.works[step.work];
    clock[work.stage] = end;
    for (uint32_t i = work.outs; i < work.endOfOuts; ++i) {
      const Out &out = outs[i];
      double &link = links[out.link];
      link = std::max(link, end) + costs.transfers[out.transfer];
      arrivals[out.arrivals + step.microbatch] = link;
    }
    ran(step, start, end);
  }
}

// A schedule that many simulations run. The order is found by the first.
struct OrderedSchedule : Schedule {
  explicit OrderedSchedule(Schedule schedule) : Schedule(std::move(schedule)) {}
  // As simulate() finds it.
  StepOrder::Time timeOf(const SimulateOptions &options) const {
    if (options.transfers.empty() && options.weightSums.empty()) {
      std::call_once(ordered, [this] { steps = StepOrder(*this); });
      return steps.timeOf(options);
    }
    return StepOrder(*this, options.transfers, options.weightSums)
        .timeOf(options);
  }

private:
  mutable std::once_flag ordered;
  mutable StepOrder steps; // where stages wait for their neighbours alone
};

} // namespace merak::planning
