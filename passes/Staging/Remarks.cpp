#include "passes/Staging/Remarks.h"

#include "mlir/IR/Remarks.h"
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace mlir;
using namespace merak;
using remark::RemarkOpts;

static std::string degreesOf(const report::CandidatePlan &plan) {
  return fmt::format("pp={} dp={} tp={}, {} microbatches of {} samples, {}",
                     plan.pp, plan.dp, plan.tp, plan.microbatches,
                     plan.microbatch, plan.schedule);
}

static void remarkMesh(Location at, const Decision &decision) {
  for (const report::CandidatePlan &plan : decision.considered.candidates) {
    const RemarkOpts name = RemarkOpts::name("Candidate").category("mesh");
    const std::string text =
        fmt::format("{}: {:.3g} s predicted", degreesOf(plan), plan.seconds);
    if (plan.chosen)
      remark::passed(at, name) << text;
    else
      remark::missed(at, name) << text << remark::reason("{0}", plan.why);
  }
}

// "16 over (tp)" for each dimension that is split over devices.
static std::string splitOf(const layout::Layout &layout) {
  std::string text;
  for (auto [index, dim] : llvm::enumerate(layout.dims))
    for (const layout::Factor &factor : dim.factors)
      if (!factor.axes.empty())
        text += fmt::format("{}dimension {}: {} over ({})",
                            text.empty() ? "" : ", ", index, factor.size,
                            fmt::join(factor.axes, ", "));
  return text;
}

static void remarkLayouts(ModuleOp module, const Decision &decision) {
  const planning::Graph &graph = decision.step.graph;
  const SymbolTable symbols(module);
  for (auto [index, tensor] : llvm::enumerate(graph.tensors)) {
    if (!tensor.parameter)
      continue;
    auto parameter = symbols.lookup<train::ParameterOp>(tensor.name);
    std::string split = splitOf(decision.outcome.tensors[index]);
    if (parameter && !split.empty())
      remark::passed(parameter.getLoc(),
                     RemarkOpts::name("Split").category("layout"))
          << fmt::format("'{}', {}", tensor.name, split);
  }
  for (const std::string &line : decision.sharding.replicated)
    remark::missed(module.getLoc(),
                   RemarkOpts::name("Replicated").category("layout"))
        << line;
}

static void remarkStages(const Decision &decision) {
  std::vector<char> seen(decision.considered.stages.size(), 0);
  for (auto [index, op] : llvm::enumerate(decision.step.ops)) {
    const int stage = decision.stageOfOp[index];
    if (stage < 0)
      continue;
    if (!seen[stage]) {
      seen[stage] = 1;
      const report::StageDecision &of = decision.considered.stages[stage];
      remark::analysis(op->getLoc(),
                       RemarkOpts::name("Begins").category("stage"))
          << fmt::format(
                 "stage {}: {} ops, forward {:.3g} s, backward {:.3g} s "
                 "a microbatch, {:.1f} MiB",
                 stage, of.ops, of.forwardSeconds, of.backwardSeconds,
                 of.memoryBytes / 1048576);
    }
    if (decision.recompute[index])
      remark::passed(op->getLoc(),
                     RemarkOpts::name("Recomputed").category("recompute"))
          << fmt::format("on stage {}", stage);
  }
}

void merak::remarkDecision(ModuleOp module, const Decision &decision) {
  remarkMesh(module.getLoc(), decision);
  remarkLayouts(module, decision);
  remarkStages(decision);
  for (const std::string &line : decision.tables)
    remark::analysis(module.getLoc(),
                     RemarkOpts::name("Exchange").category("sparse"))
        << line;
}
