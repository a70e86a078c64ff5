// Which rank writes which boxes of which tensors, and the bytes of them.
#pragma once

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/Manifest.h"

namespace merak::runtime {

// A box of a tensor and the buffer it is written from.
struct Piece {
  int rank = 0, buffer = 0;
  layout::Box box;
  std::string key; // in the shard
};
struct TensorPieces {
  const planpb::Tensor *tensor = nullptr;
  std::vector<Piece> pieces; // each element of the tensor once
};

// Decides from the plan alone: every process of a run comes to the same answer.
// Each box is written by the first rank that holds it.
std::vector<TensorPieces> assignPieces(const LoadedPlan &plan);

// All of a manifest but what the shards will be.
Manifest manifestOf(const LoadedPlan &plan,
                    const std::vector<TensorPieces> &tensors,
                    const CheckpointState &state);

// The bytes of a piece, dense, from the memory of its rank.
Status readPieceOf(const RankMemory &rank, const Piece &piece,
                   planpb::DType dtype, char *data);
int64_t bytesOf(const Piece &piece, planpb::DType dtype);

// Whether training changes the tensor, so that a value that is not finite is a
// run gone wrong.
bool isTrained(const planpb::Tensor &tensor);
// Whether all values (f32, f64, bf16, f16) are finite; others are.
bool allFinite(planpb::DType dtype, const char *data, int64_t bytes);

} // namespace merak::runtime
