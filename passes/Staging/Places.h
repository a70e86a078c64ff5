// Where each op of a training step runs: which stage and chunk by its part,
// which action by its role, what is made again by R or wherever it is needed,
// and what runs once a step. Questions about the step function as it was before
// outlining; nothing here changes it.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "passes/Staging/OutlineStages.h"

#include <optional>
#include <set>

namespace merak {

// Where an op runs: an action of a part of the model. What a stage does once a
// step, or for all its parts (P, S, U), is an action of its first part.
using Place = std::pair<int64_t, pipe::Action>;

// Stages that have all that a value is made of: none, if it is made of parts of
// several; no set, if that is everywhere.
using HomeStages = std::optional<std::set<int64_t>>;

// The layout of a value of the step function.
dist::LayoutAttr layoutOf(mlir::Value value);

// At the end of a step.
inline bool isPerStep(Place place) {
  return place.second == pipe::Action::U || place.second == pipe::Action::S;
}
// A conversion of a stored parameter that lives for the whole step.
bool isGatheredOnce(mlir::Operation *op);
// An op that runs once a step although its role is not the update.
bool isOnce(mlir::Operation *op);

class Places {
public:
  // In one of the pipelines of the options.
  Places(mlir::func::FuncOp step, const OutlineOptions &options,
         size_t pipeline);

  // Parts of the model are dealt out in rounds: with 2 stages, part 3 is chunk
  // 1 of stage 1. Stages of several pipelines stand one behind the other: of a
  // second one with 3 stages, part 3 is chunk 1 of stage 2, place 5 + 2.
  int64_t stageOf(Place place) const { return place.first % options.stages; }
  int64_t chunkOf(Place place) const { return place.first / options.stages; }
  Place onStage(Place place, pipe::Action action) const {
    return {stageOf(place), action};
  }
  bool has(int64_t stage) const {
    return stage >= span.firstStage && stage < span.firstStage + span.stages;
  }
  int64_t firstPart() const { return span.firstStage; }
  const PipelineSpan &trained() const { return span; }
  int64_t partOf(mlir::Operation *op) const;
  // Where a sum over devices is made for stages on other meshes (kHomeAttr).
  std::optional<int64_t> exchangeOf(mlir::Operation *op) const;
  Place homeOf(mlir::Operation *op) const;

  // Made in every action that needs it: parameters, constants, and cheap ops
  // that hang on data and constants alone.
  bool isEverywhere(mlir::Operation *op) const;
  // Made again by R.
  bool isRecomputed(mlir::Operation *op) const {
    return recomputed.contains(op);
  }
  // The prologue before the forward pass has nothing of other actions, the
  // passes after it have what forwards and passes before them left.
  bool mayLoad(mlir::Operation *op, Place place) const;
  // Whether each microbatch has its own value. With one, a value that the
  // update reads comes out of its buffer.
  bool isOfMicrobatch(mlir::Value value) const;
  // The prologue goes over the microbatches as often as sums are made of sums:
  // how many such sums stand behind a value.
  int64_t levelOf(mlir::Value value);
  HomeStages homesOf(mlir::Value value);
  // The part that computes a value, looking through ops of the update.
  int64_t partBehind(mlir::Value value) const;
  // Whether a value is made of sums over microbatches.
  bool isSummed(mlir::Value value) const;

private:
  void findRematerializable();
  void findRecomputed();
  void findHomes();
  void addReaders(mlir::Operation *op, std::set<int64_t> &stagesOf);
  std::optional<int64_t> numberOf(mlir::Operation *op,
                                  llvm::StringRef name) const;
  int64_t placeOf(int64_t part) const;
  bool isMarked(mlir::Operation *op) const;

  mlir::Block &block;
  mlir::ModuleOp module;
  const OutlineOptions &options;
  const size_t pipeline;
  const PipelineSpan span;
  llvm::DenseSet<mlir::Operation *> rematerializable, recomputed;
  llvm::DenseMap<mlir::Operation *, int64_t> levels;
  int64_t prologues = 0; // passes over the microbatches before the first F
  llvm::DenseMap<mlir::Operation *, HomeStages> homes;
  llvm::StringMap<std::set<int64_t>> readers; // stages that read a parameter
};

} // namespace merak
