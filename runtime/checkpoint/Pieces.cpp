#include "runtime/checkpoint/Pieces.h"

#include "runtime/checkpoint/HeldTensors.h"
#include "runtime/checkpoint/HostCopy.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

namespace merak::runtime {
namespace {

const char *roleName(planpb::Tensor::Role role) {
  switch (role) {
  case planpb::Tensor::PARAMETER:
    return "parameter";
  case planpb::Tensor::FROZEN:
    return "frozen";
  case planpb::Tensor::OPTIMIZER:
    return "optimizer";
  case planpb::Tensor::STATISTIC:
    return "statistic";
  default:
    return "constant";
  }
}

// Whether the pieces so far hold the whole box: a replica, or a stage that
// splits the tensor differently. Earlier pieces are disjoint or equal.
bool isWritten(const TensorPieces &tensor, const layout::Box &box) {
  int64_t covered = 0;
  for (const Piece &piece : tensor.pieces)
    for (const layout::Overlap &overlap : layout::overlaps({piece.box}, {box}))
      covered += layout::Box{{}, {}, overlap.extent}.elements();
  return covered >= box.elements();
}

std::vector<int64_t> shapeOf(const planpb::Tensor &tensor) {
  return {tensor.shape().begin(), tensor.shape().end()};
}

// Whether any of the words has all bits of `exponent`: infinite or no number.
template <typename Word>
bool anyFull(const char *data, int64_t bytes, Word exponent) {
  bool found = false;
  for (int64_t i = 0; i < bytes / int64_t(sizeof(Word)); ++i) {
    Word word;
    std::memcpy(&word, data + i * int64_t(sizeof(Word)), sizeof(Word));
    found |= (word & exponent) == exponent;
  }
  return found;
}

} // namespace

std::vector<TensorPieces> assignPieces(const LoadedPlan &plan) {
  std::vector<TensorPieces> result;
  for (const HeldTensor &held : heldTensors(plan)) {
    TensorPieces &target = result.emplace_back();
    target.tensor = held.tensor;
    for (const HeldBuffer &where : ofOneMesh(plan, held.values)) {
      const planpb::Buffer &buffer =
          plan.programOf(where.rank).buffers(where.buffer);
      for (const layout::Box &box : layout::boxes(
               fromProto(buffer.layout()), layoutMesh(plan.file, where.rank),
               coordsOf(plan.file, where.rank))) {
        if (isWritten(target, box))
          continue;
        Piece piece{where.rank, where.buffer, box, buffer.tensor()};
        if (box.extent != shapeOf(*target.tensor))
          piece.key += fmt::format("@{}", fmt::join(box.globalOrigin, ","));
        target.pieces.push_back(std::move(piece));
      }
    }
  }
  return result;
}

Manifest manifestOf(const LoadedPlan &plan,
                    const std::vector<TensorPieces> &tensors,
                    const CheckpointState &state) {
  Manifest manifest;
  manifest.model = plan.file.model();
  manifest.state = state;
  for (const TensorPieces &entry : tensors) {
    ManifestTensor tensor;
    tensor.dtype = entry.tensor->dtype();
    tensor.shape = shapeOf(*entry.tensor);
    tensor.role = roleName(entry.tensor->role());
    for (const Piece &piece : entry.pieces)
      tensor.pieces.push_back({shardName(piece.rank), piece.key,
                               piece.box.globalOrigin, piece.box.extent});
    manifest.tensors.emplace_back(entry.tensor->name(), std::move(tensor));
  }
  return manifest;
}

Status readPieceOf(const RankMemory &rank, const Piece &piece,
                   planpb::DType dtype, char *data) {
  auto copy = HostCopy::of(rank, piece.buffer);
  if (!copy)
    return copy.status();
  const std::vector<int64_t> zero(piece.box.extent.size(), 0);
  layout::copyBox(copy->data(), copy->shape(), piece.box.localOrigin, data,
                  piece.box.extent, zero, piece.box.extent, dtypeSize(dtype));
  return {};
}

int64_t bytesOf(const Piece &piece, planpb::DType dtype) {
  return piece.box.elements() * dtypeSize(dtype);
}

bool isTrained(const planpb::Tensor &tensor) {
  return tensor.role() == planpb::Tensor::PARAMETER ||
         tensor.role() == planpb::Tensor::OPTIMIZER ||
         tensor.role() == planpb::Tensor::STATISTIC;
}

bool allFinite(planpb::DType dtype, const char *data, int64_t bytes) {
  switch (dtype) {
  case planpb::F32:
    return !anyFull<uint32_t>(data, bytes, 0x7f800000u);
  case planpb::F64:
    return !anyFull<uint64_t>(data, bytes, 0x7ff0000000000000u);
  case planpb::BF16:
    return !anyFull<uint16_t>(data, bytes, 0x7f80u);
  case planpb::F16:
    return !anyFull<uint16_t>(data, bytes, 0x7c00u);
  default:
    return true;
  }
}

} // namespace merak::runtime
