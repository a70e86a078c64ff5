#include "passes/Scheduling/AttachSchedule.h"

#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/FirstReaders.h"
#include "mlir/IR/Remarks.h"
#include "passes/Planning/ScheduleCheck.h"
#include "passes/Scheduling/Passes.h"
#include <set>

using namespace mlir;
using namespace merak;
using namespace merak::pipe;

namespace {

// Schedules that planning makes have no S: it is part of U.
Action inPlanning(Action action) {
  return action == Action::S ? Action::U : action;
}

// What of a stage reads sums over all microbatches of the forward pass.
struct AfterForward {
  std::set<int> passes; // of P: these come after the forward pass
  std::string sum;      // empty: nothing reads one
};

AfterForward findAfterForward(StageOp stage) {
  AfterForward out;
  std::set<StringRef> sums, made; // by the forward pass and what follows it
  SmallVector<ActionOp> prologues;
  for (auto value : stage.getOps<ValueOp>())
    if (value.getKind() == ValueKind::activation)
      made.insert(value.getSymName());
  auto addSums = [&](ActionOp action) {
    for (auto store : action.getOps<StoreOp>())
      if (store.getAccumulate())
        sums.insert(store.getValue());
  };
  for (auto action : stage.getOps<ActionOp>())
    if (action.getKind() == Action::F)
      addSums(action);
    else if (action.getKind() == Action::P)
      prologues.push_back(action);
  llvm::sort(prologues, [](ActionOp a, ActionOp b) {
    return a.getChunk() < b.getChunk();
  });
  for (ActionOp action : prologues)
    if (llvm::any_of(action.getOps<LoadOp>(), [&](LoadOp load) {
          return made.count(load.getValue()) || sums.count(load.getValue());
        })) {
      out.passes.insert(static_cast<int>(action.getChunk()));
      addSums(action);
    }
  for (auto action : stage.getOps<ActionOp>()) {
    Action kind = action.getKind();
    if (kind != Action::B && kind != Action::W &&
        (kind != Action::P ||
         !out.passes.count(static_cast<int>(action.getChunk()))))
      continue;
    for (auto load : action.getOps<LoadOp>())
      if (sums.count(load.getValue()) && out.sum.empty())
        out.sum = load.getValue().str();
  }
  return out;
}

LogicalResult reportAll(ModuleOp module, const std::string &prefix,
                        const Status &status) {
  for (const std::string &message : status.messages())
    module.emitError(prefix + message);
  return failure(!status.ok());
}

// The stages of a pipeline, and which of the step's microbatches it trains.
struct Pipeline {
  std::string prefix; // of what is said about it
  SmallVector<StageOp> stages;
  int firstStage = 0, firstMicrobatch = 0, microbatches = 0;
  int ofStep = 0; // microbatches: the prologue goes over all of them
  bool isOneOfSeveral() const { return !prefix.empty(); }
};

std::vector<Pipeline> findPipelines(ModuleOp module, int64_t microbatches) {
  std::vector<Pipeline> all;
  for (auto [index, stage] : llvm::enumerate(module.getOps<StageOp>())) {
    auto of = stage->getAttrOfType<DenseI64ArrayAttr>(dist::kPipelineAttr);
    if (all.empty() || (of && of[0] == static_cast<int64_t>(all.size()))) {
      Pipeline &own = all.emplace_back();
      own.firstStage = static_cast<int>(index);
      own.microbatches = own.ofStep = static_cast<int>(microbatches);
      if (of) {
        own.prefix = "pipeline " + std::to_string(of[0]) + ": ";
        own.firstMicrobatch = static_cast<int>(of[1]);
        own.microbatches = static_cast<int>(of[2]);
      }
    }
    all.back().stages.push_back(stage);
  }
  return all;
}

// Sets the schedules of the stages of a pipeline, by a name or by lists.
LogicalResult attachTo(const Pipeline &pipeline, ModuleOp module,
                       const std::string &name,
                       const planning::Schedule *userSchedule,
                       planning::Schedule *used) {
  SmallVector<StageOp> stages = pipeline.stages;
  std::vector<std::set<ActionId>> present(stages.size());
  std::vector<char> recomputes(stages.size(), 0);
  int chunks = 1;
  bool prologue = false, backward = false, update = false;
  for (auto [index, stage] : llvm::enumerate(stages))
    for (ActionOp action : stage.getOps<ActionOp>()) {
      int chunk = static_cast<int>(action.getChunk());
      present[index].insert({action.getKind(), chunk});
      // Of the prologue it counts the times that it goes over the microbatches.
      if (action.getKind() != Action::P)
        chunks = std::max(chunks, chunk + 1);
      recomputes[index] |= action.getKind() == Action::R;
      prologue |= action.getKind() == Action::P;
      update |= action.getKind() == Action::U;
      backward |=
          action.getKind() == Action::B || action.getKind() == Action::W;
    }
  planning::ScheduleOptions options;
  options.stages = static_cast<int>(stages.size());
  options.microbatches = pipeline.microbatches;
  options.splitBackward = true;
  options.chunks = chunks;
  options.recomputeStages.assign(recomputes.begin(), recomputes.end());
  options.prologue = prologue && !pipeline.isOneOfSeveral();
  options.update = update;
  Result<planning::Schedule> made =
      userSchedule ? Result<planning::Schedule>(*userSchedule)
                   : planning::makeSchedule(name, options);
  if (!made.ok())
    return reportAll(module, pipeline.prefix, made.status());
  const planning::Schedule &schedule = *made;
  planning::CheckOptions check;
  check.stages = options.stages;
  check.microbatches = options.microbatches;
  check.chunks = options.chunks;
  if (userSchedule)
    check.file = name;
  llvm::DenseMap<StringAttr, int> indices;
  std::vector<llvm::StringMap<ActionOp>> readers; // by stage
  for (auto [index, stage] : llvm::enumerate(stages)) {
    indices[stage.getSymNameAttr()] = static_cast<int>(index);
    readers.push_back(firstReaders(stage));
  }
  for (TransferOp transfer : module.getOps<TransferOp>()) {
    if (transfer.getKind() == Action::S ||
        !indices.contains(transfer.getSource().getRootReference()))
      continue;
    auto indexOf = [&](SymbolRefAttr path) {
      return indices.lookup(path.getRootReference());
    };
    planning::Transfer t;
    t.fromStage = indexOf(transfer.getSource());
    t.toStage = indexOf(transfer.getTarget());
    t.fromAction = t.toAction = inPlanning(transfer.getKind());
    t.fromChunk = t.toChunk = static_cast<int>(transfer.getChunk());
    if (ActionOp reader = readers[t.toStage].lookup(
            transfer.getTarget().getLeafReference().getValue())) {
      // Passes after the forward one come before the first B.
      t.toAction = reader.getKind() == Action::P ? Action::B
                                                 : inPlanning(reader.getKind());
      // Where B stands for both gradients.
      if (t.toAction == Action::W &&
          t.toStage < static_cast<int>(schedule.order.size()) &&
          llvm::none_of(schedule.order[t.toStage],
                        [](Step step) { return step.action == Action::W; }))
        t.toAction = Action::B;
      t.toChunk = reader.getKind() == Action::P
                      ? 0
                      : static_cast<int>(reader.getChunk());
    }
    check.transfers.push_back(t);
  }
  if (backward || userSchedule)
    if (failed(reportAll(module, pipeline.prefix,
                         planning::checkSchedule(schedule, check))))
      return failure();
  if (used && pipeline.isOneOfSeveral())
    planning::append(schedule, pipeline.firstMicrobatch, *used);
  else if (used)
    *used = schedule;
  remark::passed(module.getLoc(),
                 remark::RemarkOpts::name("Attached").category("schedule"))
      << (schedule.name + " of " + std::to_string(schedule.microbatches) +
          " microbatches");
  Builder b(module.getContext());
  for (auto [index, stage] : llvm::enumerate(stages)) {
    std::vector<Step> order;
    auto has = [&](Action action, int chunk = 0) {
      return present[index].count({action, chunk}) != 0;
    };
    // A list without R or W, where the stage has that action: recomputation
    // waits for the gradient, B stands for both gradients. P is done first and
    // U last where the list leaves them out.
    bool listsR = false, listsW = false, listsP = false, listsU = false;
    for (const Step &step : schedule.order[index]) {
      listsR |= step.action == Action::R;
      listsW |= step.action == Action::W;
      listsP |= step.action == Action::P;
      listsU |= step.action == Action::U;
    }
    auto appendUpdate = [&] {
      if (has(Action::S))
        order.push_back({Action::S});
      if (has(Action::U))
        order.push_back({Action::U});
    };
    AfterForward after = findAfterForward(stage);
    auto appendPrologue = [&](bool early, int from) {
      for (const ActionId &id : present[index])
        if (id.action == Action::P && id.chunk >= from &&
            early == !after.passes.count(id.chunk))
          for (int i = 0; i < pipeline.ofStep; ++i)
            order.push_back({Action::P, i, id.chunk});
    };
    if (has(Action::G))
      order.push_back({Action::G});
    if (!listsP)
      appendPrologue(true, 0);
    int64_t forwards = 0;
    for (const Step &step : schedule.order[index])
      forwards += step.action == Action::F;
    bool isAfter = false;
    for (const Step &step : schedule.order[index]) {
      bool isForward = step.action == Action::F;
      forwards -= isForward;
      if (!isForward && step.action != Action::P && !isAfter) {
        isAfter = true;
        if (forwards > 0 && !after.sum.empty())
          return module.emitError(pipeline.prefix +
                                  (userSchedule ? name + ": stage " : "stage "))
                 << index << ": " << str(step)
                 << " stands before the last forward, but gradients need a sum "
                    "over all microbatches ('"
                 << after.sum
                 << "'); run all forwards first, as --schedule=gpipe does";
        appendPrologue(false, 0);
      }
      if (step.action == Action::U) {
        appendUpdate();
        continue;
      }
      auto append = [&](Action action) {
        order.push_back(
            {action, pipeline.firstMicrobatch + step.microbatch, step.chunk});
      };
      bool isB = step.action == Action::B;
      if (isB && !listsR && has(Action::R, step.chunk))
        append(Action::R);
      if (has(step.action, step.chunk) &&
          (step.action != Action::P || !after.passes.count(0))) {
        order.push_back(step);
        if (!isOncePerStep(step.action))
          order.back().microbatch += pipeline.firstMicrobatch;
      }
      if (isB && !listsW && has(Action::W, step.chunk))
        append(Action::W);
      if (step.action == Action::P &&
          step.microbatch + 1 == pipeline.microbatches)
        appendPrologue(true, 1);
    }
    if (!listsU)
      appendUpdate();
    stage.setScheduleAttr(ScheduleAttr::get(b.getContext(), order));
  }
  return success();
}

} // namespace

