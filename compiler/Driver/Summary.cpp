#include "compiler/Driver/Summary.h"

#include "dialects/Plan/PlanDialect.h"
#include "passes/CostModel/Cluster.h"
#include "passes/Planning/Confirm.h"

#include <cmath>
#include <fmt/format.h>

using namespace mlir;
using namespace merak;

namespace {

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
constexpr size_t kRunnersUp = 6;

std::string bytesStr(double bytes) {
  return bytes < 0.1 * kMiB   ? fmt::format("{:.1f} KiB", bytes / 1024)
         : bytes < 0.1 * kGiB ? fmt::format("{:.1f} MiB", bytes / kMiB)
                              : fmt::format("{:.2f} GiB", bytes / kGiB);
}
std::string secondsStr(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3)
                     : fmt::format("{:.3g} s", seconds);
}
std::string counted(int64_t count, const char *thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

// "pp=2 dp=1 tp=2, 4 microbatches of 4 samples, 1f1b, recompute auto"
// With other words for where, and the samples that a microbatch has there.
std::string layoutStr(const report::CandidatePlan &plan,
                      const std::string &where, int64_t samples) {
  std::string text =
      fmt::format("{}, {} of {}", where,
                  plan.microbatches == 1
                      ? "1 microbatch"
                      : fmt::format("{} microbatches", plan.microbatches),
                  counted(samples, "sample"));
  if (!plan.schedule.empty())
    text += ", " + plan.schedule;
  if (plan.recompute != "none" && !plan.recompute.empty())
    text += ", recompute " + plan.recompute;
  if (plan.tpOverlap > 0)
    text += fmt::format(", tp-overlap {}", plan.tpOverlap);
  return text;
}
std::string layoutStr(const report::CandidatePlan &plan) {
  return layoutStr(plan,
                   fmt::format("pp={} dp={} tp={}", plan.pp, plan.dp, plan.tp),
                   plan.microbatch);
}

class Summary {
public:
  Summary(ModuleOp module, const CompilerOptions &options,
          const PhaseNotes &notes)
      : module(module), options(options), notes(notes) {}

  std::string str(const std::vector<std::string> &warnings) {
    if (options.fromPhase.empty())
      addModel();
    if (notes.decision)
      addDecision();
    addMemory();
    if (notes.decision)
      addRunnersUp();
    addWarnings(warnings);
    std::string text;
    for (const std::string &line : lines)
      text += line + "\n";
    return text;
  }

private:
  void addModel() {
    const ImportReport &imported = notes.imported;
    lines.push_back(fmt::format(
        "model       {} of opset {}, {} trained, {} frozen",
        counted(imported.nodes, "node"), imported.opset,
        counted(imported.trained.size(), "parameter"), imported.frozen.size()));
    if (imported.allTrained)
      lines.push_back(fmt::format("            all {} parameters are trained; "
                                  "--freeze or --trainable narrow it",
                                  imported.trained.size()));
    if (imported.strategy && options.strategy.empty())
      lines.push_back("            its own device notes decide the mesh");
    if (imported.training && !options.optimizerGiven)
      lines.push_back(
          fmt::format("            its own algorithm: {}, loss '{}'",
                      imported.training->optimizer, imported.training->loss));
  }

  const report::CandidatePlan *chosen() const {
    for (const report::CandidatePlan &plan :
         notes.decision->considered.candidates)
      if (plan.chosen)
        return &plan;
    return nullptr;
  }

  // Of the model's products, forward and backward; what is computed again does
  // not count (model FLOPs utilization).
  double modelFlops() const {
    double flops = 0;
    for (const planning::GraphOp &op : notes.decision->step.graph.ops)
      flops += op.contraction ? op.flops : 0;
    return flops;
  }

  // Those of the forward pass; gradients follow.
  std::string roundedProducts() const {
    int64_t all = 0, rounded = 0;
    for (const planning::GraphOp &op : notes.decision->step.graph.ops)
      if (op.product && op.phase == planning::Phase::Forward) {
        ++all;
        rounded += op.rounds;
      }
    return fmt::format("            8 bits in {} of {} products; why: "
                       "--remarks=precision",
                       rounded, all);
  }

  // Elements of the first integer input, as merak-run counts them; 0: none.
  int64_t tokensOfStep() const {
    for (const planning::GraphTensor &tensor :
         notes.decision->step.graph.tensors)
      if (tensor.input && !tensor.isFloat)
        return tensor.elements();
    return 0;
  }

  costmodel::Device device() const {
    Result<costmodel::Cluster> cluster = costmodel::parseCluster(
        dist::ClusterAttr::of(module).getDocument().str(), "cluster");
    return cluster.ok() ? cluster->device() : costmodel::Device();
  }

  // What the plan was taken for.
  std::string chosenBy(size_t considered) const {
    if (!options.pick.empty())
      return ", picked from the frontier";
    if (options.objective == Objective::Memory)
      return ", the smallest found";
    if (options.objective == Objective::Devices)
      return ", on the fewest devices that it fits";
    return considered > 1 ? ", the fastest found" : "";
  }

  // Stages on meshes of their own.
  std::string stagesStr(const report::CandidatePlan &plan) const {
    const std::vector<planning::PipelineStages> &pipelines =
        notes.decision->strategy.pipelines;
    std::string text;
    for (const planning::PipelineStages &pipeline : pipelines)
      text += (text.empty() ? "" : " | ") + pipeline.str() +
              (pipelines.size() > 1
                   ? fmt::format(" x{}", pipeline.microbatches.value_or(1))
                   : "");
    return layoutStr(plan, "stages on devices " + text,
                     plan.microbatch * plan.dp);
  }

  void addDecision() {
    const report::CandidatePlan *plan = chosen();
    if (!plan)
      return;
    const Decision &decision = *notes.decision;
    const size_t considered = decision.considered.candidates.size();
    const bool ofMeshes = !decision.strategy.pipelines.empty();
    const planning::PipelineStages stages =
        planning::joined(decision.strategy.pipelines);
    lines.push_back("plan        " +
                    (ofMeshes ? stagesStr(*plan)
                              : layoutStr(*plan) + chosenBy(considered)));
    const double seconds = notes.simulated.value_or(plan->seconds);
    const double samples =
        double(plan->microbatch) * plan->microbatches * plan->dp;
    const double ranks = ofMeshes ? double(stages.devices())
                                  : double(plan->pp) * plan->dp * plan->tp;
    // f16 is priced as bf16 (CostModel.md).
    const Type low = train::ConfigAttr::of(module).getLowPrecision();
    const double peak = device().flops(!low                         ? "f32"
                                       : isa<Float8E4M3FNType>(low) ? "f8"
                                                                    : "bf16") *
                        ranks;
    std::string step = fmt::format("step        {} predicted, {:.1f} samples/s",
                                   secondsStr(seconds), samples / seconds);
    if (int64_t tokens = tokensOfStep(); double(tokens) > samples)
      step += fmt::format(", {:.0f} tokens/s", double(tokens) / seconds);
    if (peak > 0)
      step += fmt::format(", {:.1f} % of the peak",
                          100 * modelFlops() / seconds / peak);
    lines.push_back(step);
    if (options.precision == "fp8")
      lines.push_back(roundedProducts());
    addBeside(notes.parts, "with parts");
    addBeside(notes.shares, "with shares of the microbatches");
    if (!stages.spares.empty())
      lines.push_back("            spare devices " + stages.sparesStr());
    if (std::abs(plan->seconds - seconds) > planning::kAgrees * seconds)
      lines.push_back(fmt::format("            the search expected {}",
                                  secondsStr(plan->seconds)));
    lines.push_back(fmt::format(
        "            bubble {:.1f} %, exposed communication {:.1f} %",
        100 * plan->bubbleSeconds / plan->seconds,
        100 * plan->exposedSeconds / plan->seconds));
  }

  // What the best plan of one mesh takes, and the best of another kind.
  void addBeside(const std::optional<PhaseNotes::Kinds> &kinds,
                 const char *other) {
    if (kinds)
      lines.push_back(fmt::format(
          "            uniform {}, {} {}",
          kinds->uniform ? secondsStr(*kinds->uniform) : "none", other,
          kinds->parts ? secondsStr(*kinds->parts)
                       : "none that promises less"));
  }

  // Of the buffers as they were laid out, or else as planning expects them.
  void addMemory() {
    double most = 0;
    std::string of;
    for (auto program : module.getOps<plan::ProgramOp>())
      if (double bytes = double(program.getArenaBytes()); bytes > most) {
        most = bytes;
        of = program.getSymName().str();
      }
    if (most == 0 && notes.decision)
      if (const report::CandidatePlan *plan = chosen()) {
        most = plan->memoryBytes;
        of = "expected";
      }
    if (most == 0)
      return;
    const double limit = options.memoryLimit > 0 ? double(options.memoryLimit)
                                                 : double(device().memoryBytes);
    lines.push_back(fmt::format("memory      {}{} on the fullest rank ({})",
                                bytesStr(most),
                                limit > 0 ? " of " + bytesStr(limit) : "", of));
  }

  void addRunnersUp() {
    if (!notes.decision->strategy.pipelines.empty())
      return;
    size_t left = kRunnersUp;
    for (const report::CandidatePlan &plan :
         notes.decision->considered.candidates) {
      if (plan.chosen || plan.onlyDrawn || left == 0)
        continue;
      --left;
      const std::string name =
          plan.name == "merakc" ? "" : " (" + plan.name + ")";
      std::string line = "runner-up   ";
      if (plan.seconds > 0)
        line += fmt::format("{:>9} {:>9} ", secondsStr(plan.seconds),
                            bytesStr(plan.memoryBytes));
      line += layoutStr(plan) + name;
      if (!plan.feasible)
        line += ": " + plan.why;
      lines.push_back(line);
    }
  }

  void addWarnings(const std::vector<std::string> &warnings) {
    // The last line tells of what is left out.
    const size_t room = kSummaryLines - lines.size() - 1;
    for (size_t i = 0; i < warnings.size() && i < room; ++i)
      lines.push_back("warning: " + warnings[i]);
    lines.push_back(warnings.size() > room
                        ? fmt::format("{} more warnings and all decisions: -v",
                                      warnings.size() - room)
                        : "all decisions: -v, or --report=FILE.html");
  }

  ModuleOp module;
  const CompilerOptions &options;
  const PhaseNotes &notes;
  std::vector<std::string> lines;
};

} // namespace

std::string merak::summarize(ModuleOp module, const CompilerOptions &options,
                             const PhaseNotes &notes,
                             const std::vector<std::string> &warnings) {
  return Summary(module, options, notes).str(warnings);
}
