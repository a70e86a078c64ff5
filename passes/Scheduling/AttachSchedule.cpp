#include "passes/Scheduling/AttachSchedule.h"

#include "dialects/Pipe/FirstReaders.h"
#include "passes/Planning/ScheduleCheck.h"
#include "passes/Scheduling/Passes.h"
#include <set>

using namespace mlir;
using namespace merak;
using namespace merak::pipe;

namespace {

planning::Action toPlanning(pipe::Action action) {
  switch (action) {
  case pipe::Action::P:
    return planning::Action::P;
  case pipe::Action::F:
    return planning::Action::F;
  case pipe::Action::R:
    return planning::Action::R;
  case pipe::Action::B:
    return planning::Action::B;
  case pipe::Action::W:
    return planning::Action::W;
  case pipe::Action::U:
  case pipe::Action::S:
    return planning::Action::U;
  }
  return planning::Action::U;
}

LogicalResult reportAll(ModuleOp module, const Status &status) {
  for (const std::string &message : status.messages())
    module.emitError(message);
  return failure(!status.ok());
}

} // namespace

LogicalResult merak::attachSchedule(ModuleOp module, const std::string &name,
                                    int64_t microbatches,
                                    const planning::Schedule *userSchedule,
                                    planning::Schedule *used) {
  SmallVector<StageOp> stages(module.getOps<StageOp>());
  using Key = std::pair<pipe::Action, int>; // with the chunk
  std::vector<std::set<Key>> present(stages.size());
  std::vector<char> recomputes(stages.size(), 0);
  int chunks = 1;
  bool prologue = false, backward = false, update = false;
  for (auto [index, stage] : llvm::enumerate(stages))
    for (ActionOp action : stage.getOps<ActionOp>()) {
      int chunk = static_cast<int>(action.getChunk());
      present[index].insert({action.getKind(), chunk});
      chunks = std::max(chunks, chunk + 1);
      recomputes[index] |= action.getKind() == pipe::Action::R;
      prologue |= action.getKind() == pipe::Action::P;
      update |= action.getKind() == pipe::Action::U;
      backward |= action.getKind() == pipe::Action::B ||
                  action.getKind() == pipe::Action::W;
    }
  planning::ScheduleOptions options;
  options.stages = static_cast<int>(stages.size());
  options.microbatches = static_cast<int>(microbatches);
  options.splitBackward = true;
  options.chunks = chunks;
  options.recomputeStages.assign(recomputes.begin(), recomputes.end());
  options.prologue = prologue;
  options.update = update;
  Result<planning::Schedule> made =
      userSchedule ? Result<planning::Schedule>(*userSchedule)
                   : planning::makeSchedule(name, options);
  if (!made.ok())
    return reportAll(module, made.status());
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
    if (transfer.getKind() == pipe::Action::S)
      continue;
    auto indexOf = [&](SymbolRefAttr path) {
      return indices.lookup(path.getRootReference());
    };
    planning::Transfer t;
    t.fromStage = indexOf(transfer.getSource());
    t.toStage = indexOf(transfer.getTarget());
    t.fromAction = t.toAction = toPlanning(transfer.getKind());
    t.fromChunk = t.toChunk = static_cast<int>(transfer.getChunk());
    if (ActionOp reader = readers[t.toStage].lookup(
            transfer.getTarget().getLeafReference().getValue())) {
      t.toAction = toPlanning(reader.getKind());
      // Where B stands for both gradients.
      if (t.toAction == planning::Action::W &&
          t.toStage < static_cast<int>(schedule.order.size()) &&
          llvm::none_of(schedule.order[t.toStage], [](planning::Step step) {
            return step.action == planning::Action::W;
          }))
        t.toAction = planning::Action::B;
      t.toChunk = static_cast<int>(reader.getChunk());
    }
    check.transfers.push_back(t);
  }
  if (backward || userSchedule)
    if (failed(reportAll(module, planning::checkSchedule(schedule, check))))
      return failure();
  if (used)
    *used = schedule;
  Builder b(module.getContext());
  for (auto [index, stage] : llvm::enumerate(stages)) {
    std::string text;
    auto append = [&](const std::string &word) {
      text += (text.empty() ? "" : " ") + word;
    };
    auto has = [&](pipe::Action action, int chunk = 0) {
      return present[index].count({action, chunk}) != 0;
    };
    // A list without R or W, where the stage has that action: recomputation
    // waits for the gradient, B stands for both gradients. P is done first and
    // U last where the list leaves them out.
    bool listsR = false, listsW = false, listsP = false, listsU = false;
    std::set<std::pair<int, int>> early; // microbatch, chunk
    for (const planning::Step &step : schedule.order[index]) {
      listsR |= step.action == planning::Action::R;
      listsW |= step.action == planning::Action::W;
      listsP |= step.action == planning::Action::P;
      listsU |= step.action == planning::Action::U;
      if (step.action == planning::Action::R && step.early &&
          has(pipe::Action::R, step.chunk))
        early.insert({step.microbatch, step.chunk});
    }
    auto appendUpdate = [&] {
      if (has(pipe::Action::S))
        append("S");
      if (has(pipe::Action::U))
        append("U");
    };
    if (!listsP && has(pipe::Action::P))
      for (int64_t i = 0; i < microbatches; ++i)
        append("P" + std::to_string(i));
    for (const planning::Step &step : schedule.order[index]) {
      if (step.action == planning::Action::U) {
        appendUpdate();
        continue;
      }
      pipe::Action action =
          step.action == planning::Action::P   ? pipe::Action::P
          : step.action == planning::Action::F ? pipe::Action::F
          : step.action == planning::Action::R ? pipe::Action::R
          : step.action == planning::Action::B ? pipe::Action::B
                                               : pipe::Action::W;
      std::string word = planning::str(step), number = word.substr(1);
      bool isB = step.action == planning::Action::B;
      if (isB && !listsR && has(pipe::Action::R, step.chunk))
        append("r" + number);
      if (step.action == planning::Action::F &&
          early.count({step.microbatch, step.chunk}))
        append("f" + number);
      else if (has(action, step.chunk))
        append(word);
      if (isB && !listsW && has(pipe::Action::W, step.chunk))
        append("W" + number);
    }
    if (!listsU)
      appendUpdate();
    stage.setScheduleAttr(b.getStringAttr(text));
  }
  return success();
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
    auto mesh = getOperation()->getAttrOfType<dist::MeshAttr>(dist::kMeshAttr);
    if (!mesh) {
      getOperation().emitError("expected the attribute 'dist.mesh'");
      return signalPassFailure();
    }
    if (failed(attachSchedule(getOperation(), schedule,
                              mesh.getSize("mb") / subBatches(getOperation()),
                              nullptr)))
      signalPassFailure();
  }
};
} // namespace
