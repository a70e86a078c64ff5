#include "passes/Planning/Schedule.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

namespace merak::planning {

namespace {

// The timelines below have two stages, four microbatches, F = R = 1 and B = 2
// units; one cell is a unit, "--" is idle. A test holds them to the simulator.

// One stage: `warmup` forwards, then backward and forward alternating, then the
// remaining backwards; each backward after its recomputation, if there is one.
//   warmup 2 of 4 microbatches: F0 F1 B0 F2 B1 F3 B2 B3
struct StageOrder {
  int microbatches = 1;
  int warmup = 1;
  bool recompute = false;
  std::function<bool(int)> early = [](int) { return false; };
  // The forward that would follow B0 runs before it.
  bool advanceThird = false;

  std::vector<Step> make() const {
    std::vector<Step> order;
    int next = 0;
    auto forward = [&] {
      if (next < microbatches)
        order.push_back({Action::F, next++});
    };
    for (int i = 0; i < warmup; ++i)
      forward();
    if (advanceThird)
      forward();
    for (int i = 0; i < microbatches; ++i) {
      if (recompute)
        order.push_back({Action::R, i, 0, early(i)});
      order.push_back({Action::B, i});
      if (!advanceThird || i > 0)
        forward();
    }
    return order;
  }
};

using Generator = std::vector<Step> (*)(const ScheduleOptions &, int stage);

// GPipe: all forwards, then all backwards. Backwards run from microbatch 0 on,
// not in reverse as in the paper, so that gradients are summed in the same
// order under every schedule. (Huang et al., 2019, arXiv 1811.06965)
//   S0: F0 F1 F2 F3 -- -- -- B0 B0 B1 B1 B2 B2 B3 B3
//   S1: -- F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3
std::vector<Step> gpipe(const ScheduleOptions &o, int stage) {
  StageOrder order;
  order.microbatches = o.microbatches;
  order.warmup = o.microbatches;
  order.recompute = o.recomputes(stage);
  return order.make();
}

// 1F1B: as many forwards as there are stages from here on, then one backward,
// one forward. (Narayanan et al., 2019, PipeDream, doi 10.1145/3341301.3359646)
//   S0: F0 F1 -- -- B0 B0 F2 B1 B1 F3 B2 B2 -- B3 B3
//   S1: -- F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3
std::vector<Step> oneForwardOneBackward(const ScheduleOptions &o, int stage) {
  StageOrder order;
  order.microbatches = o.microbatches;
  order.warmup = std::min(o.microbatches, o.stages - stage);
  order.recompute = o.recomputes(stage);
  return order.make();
}

// 1F1B with early recomputation: in the cooldown, where a stage waits for
// gradients, the recomputation runs before the gradient is there.
// (Lai et al., 2023, Merak, doi 10.1109/TPDS.2023.3247001)
//   S0: F0 F1 -- -- -- r0 B0 B0 F2 r1 B1 B1 f3 r2 B2 B2 R3 B3 B3
//   S1: -- F0 r0 B0 B0 F1 r1 B1 B1 F2 r2 B2 B2 F3 r3 B3 B3
std::vector<Step> early(const ScheduleOptions &o, int stage) {
  StageOrder order;
  order.microbatches = o.microbatches;
  order.warmup = std::min(o.microbatches, o.stages - stage);
  order.recompute = o.recomputes(stage);
  int from = o.microbatches - (o.stages - 1 - stage);
  order.early = [from](int i) { return i >= from; };
  return order.make();
}

// Early recomputation, and the last stage keeps its activations instead of
// recomputing (it has one microbatch in flight); the stage before it runs R0
// while the first gradient is computed. (Merak, as above)
//   S0: f0 F1 R0 -- B0 B0 F2 r1 B1 B1 F3 r2 B2 B2 r3 B3 B3
//   S1: -- F0 B0 B0 F1 B1 B1 F2 B2 B2 -- F3 B3 B3
std::vector<Step> last(const ScheduleOptions &o, int stage) {
  StageOrder order;
  order.microbatches = o.microbatches;
  order.warmup = std::min(o.microbatches, o.stages - stage);
  order.recompute = stage < o.stages - 1 && o.recomputes(stage);
  int from = o.microbatches - (o.stages - 1 - stage);
  if (stage == o.stages - 2)
    order.early = [](int i) { return i == 0; };
  else
    order.early = [from](int i) { return i >= from; };
  return order.make();
}

// Shifted critical path: as `last`; the stage before the last runs its third
// forward before its first backward and recomputes two microbatches early, the
// stage before that one. The pipeline then has the bubble of one stage less.
// (Merak, as above)
//   S0: f0 f1 F2 R0 B0 B0 R1 B1 B1 F3 r2 B2 B2 r3 B3 B3
//   S1: -- F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3
std::vector<Step> shiftedCriticalPath(const ScheduleOptions &o, int stage) {
  StageOrder order;
  order.microbatches = o.microbatches;
  order.warmup = std::min(o.microbatches, o.stages - stage);
  order.recompute = stage < o.stages - 1 && o.recomputes(stage);
  int from = o.microbatches - (o.stages - 1 - stage);
  int before = o.stages - 2;
  order.advanceThird = stage == before;
  if (stage == before)
    order.early = [](int i) { return i <= 1; };
  else if (stage == before - 1)
    order.early = [from](int i) { return i >= from || i == 0; };
  else
    order.early = [from](int i) { return i >= from; };
  return order.make();
}

// Eager 1F1B: two microbatches more in flight per stage instead of one, so that
// a transfer has a whole cycle to arrive. `warmup` overrides the counts.
// (Zhuang et al., 2023, arXiv 2211.05322)
//   S0: F0 F1 F2 -- B0 B0 F3 B1 B1 -- B2 B2 -- B3 B3
//   S1: -- F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3
std::vector<Step> eager(const ScheduleOptions &o, int stage) {
  StageOrder order;
  order.microbatches = o.microbatches;
  int own = o.warmup.empty() ? 2 * (o.stages - stage) - 1 : o.warmup[stage];
  order.warmup = std::min(o.microbatches, own);
  order.recompute = o.recomputes(stage);
  return order.make();
}

// Interleaved 1F1B: a stage holds `chunks` parts of the model, so that the
// pipeline fills in steps of one part. Forwards take the chunks in turn, a
// group of as many microbatches as there are stages each; backwards the same
// with the last chunk first. docs/Schedules.md has a timeline.
// (Narayanan et al., 2021, Megatron-LM, arXiv 2104.04473)
std::vector<Step> interleaved(const ScheduleOptions &o, int stage) {
  int p = o.stages, group = p * o.chunks, total = o.microbatches * o.chunks;
  auto step = [&](Action action, int k, int chunk) {
    return Step{action, k / group * p + k % p, chunk};
  };
  auto forward = [&](int k) { return step(Action::F, k, k % group / p); };
  auto backward = [&](Action action, int k) {
    return step(action, k, o.chunks - 1 - k % group / p);
  };
  std::vector<Step> order;
  int next = 0;
  int warmup = 2 * (p - 1 - stage) + (o.chunks - 1) * p;
  if (o.chunks == 1)
    warmup = p - 1 - stage; // is 1F1B
  while (next < std::min(total, warmup))
    order.push_back(forward(next++));
  for (int k = 0; k < total; ++k) {
    if (next < total)
      order.push_back(forward(next++));
    if (o.recomputes(stage))
      order.push_back(backward(Action::R, k));
    order.push_back(backward(Action::B, k));
  }
  return order;
}

// Zero bubble, the variant with the memory of 1F1B: stage s does its weight
// gradients s microbatches late, so that gradients of inputs get to the first
// stage sooner and the drain is filled. Here B = W = 1.
// (Qi et al., 2024, ZB-H1, arXiv 2401.10241)
//   S0: F0 F1 -- B0 W0 F2 B1 W1 F3 B2 W2 B3 W3
//   S1: -- F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3
std::vector<Step> zeroBubble(const ScheduleOptions &o, int stage) {
  std::vector<Step> order;
  int forwards = 0, weights = 0;
  while (forwards < std::min(o.microbatches, o.stages - stage))
    order.push_back({Action::F, forwards++});
  for (int i = 0; i < o.microbatches; ++i) {
    if (o.recomputes(stage)) // in the cooldown early
      order.push_back(
          {Action::R, i, 0, i >= o.microbatches - (o.stages - 1 - stage)});
    order.push_back({Action::B, i});
    if (i >= stage)
      order.push_back({Action::W, weights++});
    if (forwards < o.microbatches)
      order.push_back({Action::F, forwards++});
  }
  while (weights < o.microbatches)
    order.push_back({Action::W, weights++});
  return order;
}

struct Entry {
  ScheduleTraits traits;
  Generator generator;
};

// name, and what ScheduleTraits says of it.
const Entry kSchedules[] = {
    {{.name = "gpipe", .searched = 7}, gpipe},
    {{.name = "1f1b", .searched = 1}, oneForwardOneBackward},
    {{.name = "early", .searched = 5}, early},
    {{.name = "last", .lastKeeps = true, .searched = 4}, last},
    {{.name = "scp", .lastKeeps = true, .shifts = true, .searched = 2},
     shiftedCriticalPath},
    {{.name = "eager", .searched = 6}, eager},
    {{.name = "interleaved", .takesChunks = true}, interleaved},
    {{.name = "zb", .weights = LateWeights::ByStage, .searched = 3},
     zeroBubble},
};

} // namespace

ScheduleTraits traitsOf(const std::string &name) {
  for (const Entry &entry : kSchedules)
    if (entry.traits.name == name)
      return entry.traits;
  return {.name = name, .weights = LateWeights::Any};
}

std::vector<std::string> searchedSchedules(bool chunks) {
  std::vector<ScheduleTraits> found;
  for (const Entry &entry : kSchedules)
    if (chunks ? entry.traits.takesChunks : entry.traits.searched > 0)
      found.push_back(entry.traits);
  std::sort(found.begin(), found.end(), [](const auto &a, const auto &b) {
    return a.searched < b.searched;
  });
  std::vector<std::string> names;
  for (const ScheduleTraits &traits : found)
    names.push_back(traits.name);
  return names;
}

const std::vector<std::string> &scheduleNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Entry &entry : kSchedules)
      out.push_back(entry.traits.name);
    return out;
  }();
  return names;
}

