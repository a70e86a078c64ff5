// What import decided, for people: printed by the driver.
#pragma once

#include "compiler/Import/TrainingInfo.h"
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
  // A parameter that was un-merged: input `slot` of the node that makes
  // `output` reads it in place of the initializer.
  struct SplitUse {
    std::string parameter, initializer, output;
    int slot = 0;
  };
  std::vector<SplitUse> splitUses;
  // Decisions that the model's multi-device metadata hold.
  std::optional<planning::Strategy> strategy;
  // The model's own training algorithm, as far as it was read.
  std::optional<ModelTraining> training;
  // One sentence each, in the order they were found.
  std::vector<std::string> tied, unmerged, warnings, unusedOutputs, absentFiles;

  // Without the warnings.
  void print(llvm::raw_ostream &out) const;
};

} // namespace merak
