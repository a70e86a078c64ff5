// Writes the generations of one run. All processes that have ranks call the
// same functions in the same order and get the same outcome (see `agree`).
//
// Processes that see one folder write one generation. If hosts have folders of
// their own, each gets its shards and the whole manifest, and `merak-plan
// gather` makes one of them.
#pragma once

#include "runtime/checkpoint/Generations.h"
#include "runtime/checkpoint/Pieces.h"

#include <atomic>
#include <thread>

namespace merak::runtime {

struct SaveOptions {
  std::string dir;
  int keep = 3; // generations
  // Values that are not finite are saved too; else nothing is.
  bool anyValues = false;
};

class CheckpointWriter {
public:
  // Takes the folder, which no other run may be writing. All must outlive the
  // writer.
  static Result<std::unique_ptr<CheckpointWriter>>
  open(const LoadedPlan &plan, std::span<const RankMemory> ranks,
       SaveOptions options, Store *store = nullptr,
       Files &files = Files::system());
  ~CheckpointWriter();

  // Writes from the ranks' memory; back when it lies on the disk. The outcome
  // of a generation that is being written comes first, and ends it.
  Status write(const CheckpointState &state);
  // Copies what this process writes, and comes back; a thread writes it. Waits
  // for the generation before, so that there is one copy at most.
  Status begin(const CheckpointState &state);
  // Waits for what is being written, and says how it went; once.
  Status wait();
  // Whether what is being written has failed already; `wait` says how.
  bool failed() const { return failed_; }

  const std::string &run() const { return run_; }
  // What the user should know, e.g. that hosts write apart; may be empty.
  std::string note() const;

private:
  // Puts the bytes of a piece of this process into memory.
  using Source =
      std::function<Status(const Piece &, planpb::DType, char *data)>;

  CheckpointWriter(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                   SaveOptions options, Store *store, Files &files);
  Status start();
  Status writeGeneration(CheckpointState state, const Source &source);
  Status makeGeneration(const CheckpointState &state, const Source &source);
  Status writeShards(const CheckpointState &state, const Source &source,
                     std::map<std::string, FileCheck> &written) const;
  Status exchangeChecks(Manifest &manifest) const;
  Status finish(const CheckpointState &state, const Manifest &manifest);
  Status checkShared(const CheckpointState &state,
                     const Manifest &manifest) const;
  bool isLocal(int rank) const;
  Status takeCopy();

  const LoadedPlan &plan_;
  std::span<const RankMemory> ranks_;
  SaveOptions options_;
  Store *store_;
  Files &files_;
  std::vector<TensorPieces> tensors_;
  std::string run_;
  std::unique_ptr<Generations> generations_;
  int folders_ = 1; // that processes see

  std::map<const Piece *, std::vector<char>> copy_;
  std::thread thread_;
  Status outcome_;
  std::atomic<bool> failed_{false};
};

} // namespace merak::runtime
