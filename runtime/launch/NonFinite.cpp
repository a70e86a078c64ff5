// Steps whose loss or gradients are not finite: whether there are any is read
// off the norm and the outputs, which every step computes; where they began is
// asked only then.
#include "runtime/launch/SessionRank.h"

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
  const layout::AxisMap mesh = layoutMesh(plan.file);
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

// Every rank has the norm of all gradients, and so every process.
bool Session::normIsFinite() const {
  const Rank &rank = *ranks_[0];
  const planpb::Program &program = rank.program->proto();
  for (const planpb::Output &output : program.outputs()) {
    if (output.name() != "grad_norm")
      continue;
    float norm = 0;
    const planpb::Buffer &buffer = program.buffers(int(output.buffer()));
    if (buffer.dtype() != planpb::F32 ||
        !rank.backend
             ->copyToHost(&norm, rank.program->bufferData(int(output.buffer())),
                          sizeof(norm), rank.program->stream(0))
             .ok())
      continue;
    return std::isfinite(norm);
  }
  return true;
}

Status Session::judge(StepResult &result) {
  const bool finite = normIsFinite();
  result.skipped = !finite && plan_.file.optimizer().guarded();
  skipped_ += result.skipped;
  if (options_.onNonFinite != OnNonFinite::stop || plan_.file.mode() != "train")
    return {};
  std::string what;
  for (const auto &[name, value] : result.outputs)
    if (!std::isfinite(value) && name != "grad_norm")
      what += fmt::format("{}{} is {}", what.empty() ? "" : ", ", name, value);
  if (finite && what.empty())
    return {};
  if (what.empty())
    what = "gradients are not finite";
  const int64_t first = data_ ? data_->position(nextStep_ - 1)
                              : (nextStep_ - 1) * plan_.file.global_batch();
  Status status = Status::error(fmt::format(
      "step {}: {} ({}); --on-nonfinite=skip or ignore goes on", result.step,
      what, rangeText(first, {0, plan_.file.global_batch()})));
  // The norm is what all processes know; then all look.
  if (!finite)
    status.merge(locate(first));
  // Rank 0's process speaks for all, unless another one knows more.
  if (Store *store = world_->store();
      store && store->rank() != 0 && status.messages().size() == 1)
    return Status::error("");
  return status;
}

// Repeats the step, if it has changed nothing, and looks at every value.
Status Session::locate(int64_t first) {
  if (!plan_.file.optimizer().guarded())
    return {};
  for (const auto &rank : ranks_) {
    rank->executor->dropCapture();
    rank->executor->checkNumerics(true);
  }
  Status status = runRanks(scalars_);
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (const auto microbatch = ranks_[i]->executor->nonFinite())
      return Status::error(fmt::format(
          "  first in {} of rank {}: {}",
          rangeText(first, rowsOf(plan_, world_->ranks()[i], *microbatch)),
          world_->ranks()[i], ranks_[i]->executor->failure().str()));
  return {};
}

} // namespace merak::runtime
