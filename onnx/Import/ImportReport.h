// What import decided, for people: printed by the driver.
#pragma once

#include "onnx/Import/TrainingInfo.h"
#include "passes/Planning/Strategy.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

#include <optional>
#include <string>
#include <vector>

namespace merak {

// Ends warnings that `merakc --check` has at length.
inline constexpr llvm::StringLiteral kSeeCheck = "; see merakc --check)";

struct ImportReport {
  struct Decision {
    std::string name, type, reason;
  };
  int64_t opset = 0, globalBatch = 0;
  size_t nodes = 0, folded = 0, unreached = 0;
  std::vector<Decision> trained, frozen;
  // Nobody said what is to be trained: requires_grad is not in ONNX.
  bool allTrained = false;
  // A parameter that has no initializer of its own: input `slot` of the node
  // that makes `output` reads it in place of `initializer`; where that is
  // empty, the node of the file has no such input.
  struct SplitUse {
    std::string parameter, initializer, output;
    int slot = 0;
    // Where `initializer` was computed from parameters: what the copy of it is
    // called, and the functions of the parameter that it is.
    std::string copy = {};
    std::vector<std::string> functions = {};
  };
  std::vector<SplitUse> splitUses;
  // An initializer that the exporter computed from a parameter: its values are
  // these functions (operators of ONNX, "Add:1" with a known operand) of the
  // parameter's, broadcast and then permuted to its shape.
  struct FoldedUse {
    std::string parameter, initializer;
    std::vector<std::string> functions = {};
    std::vector<int64_t> permutation = {};
  };
  std::vector<FoldedUse> foldedUses;
  // Decisions that the model's multi-device metadata hold.
  std::optional<planning::Strategy> strategy;
  // The model's own training algorithm, as far as it was read.
  std::optional<ModelTraining> training;
  // One sentence each, in the order they were found.
  std::vector<std::string> tied, unmerged, restored, warnings, unusedOutputs,
      absentFiles;
  // Trained for want of a reason not to, under names that modules do not give.
  std::vector<std::string> doubtful;
  // Of an exported program: parameters that are there as an initializer of
  // another name, and those that are nowhere.
  std::vector<std::string> moved, lost;

  // Without the warnings.
  void print(llvm::raw_ostream &out) const;
};

} // namespace merak
