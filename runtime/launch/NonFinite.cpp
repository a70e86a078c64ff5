// Steps whose loss or gradients are not finite: whether there are any is read
// off the norm and the outputs, which every step computes; where they began is
// asked only then.
#include "runtime/launch/SessionRank.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/Norms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace merak::runtime {
namespace {

using planpb::Instruction;

// Rows of the global batch that a microbatch of the rank, or its stage's
// neighbours in the pipeline, reads; -1: all microbatches.
std::pair<int64_t, int64_t> rowsOf(const LoadedPlan &plan, int rank,
                                   int64_t microbatch) {
  const layout::AxisMap mesh = layoutMesh(plan.file, rank);
  layout::AxisMap coords = coordsOf(plan.file, rank);
  const int64_t parts = submicrobatches(plan.file);
  const int64_t count = std::max<int64_t>(1, plan.file.microbatches());
  int64_t begin = INT64_MAX, end = 0;
  auto add = [&](const layout::Layout &layout) {
    for (int64_t mb = 0; mb < count * parts; ++mb) {
      if (microbatch >= 0 && mb / parts != microbatch)
        continue;
      coords["mb"] = mb;
      for (const layout::Box &box : layout::boxes(layout, mesh, coords)) {
        begin = std::min(begin, box.globalOrigin[0]);
        end = std::max(end, box.globalOrigin[0] + box.extent[0]);
      }
    }
  };
  for (const planpb::Program &program : plan.programs)
    for (const planpb::Procedure &procedure : program.procedures())
      for (const Instruction &instruction : procedure.instructions()) {
        if (instruction.kind() != Instruction::LOAD_INPUT)
          continue;
        const bool batched = std::any_of(
            plan.file.inputs().begin(), plan.file.inputs().end(),
            [&](const planpb::Input &input) {
              return input.name() == instruction.op() && input.batched();
            });
        const layout::Layout layout = fromProto(
            program.buffers(int(instruction.outputs(0).buffer())).layout());
        if (batched && !layout.dims.empty())
          add(layout);
      }
  if (begin >= end)
    return {0, plan.file.global_batch()};
  return {begin, end};
}

std::string rangeText(int64_t first, std::pair<int64_t, int64_t> rows) {
  return fmt::format("samples {}..{}", first + rows.first,
                     first + rows.second - 1);
}

} // namespace

// Outputs are read by rank 0's process. Where all have to know, each reads the
// norm of a rank of its own, which all ranks have.
Result<bool> Session::gradientsFinite(const StepResult &result) const {
  if (!lossScale_) {
    return std::all_of(
        result.outputs.begin(), result.outputs.end(), [](const auto &output) {
          return !isNorm(output.first) || std::isfinite(output.second);
        });
  }
  const RankMemory &rank = memories_.front();
  for (const planpb::Output &output : rank.program->proto().outputs()) {
    if (!isNorm(output.name()))
      continue;
    float norm = 0;
    MERAK_RETURN_IF_ERROR(rank.backend->copyToHost(
        &norm, rank.program->bufferData(static_cast<int>(output.buffer())),
        sizeof(norm), rank.program->stream(0)));
    return std::isfinite(norm);
  }
  return Status::error("the plan scales the loss, but gives no norm of the "
                       "gradients out");
}

void Session::judge(StepResult &result, bool finite) {
  std::string bad;
  for (const auto &[name, value] : result.outputs)
    if (!isNorm(name) && !std::isfinite(value))
      bad += fmt::format("{}{} is {}", bad.empty() ? "" : ", ", name, value);
  result.skipped = !finite && plan_.file.optimizer().guarded();
  skipped_ += result.skipped;
  const bool isLeast = lossScale_ && !lossScale_->canFall();
  result.overflowed = !finite && lossScale_ && !isLeast;
  if (lossScale_)
    lossScale_->learn(finite);
  if (options_.onNonFinite != OnNonFinite::stop || plan_.file.mode() != "train")
    return;
  if (!bad.empty() || finite || result.overflowed)
    result.bad = bad;
  else
    result.bad = isLeast ? fmt::format("gradients are not finite with a loss "
                                       "scale of {}, which falls no further",
                                       result.lossScale)
                         : "gradients are not finite";
}

Status Session::explain(int64_t step, const std::string &bad) {
  Status status;
  if (!bad.empty())
    status = Status::error(fmt::format(
        "step {}: {} ({}); --on-nonfinite=skip or ignore goes on", step, bad,
        rangeText(firstSample(step), {0, plan_.file.global_batch()})));
  // What was begun before is good: it is finished first.
  if (saves_)
    status.merge(saves_->wait());
  status.merge(locate(step));
  // Whoever knows more speaks; of the others it is enough that they end.
  return status.ok() ? Status::error("") : status;
}

int64_t Session::firstSample(int64_t step) const {
  return data_ ? data_->position(step - 1)
               : (step - 1) * plan_.file.global_batch();
}

// Repeats the step, which has changed nothing, and looks at every value.
Status Session::locate(int64_t step) {
  if (!plan_.file.optimizer().guarded())
    return {};
  StepScalars scalars = scalars_;
  scalars.step = step - 1;
  // What the step has left for the next one is no part of it.
  MERAK_RETURN_IF_ERROR(runEntries(kFlushEntry));
  for (const auto &rank : ranks_) {
    rank->executor->dropCapture();
    rank->executor->checkNumerics(true);
  }
  (void)runRanks(scalars); // ends at the value
  Status status;
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (const auto microbatch = ranks_[i]->executor->nonFinite())
      status.merge(Status::error(fmt::format(
          "step {}: first in {} of rank {}: {}", step,
          rangeText(firstSample(step),
                    rowsOf(plan_, world_->ranks()[i], *microbatch)),
          world_->ranks()[i], ranks_[i]->executor->failure().str())));
  return status;
}

} // namespace merak::runtime