std::vector<Step> completeStage(const std::vector<Step> &order,
                                const ScheduleOptions &options, int stage) {
  std::vector<Step> out;
  bool splits = options.splitBackward;
  for (const Step &step : order)
    splits &= step.action != Action::W;
  const std::vector<int> &some = options.prologueStages;
  if (options.prologue && (some.empty() || std::find(some.begin(), some.end(),
                                                     stage) != some.end()))
    for (int i = 0; i < options.microbatches; ++i)
      out.push_back({Action::P, i});
  for (const Step &step : order) {
    out.push_back(step);
    if (splits && step.action == Action::B)
      out.push_back({Action::W, step.microbatch, step.chunk});
  }
  if (options.update)
    out.push_back({Action::U});
  return out;
}

Result<Schedule> makeSchedule(const std::string &name,
                              const ScheduleOptions &options) {
  const Entry *entry = nullptr;
  for (const Entry &known : kSchedules)
    if (name == known.traits.name)
      entry = &known;
  if (!entry)
    return Status::error(fmt::format("there is no schedule '{}'; known are {}",
                                     name, fmt::join(scheduleNames(), ", ")));
  Status status;
  auto problem = [&](std::string text) {
    status.merge(Status::error(fmt::format("schedule '{}' {}", name, text)));
  };
  if (options.stages < 1)
    problem(fmt::format("needs at least 1 stage, found {}", options.stages));
  if (options.microbatches < 1)
    problem(fmt::format("needs at least 1 microbatch, found {}",
                        options.microbatches));
  if (!options.recomputeStages.empty() &&
      int(options.recomputeStages.size()) != options.stages)
    problem(fmt::format("has {} stages, found {} recomputation flags",
                        options.stages, options.recomputeStages.size()));
  bool inChunks = entry->traits.takesChunks;
  if (options.chunks < 1 || (options.chunks > 1 && !inChunks))
    problem(fmt::format("has {} a stage, found {}",
                        inChunks ? "at least one chunk" : "one chunk",
                        options.chunks));
  if (inChunks && options.chunks > 1 && options.stages > 0 &&
      !dividesIntoChunks(options.chunks, options.stages, options.microbatches))
    problem(fmt::format("runs microbatches in groups of one a stage: {} "
                        "microbatches do not divide by {} stages",
                        options.microbatches, options.stages));
  if (!options.warmup.empty() && int(options.warmup.size()) != options.stages)
    problem(fmt::format("has {} stages, found {} warm-up counts",
                        options.stages, options.warmup.size()));
  for (int count : options.warmup)
    if (count < 1)
      problem(
          fmt::format("needs warm-up counts of at least 1, found {}", count));
  if (!status.ok())
    return status;
  Schedule schedule;
  schedule.name = name;
  schedule.stages = options.stages;
  schedule.microbatches = options.microbatches;
  schedule.chunks = options.chunks;
  for (int stage = 0; stage < options.stages; ++stage)
    schedule.order.push_back(
        completeStage(entry->generator(options, stage), options, stage));
  return schedule;
}

// Microbatches by other numbers, without the prologue.
static std::vector<Step> renumbered(std::vector<Step> order, int by) {
  std::erase_if(order,
                [](const Step &step) { return step.action == Action::P; });
  for (Step &step : order)
    if (!isOncePerStep(step.action))
      step.microbatch += by;
  return order;
}

Schedule listsOfPipeline(const Schedule &all, int firstStage, int stages,
                         int firstMicrobatch, int microbatches) {
  Schedule own;
  own.name = all.name;
  own.stages = stages;
  own.microbatches = microbatches;
  for (int s = firstStage; s < firstStage + stages; ++s)
    for (const Step &step : own.order.emplace_back(
             renumbered(all.order[size_t(s)], -firstMicrobatch)))
      own.chunks = std::max(own.chunks, step.chunk + 1);
  return own;
}

void append(const Schedule &own, int firstMicrobatch, Schedule &all) {
  if (all.order.empty())
    all.stages = all.microbatches = 0;
  for (const std::vector<Step> &order : own.order)
    all.order.push_back(renumbered(order, firstMicrobatch));
  all.stages += own.stages;
  all.microbatches += own.microbatches;
  all.chunks = std::max(all.chunks, own.chunks);
}

} // namespace merak::planning
