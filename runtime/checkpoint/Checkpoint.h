// Checkpoints: parameters, optimizer state, step and data position in global
// names and boxes, so that any plan of the same model continues from them.
//
//   DIR/index.json            step, samples, for each tensor its pieces
//   DIR/rank-<r>.safetensors  the boxes that rank r writes
//
// Each box is written once, by the first rank that holds it.
#pragma once

#include "runtime/checkpoint/TensorStore.h"
#include "runtime/core/RankProgram.h"

#include <span>

namespace merak::runtime {

// A rank of this process: its buffers and how to reach them.
struct RankMemory {
  RankProgram *program = nullptr;
  Backend *backend = nullptr;
};

struct CheckpointState {
  int64_t step = 0;    // steps done
  int64_t samples = 0; // samples consumed
  // Note for the user, e.g. that there was no optimizer state; may be empty.
  std::string note;
};

// Fills every buffer that holds a tensor of the plan from the store.
Status loadTensors(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                   const TensorStore &store);

// Writes into a folder beside `dir` and renames. A checkpoint that is there is
// replaced; anything else is refused.
Status saveCheckpoint(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                      const std::string &dir, const CheckpointState &state);

// Opens a checkpoint folder or a plain .safetensors file with parameters, and
// adds its tensors to the store. Lists everything that does not fit the plan:
// missing and unknown parameters, other shapes or types.
Status openCheckpoint(const LoadedPlan &plan, const std::string &path,
                      TensorStore &store, CheckpointState &state);

// Collects the gradients ("grad:<parameter>" buffers) of all ranks into one
// file, each under its parameter's name.
Status saveGradients(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                     const std::string &path);

// Copies a global tensor together from the buffers of all ranks. `buffers`:
// (rank index, buffer index) pairs that hold boxes of it; partial layouts are
// summed.
struct HeldBuffer {
  int rank = 0, buffer = 0;
};
Status gatherTensor(std::span<const RankMemory> ranks,
                    const std::vector<HeldBuffer> &held,
                    const std::vector<int64_t> &shape, planpb::DType dtype,
                    char *data);

} // namespace merak::runtime
