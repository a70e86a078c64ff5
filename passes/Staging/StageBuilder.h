// The stage programs under construction: stages, the bodies of their actions,
// named values with their loads and stores, and the transfers between stages.
// What is put into them is decided by OutlineStages.cpp.
#pragma once

#include "passes/Staging/Places.h"

#include <map>

namespace merak {

class StageBuilder {
public:
  // Makes the stages, in front of the step function.
  StageBuilder(mlir::func::FuncOp step, const OutlineOptions &options,
               const Places &places);

  // Of the stage; without axes before the module has one.
  dist::MeshAttr mesh(int64_t stage) const;

  // The body of an action, made at its first use.
  mlir::Block *bodyOf(Place place);

  // A new value. It is named as wished, with a number where that is taken.
  pipe::ValueOp declare(int64_t stage, llvm::StringRef wish, mlir::Type type,
                        pipe::ValueKind kind, dist::LayoutAttr layout,
                        llvm::StringRef tensor,
                        std::optional<mlir::Location> from = {});
  // A value that has one declaration per stage, by a key.
  pipe::ValueOp declareOnce(int64_t stage, llvm::StringRef key, mlir::Type type,
                            pipe::ValueKind kind, dist::LayoutAttr layout,
                            llvm::StringRef tensor);
  // The place of that declaration; empty before there is one.
  pipe::ValueOp &declared(int64_t stage, llvm::StringRef key) {
    return inStage[stage].byKey[key.str()];
  }
  // The layout without partial sums over microbatches: what a store that
  // accumulates leaves.
  dist::LayoutAttr accumulatedLayout(mlir::Value value);
  // Stages that hold a copy of each parameter.
  std::map<llvm::StringRef, std::set<int64_t>> findHolders();

  mlir::Value load(Place place, pipe::ValueOp value, mlir::Location loc);
  void storeAfter(mlir::Value inner, Place place, pipe::ValueOp value,
                  bool accumulate);
  // Stores what a caller gets, at the end of an action.
  void storeResult(mlir::Value inner, Place place, llvm::StringRef name,
                   dist::LayoutAttr layout);
  void transfer(pipe::ValueOp source, Place from, pipe::ValueOp target,
                int64_t to);

  // The axis of the ranks that hold the same part of what these stages have,
  // one of each pipeline, with equal degrees of tp.
  llvm::StringRef holdersOf(llvm::ArrayRef<int64_t> of);

  // Actions in the order G P F R B W S U.
  void orderActions();

private:
  struct StageState {
    mlir::Operation *lastValue = nullptr;
    std::map<std::string, pipe::ValueOp, std::less<>> byKey;
  };

  mlir::func::FuncOp step;
  const Places &places;
  mlir::MLIRContext *context;
  std::vector<pipe::StageOp> stages;
  std::vector<StageState> inStage;
  std::map<int64_t, std::set<std::string>> names;
  std::map<Place, mlir::Block *> bodies;
  std::map<std::vector<int64_t>, std::string> holders; // axes by stages
  int transfers = 0;
};

} // namespace merak
