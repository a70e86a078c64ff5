#include "passes/Staging/DecisionReport.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak {

std::vector<report::CandidatePlan>
consideredCandidates(const std::vector<planning::PlanCandidate> &candidates,
                     int64_t globalBatch) {
  std::vector<report::CandidatePlan> result;
  const planning::PlanCandidate *best = nullptr;
  for (const planning::PlanCandidate &candidate : candidates) {
    report::CandidatePlan &out = result.emplace_back();
    const planning::Degrees &d = candidate.degrees;
    out.name = candidate.policy.empty() ? "merakc" : candidate.policy;
    out.pp = d.pp;
    out.dp = d.dp;
    out.tp = d.tp;
    out.microbatches = d.microbatches;
    out.microbatch = globalBatch / (d.dp * d.microbatches);
    out.recompute = candidate.recompute;
    out.tpOverlap = candidate.techniques.overlap;
    if (!candidate.problem.empty()) {
      out.feasible = false;
      out.why = candidate.problem.substr(0, candidate.problem.find('\n'));
      continue;
    }
    const planning::PipelineCost &cost = candidate.plan.cost;
    out.schedule = candidate.plan.schedule.name;
    out.seconds = cost.seconds;
    for (double bytes : cost.memory)
      out.memoryBytes = std::max(out.memoryBytes, bytes);
    out.exposedSeconds = cost.exposedSeconds;
    out.bubbleSeconds = cost.bubble() * cost.seconds;
    out.feasible = cost.fits();
    if (!best) {
      best = &candidate;
      out.chosen = true;
    } else if (!out.feasible) {
      out.why = fmt::format("{:.1f} MiB too much", cost.excessBytes / 1048576);
    } else if (cost.seconds < best->plan.cost.seconds) {
      out.why = "slower as a plan";
    } else {
      out.why = fmt::format("{:+.1f} % time",
                            100 * (cost.seconds / best->plan.cost.seconds - 1));
    }
  }
  return result;
}

void considerDrawn(const std::vector<planning::PlanCandidate> &drawn,
                   int64_t globalBatch,
                   std::vector<report::CandidatePlan> &considered) {
  auto isSame = [](const report::CandidatePlan &a,
                   const report::CandidatePlan &b) {
    return a.seconds == b.seconds && a.memoryBytes == b.memoryBytes;
  };
  for (report::CandidatePlan &plan : consideredCandidates(drawn, globalBatch)) {
    const bool isKnown =
        plan.name == "merakc" &&
        std::any_of(considered.begin(), considered.end(),
                    [&](const auto &other) { return isSame(plan, other); });
    plan.chosen = false;
    plan.onlyDrawn = true;
    plan.why.clear();
    if (!isKnown)
      considered.push_back(std::move(plan));
  }
}

std::vector<report::StageDecision>
consideredStages(const planning::StageModel &model,
                 const planning::PipelineShape &shape,
                 const planning::PipelinePlan &plan, double memoryBytes) {
  std::vector<report::StageDecision> result;
  const std::vector<planning::StageOp> &ops = model.problem.ops;
  for (size_t v = 0; v + 1 < plan.begin.size(); ++v) {
    const int from = plan.begin[v], to = plan.begin[v + 1];
    const planning::StageCost &cost = plan.cost.stages[v];
    report::StageDecision &out = result.emplace_back();
    out.ops = to - from;
    if (to > from) {
      out.first = ops[from].name.str();
      out.last = ops[to - 1].name.str();
    }
    out.forwardSeconds = cost.times.F;
    out.backwardSeconds = cost.times.B + cost.times.W;
    out.recomputeSeconds = cost.times.R;
    out.memoryBytes = plan.cost.memory[v % plan.cost.memory.size()];
    out.memoryLimit = memoryBytes;
    for (int i = from; i < to; ++i)
      out.opsRecomputed +=
          shape.modelOf(int(v), model).marked(i, plan.marks[v]);
    if (out.opsRecomputed > 0) {
      out.recomputedBytes = cost.recomputedBytes;
      out.why = fmt::format("keeps {} x {:.2f} MiB instead of {:.2f}",
                            plan.cost.inFlight[v], cost.keptBytes / 1048576,
                            (cost.keptBytes + cost.recomputedBytes) / 1048576);
    }
  }
  return result;
}

} // namespace merak
