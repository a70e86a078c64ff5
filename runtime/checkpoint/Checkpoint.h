// Checkpoints: parameters, optimizer state, step and data position in global
// names and boxes, so that any plan of the same model continues from them.
//
//   DIR/index.json            step, samples, for each tensor its pieces
//   DIR/rank-<r>.safetensors  the boxes that rank r writes
//
// Each box is written once, by the first rank that holds it.
#pragma once

#include "runtime/checkpoint/TensorStore.h"
#include "runtime/comm/rendezvous/Store.h"
#include "runtime/core/RankProgram.h"

#include <functional>
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
// replaced; anything else is refused. If other processes have ranks too, each
// calls this with its own and the store where they meet; all get the same
// outcome (see `agree`). `dir` must lie on a file system that all see.
Status saveCheckpoint(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                      const std::string &dir, const CheckpointState &state,
                      Store *store = nullptr);

// Opens a checkpoint folder or a plain .safetensors file with parameters, and
// adds its tensors to the store. Lists everything that does not fit the plan:
// missing and unknown parameters, other shapes or types.
Status openCheckpoint(const LoadedPlan &plan, const std::string &path,
                      TensorStore &store, CheckpointState &state);

// Collects the gradients ("grad:<parameter>" buffers) of all ranks into one
// file, each under its parameter's name. With a store the process of rank 0
// writes; the others send it what they hold.
Status saveGradients(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                     const std::string &path, Store *store = nullptr);

// Copies a global tensor together from the buffers of all ranks. `held`: the
// (rank, buffer index) pairs that hold boxes of it; partial layouts are summed.
struct HeldBuffer {
  int rank = 0, buffer = 0;
};
// How bytes of ranks of other processes get to the one that asks.
class Relay {
public:
  Relay(std::span<const RankMemory> ranks, Store *store, std::string name)
      : ranks_(ranks), store_(store), name_(std::move(name)) {}
  // The rank's memory, if it is one of this process.
  const RankMemory *local(int rank) const;
  bool leads() const { return !store_ || store_->rank() == 0; }
  // Called by all processes in the same order for the same pieces. `make` fills
  // the bytes where the rank is local; they arrive in rank 0's process. Returns
  // false elsewhere.
  Result<bool> piece(int rank, std::vector<char> &bytes,
                     const std::function<Status(const RankMemory &)> &make);

private:
  std::span<const RankMemory> ranks_;
  Store *store_;
  std::string name_;
  int64_t next_ = 0;
};
// `data` (dense, global shape) is filled in rank 0's process only.
Status gatherTensor(const LoadedPlan &plan, Relay &relay,
                    const std::vector<HeldBuffer> &held,
                    const std::vector<int64_t> &shape, planpb::DType dtype,
                    char *data);

} // namespace merak::runtime
