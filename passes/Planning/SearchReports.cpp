// What a search for degrees says of what it found, and of what it did not.
#include "passes/Planning/PlanSearch.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

namespace merak::planning {

namespace {

double mebi(double bytes) { return bytes / 1048576.0; }

double largest(const std::vector<double> &values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Seconds of a step by cause, of the busiest stage.
struct Causes {
  double work = 0, again = 0, collectives = 0, update = 0, idle = 0;
  explicit Causes(const PlanCandidate &c) {
    const PipelineCost &cost = c.plan.cost;
    size_t p = cost.busy.size();
    int m = c.plan.schedule.microbatches;
    size_t busiest =
        size_t(std::max_element(cost.busy.begin(), cost.busy.end()) -
               cost.busy.begin());
    for (size_t v = busiest; v < cost.stages.size(); v += p) {
      const StageCost &stage = cost.stages[v];
      again += stage.times.R * m;
      collectives += stage.communication * m;
      work += (stage.times.F + stage.times.B + stage.times.W) * m;
    }
    work -= collectives;
    update = cost.busy[busiest] - work - again - collectives;
    idle = cost.seconds - cost.busy[busiest];
  }
};

std::string lostBy(const PlanCandidate &c, const PlanCandidate &best) {
  Causes own(c), other(best);
  std::pair<double, const char *> causes[] = {
      {own.work - other.work, "slower kernels"},
      {own.again - other.again, "recomputation"},
      {own.collectives - other.collectives, "exposed communication"},
      {own.update - other.update, "gradient reduction and update"},
      {own.idle - other.idle, "bubble"}};
  auto most = *std::max_element(std::begin(causes), std::end(causes));
  return fmt::format("{:.2f}x slower: {}",
                     c.plan.cost.seconds / best.plan.cost.seconds, most.second);
}

} // namespace

std::string describe(const std::vector<PlanCandidate> &candidates,
                     double memoryBytes) {
  std::string text;
  const PlanCandidate *best = nullptr;
  for (const PlanCandidate &c : candidates)
    if (c.problem.empty() && !best)
      best = &c;
  for (const PlanCandidate &c : candidates) {
    text += fmt::format("candidate {}{}",
                        c.stages ? fmt::format("stages on devices {}, {} "
                                               "microbatches",
                                               c.stages->str(),
                                               c.degrees.microbatches)
                                 : c.degrees.str(),
                        c.policy.empty() ? "" : " (" + c.policy + ")");
    if (!c.problem.empty()) {
      text += ": " + c.problem.substr(0, c.problem.find('\n')) + "\n";
      continue;
    }
    const PipelineCost &cost = c.plan.cost;
    text += fmt::format(", {}, recompute {}{}: {:.3g} s predicted, {:.1f} MiB, "
                        "bubble {:.1f} %, "
                        "exposed communication {:.3g} s",
                        c.plan.schedule.name, c.recompute, c.techniques.str(),
                        cost.seconds, mebi(largest(cost.memory)),
                        100 * cost.bubble(), cost.exposedSeconds);
    if (!cost.fits())
      text += fmt::format("; does not fit into {:.1f} MiB", mebi(memoryBytes));
    else if (&c == best)
      text += "; chosen";
    else if (cost.seconds < best->plan.cost.seconds)
      text += "; slower as a plan";
    else
      text += "; " + lostBy(c, *best);
    text += "\n";
  }
  return text;
}

std::string describeStages(const StageModel &model, const PipelineShape &shape,
                           const PipelinePlan &plan) {
  std::string text;
  const std::vector<StageOp> &ops = model.problem.ops;
  for (size_t v = 0; v + 1 < plan.begin.size(); ++v) {
    int from = plan.begin[v], to = plan.begin[v + 1];
    const StageCost &cost = plan.cost.stages[v];
    const ActionTimes &t = cost.times;
    text += fmt::format(
        "stage {}: '{}' to '{}', {} ops, {:.4g} s a microbatch, {:.1f} MiB "
        "({} x {:.3g} kept)",
        v, ops[from].name.str(), ops[to - 1].name.str(), to - from,
        t.F + t.R + t.B + t.W, mebi(plan.cost.memory[v % shape.stages]),
        plan.cost.inFlight[v], mebi(cost.keptBytes));
    if (t.R > 0) {
      int marked = 0;
      for (int i = from; i < to; ++i)
        marked += shape.modelOf(int(v), model).marked(i, plan.marks[v]);
      text += fmt::format(", recomputes {} ops in {:.3g} s", marked, t.R);
    }
    if (v + 2 < plan.begin.size())
      text += fmt::format(", sends {:.4g} bytes, {:.4g} back",
                          shape.modelOf(int(v), model).forwardBytes(to),
                          shape.modelOf(int(v) + 1, model).gradientBytes(to));
    text += "\n";
  }
  return text;
}

Status explainMisfit(PlanSearch &search, const SearchInput &input,
                     const PlanCandidate &closest) {
  const PipelineCost &cost = closest.plan.cost;
  size_t p = cost.memory.size();
  size_t worst =
      size_t(std::max_element(cost.memory.begin(), cost.memory.end()) -
             cost.memory.begin());
  std::string text = fmt::format(
      "no plan fits into the {:.1f} MiB of a device; of {} recompute {}, which "
      "comes closest, stage {} needs {:.1f} MiB; its largest tensors:",
      mebi(input.memoryBytes), closest.degrees.str(), closest.recompute, worst,
      mebi(cost.memory[worst]));
  if (Result<const PlanSearch::Sharding *> sharding =
          search.sharding(closest.degrees, closest.techniques);
      sharding.ok())
    for (size_t v = worst; v + 1 < closest.plan.begin.size(); v += p)
      for (const auto &[name, bytes] : (*sharding)->model->topTensors(
               closest.plan.begin[v], closest.plan.begin[v + 1],
               closest.plan.marks[v], cost.inFlight[v], 5))
        text += fmt::format("\n  {:10.1f} MiB {}", mebi(bytes), name);
  double least = cost.memory[worst];
  // One pin less at a time, then parts of the state, then all pins.
  auto freed = [&](auto &&change) -> std::optional<PlanCandidate> {
    SearchInput other = input;
    if (!change(other))
      return std::nullopt;
    std::vector<PlanCandidate> found =
        PlanSearch(other).search(ownPolicy(other.pinned));
    if (found.empty() || !found.front().problem.empty())
      return std::nullopt;
    if (!found.front().fits()) {
      least = std::min(least, largest(found.front().plan.cost.memory));
      return std::nullopt;
    }
    return found.front();
  };
  std::optional<PlanCandidate> fits;
  auto attempt = [&](auto &&change) {
    if (!fits)
      fits = freed(change);
  };
  attempt([](SearchInput &in) {
    bool pinned = in.pinned.recompute && *in.pinned.recompute != "auto";
    in.pinned.recompute = "auto";
    in.pinned.recomputeOps.reset();
    return pinned;
  });
  attempt([](SearchInput &in) {
    bool pinned = in.pinned.microbatch && *in.pinned.microbatch > 1;
    in.pinned.microbatch.reset();
    return pinned;
  });
  attempt([](SearchInput &in) {
    bool pinned = in.pinned.lists ||
                  (in.pinned.schedule && *in.pinned.schedule != "auto");
    in.pinned.schedule.reset();
    in.pinned.lists.reset();
    return pinned;
  });
  // Replicas that store parts are off by default.
  attempt([](SearchInput &in) {
    const bool mayStoreParts = in.train && in.cluster.count > 1 &&
                               !in.pinned.zero && in.pinned.pipelines.empty();
    in.pinned.zero = Strategy::kAuto;
    return mayStoreParts;
  });
  attempt([](SearchInput &in) {
    bool pinned = !in.pinned.mesh.empty();
    in.pinned.mesh.clear();
    in.pinned.microbatch.reset();
    in.pinned.recompute = "auto";
    in.pinned.stageBegins.reset();
    in.pinned.lists.reset();
    in.pinned.classes.clear();
    return pinned;
  });
  if (fits)
    text += fmt::format(
        "\n  it fits with {} of {} samples, schedule {}, recompute {}{}: "
        "{:.1f} "
        "MiB",
        fits->degrees.str(),
        input.globalBatch / (fits->degrees.dp * fits->degrees.microbatches),
        fits->plan.schedule.name, fits->recompute,
        fits->techniques.zero > 0
            ? fmt::format(", zero {}{}", fits->techniques.zero,
                          input.pinned.zero ? "" : " (--allow=zero)")
            : "",
        mebi(largest(fits->plan.cost.memory)));
  else
    text += fmt::format("\n  nothing that could be changed makes it fit; it "
                        "needs devices with {:.1f} MiB",
                        mebi(least));
  return Status::error(text);
}

} // namespace merak::planning
