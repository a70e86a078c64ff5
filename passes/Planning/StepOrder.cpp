#include "passes/Planning/StepOrder.h"

namespace merak::planning {

namespace {

// Of a message to a microbatch of an action.
enum class Message : char { Absent, Pending, Sent };

} // namespace

StepOrder::StepOrder(const Schedule &schedule, std::vector<Transfer> waited,
                     const std::vector<Transfer> &sums)
    : stages(schedule.stages), virtualStages(schedule.virtualStages()),
      microbatches(size_t(schedule.microbatches)),
      transfers(std::move(waited)) {
  if (transfers.empty())
    transfers = chainTransfers(schedule);
  transfers.insert(transfers.end(), sums.begin(), sums.end());
  addWorks(transfers);
  place(schedule);
}

void StepOrder::addWorks(const std::vector<Transfer> &transfers) {
  works.resize(size_t(virtualStages) * (kActions + 1));
  for (int v = 0; v < virtualStages; ++v)
    for (int i = 0; i <= kActions; ++i) {
      const Action action = i < kActions ? Action(i) : Action::R;
      works[size_t(v) * (kActions + 1) + size_t(i)] = {v % stages, v, action};
    }
  const auto from = [&](const Transfer &x) -> Work & {
    return works[workAt(x.fromChunk * stages + x.fromStage, x.fromAction,
                        false)];
  };
  // An R that is not early waits for the gradient too.
  const auto forReceivers = [&](const Transfer &x, auto take) {
    const int v = x.toChunk * stages + x.toStage;
    take(works[workAt(v, x.toAction, false)]);
    if (x.toAction == Action::R || x.toAction == Action::B)
      take(works[workAt(v, Action::R, true)]);
  };
  // First how many each has, then where they begin, then what they are.
  for (const Transfer &x : transfers) {
    ++from(x).endOfOuts;
    forReceivers(x, [](Work &to) { ++to.endOfIns; });
  }
  uint32_t in = 0, out = 0;
  for (Work &work : works) {
    const uint32_t ownIns = work.endOfIns, ownOuts = work.endOfOuts;
    work.ins = work.endOfIns = in;
    work.outs = work.endOfOuts = out;
    in += ownIns;
    out += ownOuts;
  }
  ins.resize(in);
  outs.resize(out);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer &x = transfers[i];
    const size_t arrivals = i * microbatches;
    outs[from(x).endOfOuts++] = {
        arrivals, size_t(x.fromStage) * stages + x.toStage, uint32_t(i)};
    forReceivers(x, [&](Work &to) { ins[to.endOfIns++] = arrivals; });
  }
}

// A stage runs until it waits for a message, and again when one comes.
void StepOrder::place(const Schedule &schedule) {
  const auto ranOf = [&](int stage, const Step &step) {
    return Ran{workAt(step.chunk * stages + stage, step.action, step.isLate()),
               uint32_t(step.microbatch)};
  };
  std::vector<Message> messages(transfers.size() * microbatches,
                                Message::Absent);
  size_t all = 0;
  for (int stage = 0; stage < stages; ++stage) {
    all += schedule.order[stage].size();
    for (const Step &step : schedule.order[stage])
      forOuts(workOf(ranOf(stage, step)), [&](const Out &out) {
        messages[out.arrivals + size_t(step.microbatch)] = Message::Pending;
      });
  }
  const auto waits = [&](const Ran &step) {
    const Work &work = workOf(step);
    for (uint32_t i = work.ins; i < work.endOfIns; ++i)
      if (messages[ins[i] + step.microbatch] == Message::Pending)
        return true;
    return false;
  };
  steps.reserve(all);
  std::vector<size_t> done(size_t(stages), 0); // of each list
  std::vector<char> queued(size_t(stages), 1);
  std::vector<int> ready;
  for (int stage = stages; stage-- > 0;)
    ready.push_back(stage);
  while (!ready.empty()) {
    const int stage = ready.back();
    ready.pop_back();
    queued[stage] = 0;
    const std::vector<Step> &list = schedule.order[stage];
    for (size_t &next = done[stage]; next < list.size(); ++next) {
      const Ran step = ranOf(stage, list[next]);
      if (waits(step))
        break;
      steps.push_back(step);
      forOuts(workOf(step), [&](const Out &out) {
        messages[out.arrivals + step.microbatch] = Message::Sent;
        const int to = transfers[out.transfer].toStage;
        if (to != stage && !queued[to]) {
          queued[to] = 1;
          ready.push_back(to);
        }
      });
    }
  }
  isFinished = steps.size() == all;
}

StepOrder::Costs StepOrder::costsOf(const SimulateOptions &options) const {
  Costs costs;
  for (const Work &work : works) {
    const size_t n = options.times.size(), v = size_t(work.virtualStage);
    const size_t own = n == 1                       ? 0
                       : n == size_t(virtualStages) ? v
                                                    : size_t(work.stage);
    costs.works.push_back(options.times[own].of(work.action));
  }
  for (const Transfer &x : transfers) {
    const bool back = x.fromAction == Action::B;
    double seconds = 0, bytes = 0;
    if (x.fromAction == Action::W) {
      // Sums: boundaries hold their bytes.
    } else if (options.boundaries.empty()) {
      seconds = back ? options.backwardTransfer : options.forwardTransfer;
    } else {
      const int from = x.fromChunk * stages + x.fromStage;
      const int to = x.toChunk * stages + x.toStage;
      const BoundaryCost &boundary =
          options.boundaries[size_t(std::min(from, to)) %
                             options.boundaries.size()];
      seconds = back ? boundary.backward : boundary.forward;
      bytes = back ? boundary.backwardBytes : boundary.forwardBytes;
    }
    costs.transfers.push_back(seconds);
    costs.bytes.push_back(bytes);
  }
  return costs;
}

StepOrder::Time StepOrder::timeOf(const SimulateOptions &options) const {
  const Costs costs = costsOf(options);
  Time time;
  time.busy = options.setup;
  time.busy.resize(size_t(stages), 0);
  run(costs, time.busy, [&](const Ran &step, double, double end) {
    time.busy[works[step.work].stage] += costs.works[step.work];
    time.total = std::max(time.total, end);
  });
  return time;
}

} // namespace merak::planning