LogicalResult merak::attachSchedule(ModuleOp module, const std::string &name,
                                    int64_t microbatches,
                                    const planning::Schedule *userSchedule,
                                    planning::Schedule *used) {
  planning::Schedule all;
  all.name = userSchedule ? userSchedule->name : name;
  for (const Pipeline &pipeline : findPipelines(module, microbatches)) {
    std::optional<planning::Schedule> own;
    if (userSchedule && pipeline.isOneOfSeveral())
      own = planning::listsOfPipeline(*userSchedule, pipeline.firstStage,
                                      static_cast<int>(pipeline.stages.size()),
                                      pipeline.firstMicrobatch,
                                      pipeline.microbatches);
    if (failed(
            attachTo(pipeline, module, name, own ? &*own : userSchedule, &all)))
      return failure();
  }
  if (used)
    *used = std::move(all);
  return success();
}

// As many microbatches and chunks as the orders of the stages name.
static planning::Schedule scheduleOf(const std::string &name, ArrayAttr orders,
                                     int64_t microbatches) {
  planning::Schedule schedule;
  schedule.name = name;
  schedule.stages = static_cast<int>(orders.size());
  for (auto order : orders.getAsRange<ScheduleAttr>()) {
    for (const Step &step : schedule.order.emplace_back(order.getSteps())) {
      schedule.microbatches =
          std::max(schedule.microbatches, step.microbatch + 1);
      if (step.action != Action::P) // whose chunks are passes
        schedule.chunks = std::max(schedule.chunks, step.chunk + 1);
    }
  }
  if (microbatches > 0)
    schedule.microbatches = static_cast<int>(microbatches);
  return schedule;
}

