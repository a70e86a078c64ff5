// Checkpoints: parameters, optimizer state, step and data position in global
// names and boxes, so that any plan of the same model continues from them.
// Generations.h says how they lie in their folder, Manifest.h what one holds.
#pragma once

#include "runtime/checkpoint/CheckpointState.h"
#include "runtime/checkpoint/HeldTensors.h"
#include "runtime/checkpoint/TensorStore.h"
#include "runtime/comm/rendezvous/Store.h"
#include "runtime/core/RankProgram.h"

#include <functional>
#include <set>
#include <span>

namespace merak::runtime {

// A rank of this process: its buffers and how to reach them.
struct RankMemory {
  RankProgram *program = nullptr;
  Backend *backend = nullptr;
};

// Fills every buffer that holds a tensor of the plan from the store.
Status loadTensors(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                   const TensorStore &store);

// Opens a generation, the newest of a folder of them, an older checkpoint, or a
// plain .safetensors file with parameters, and adds its tensors to the store.
// Everything is checked: what a file is against what was written, each element
// of each tensor, once; and all that does not fit the plan is listed: missing
// and unknown parameters, other shapes or types. `ranks`: only files that hold
// what these ranks need are read; empty: all.
Status openCheckpoint(const LoadedPlan &plan, const std::string &path,
                      TensorStore &store, CheckpointState &state,
                      std::span<const RankMemory> ranks = {});

// Names of the files of a generation that hold what these ranks need.
std::set<std::string> shardsNeeded(const std::string &generation,
                                   std::span<const RankMemory> ranks);

// Of such a path only what the run was; nothing of a file of parameters.
Result<CheckpointState> readCheckpointState(const std::string &path);

// Collects the gradients ("grad:<parameter>" buffers) of all ranks into one
// file, each under its parameter's name, without the scale of the loss. With a
// store the process of rank 0 writes; the others send it what they hold.
Status saveGradients(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                     const std::string &path, Store *store = nullptr,
                     double lossScale = 1);

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
// Copies a global tensor together from the buffers of all ranks. `held`: those
// that hold boxes of it; partial layouts are summed.
// `data` (dense, global shape) is filled in rank 0's process only.
Status gatherTensor(const LoadedPlan &plan, Relay &relay,
                    const std::vector<HeldBuffer> &held,
                    const std::vector<int64_t> &shape, planpb::DType dtype,
                    char *data);

} // namespace merak::runtime
