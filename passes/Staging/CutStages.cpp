#include "passes/Staging/CutStages.h"

#include "passes/Staging/ApplyLayouts.h"
#include "passes/Staging/Passes.h"

using namespace mlir;
using namespace merak;

namespace merak {
#define GEN_PASS_DEF_CUTSTAGES
#include "passes/Staging/Passes.h.inc"
} // namespace merak

// Stages on meshes of their own.
static void giveMeshes(const Decision &decision, MLIRContext *context,
                       OutlineOptions &outline) {
  Builder b(context);
  const planning::PipelineStages all =
      planning::joined(decision.strategy.pipelines);
  for (const planning::PipelineStages::Stage &stage : all.stages) {
    SmallVector<StringAttr> axes;
    for (const char *axis :
         {kPipelineAxis, kDataAxis, kTensorAxis, kRanksAxis, kMicrobatchAxis})
      axes.push_back(b.getStringAttr(axis));
    outline.meshes.push_back(
        dist::MeshAttr::get(context, axes,
                            {decision.degrees.pp, stage.dp, stage.tp,
                             all.devices(), decision.degrees.microbatches}));
    std::vector<int64_t> &ranks = outline.devices.emplace_back();
    for (int64_t device : stage.devices)
      ranks.push_back(all.rankOf(device));
  }
}

// Where one pipeline trains all microbatches, it has all stages.
static void givePipelines(const Decision &decision, OutlineOptions &outline) {
  outline.pipelines.clear();
  int64_t stage = 0;
  for (const planning::PipelineDecision &one : decision.pipelines) {
    outline.pipelines.push_back({stage, one.degrees.pp, one.chunks,
                                 one.firstMicrobatch, one.microbatches});
    stage += one.degrees.pp;
  }
  if (decision.pipelines.empty())
    outline.pipelines = {{0, decision.degrees.pp, decision.chunks, 0,
                          decision.degrees.microbatches}};
}

FailureOr<Decision> merak::cutStages(ModuleOp module,
                                     const PlannerOptions &planner,
                                     OutlineOptions outline) {
  FailureOr<Decision> decision = planStrategy(module, planner);
  if (failed(decision))
    return failure();
  auto step = module.lookupSymbol<func::FuncOp>("step");
  if (failed(applyLayouts(step, *decision)))
    return failure();
  Builder b(module.getContext());
  SmallVector<StringAttr> axes;
  SmallVector<int64_t> sizes;
  auto add = [&](StringRef axis, int64_t size) {
    axes.push_back(b.getStringAttr(axis));
    sizes.push_back(size);
  };
  add(kPipelineAxis, decision->degrees.pp);
  for (const char *whole : {kDataAxis, kTensorAxis})
    for (const planning::AxisSize &axis : decision->assignment.mesh)
      if (isOn(axis.name, whole)) // or its parts
        add(axis.name, axis.size);
  add(kMicrobatchAxis,
      decision->degrees.microbatches * decision->submicrobatches());
  if (decision->submicrobatchAxis)
    add(kSubmicrobatchAxis, 2);
  module->setAttr(dist::kMeshAttr,
                  dist::MeshAttr::get(module.getContext(), axes, sizes));
  if (decision->overlapLevel > 0)
    module->setAttr(pipe::kOverlapAttr,
                    b.getI64IntegerAttr(decision->overlapLevel));
  outline.stages = decision->degrees.pp;
  outline.convertsOnce = decision->convertsOnce;
  giveMeshes(*decision, module.getContext(), outline);
  givePipelines(*decision, outline);
  if (failed(outlineStages(step, outline)))
    return failure();
  return decision;
}

namespace {

struct CutStagesPass : merak::impl::CutStagesBase<CutStagesPass> {
  using CutStagesBase::CutStagesBase;

  void runOnOperation() override {
    PlannerOptions planner;
    planner.globalBatch = globalBatch;
    planner.train = train;
    int64_t devices = 1;
    SmallVector<StringRef> parts;
    StringRef(mesh).split(parts, ',', -1, false);
    for (StringRef part : parts) {
      auto [axis, degree] = part.split('=');
      int64_t value = 0;
      if (degree.getAsInteger(10, value) || value < 1) {
        getOperation().emitError("expected AXIS=DEGREE, found '")
            << part << "'";
        return signalPassFailure();
      }
      planner.pinned.mesh[axis.str()] = value;
      devices *= value;
    }
    planner.cluster = costmodel::defaultCluster(devices);
    if (microbatch > 0)
      planner.pinned.microbatch = microbatch;
    planner.pinned.recompute = recompute;
    planner.pinned.schedule = schedule;
    if (chunks > 0)
      planner.pinned.chunks = chunks;
    OutlineOptions outline;
    outline.train = train;
    std::optional<OptimizerKind> kind = parseOptimizerKind(optimizer);
    if (!kind) {
      getOperation().emitError("expected an optimizer, found '")
          << optimizer << "'";
      return signalPassFailure();
    }
    outline.optimizer.kind = *kind;
    outline.optimizer.weightDecay = 0;
    outline.gradClip = gradClip;
    if (failed(cutStages(getOperation(), planner, outline)))
      signalPassFailure();
  }
};

} // namespace