LogicalResult merak::attachDecidedSchedule(ModuleOp module,
                                           const std::string &asked,
                                           planning::Schedule *used) {
  auto mesh = module->getAttrOfType<dist::MeshAttr>(dist::kMeshAttr);
  if (!mesh)
    return module.emitError("expected the attribute 'dist.mesh'");
  auto decision = module->getAttrOfType<DecisionAttr>(kDecisionAttr);
  std::string name = asked;
  std::optional<planning::Schedule> lists;
  if (decision && name.empty()) {
    name = decision.getSchedule().str();
    if (ArrayAttr orders = decision.getOrders())
      lists = scheduleOf(name, orders, decision.getMicrobatches());
  }
  return attachSchedule(module, name.empty() ? "1f1b" : name,
                        mesh.getSize(kMicrobatchAxis) / submicrobatches(module),
                        lists ? &*lists : nullptr, used);
}

namespace merak {
#define GEN_PASS_DEF_ATTACHSCHEDULE
#include "passes/Scheduling/Passes.h.inc"
} // namespace merak

namespace {
struct AttachSchedulePass
    : merak::impl::AttachScheduleBase<AttachSchedulePass> {
  using AttachScheduleBase::AttachScheduleBase;
  void runOnOperation() override {
    if (failed(attachDecidedSchedule(getOperation(), schedule)))
      signalPassFailure();
  }
};
} // namespace
