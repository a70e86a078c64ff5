// What a user may say about a model that the file does not.
#pragma once

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace merak {

// Of a trained initializer: states of its optimizer ("exp_avg", "exp_avg_sq",
// "momentum" or "sum") and the initializers that hold their first values.
using StateValues =
    std::map<std::string, std::vector<std::pair<std::string, std::string>>>;

struct ImportOptions {
  // Sizes per input, -1 where left open; at the global batch.
  std::map<std::string, llvm::SmallVector<int64_t>> shapes;
  // Binds open first dimensions of inputs; 0: not given.
  int64_t globalBatch = 0;
  bool train = true;
  // Whether Dropout drops in training; else it is the identity.
  bool dropout = true;
  // The output that is the loss; empty: that of the model's own training
  // algorithm, else the only scalar float output.
  std::string loss;
  // Whether the caller has an optimizer, so that the model's is not asked for.
  bool ownOptimizer = false;
  // All that is trained, and a loss that need not be an output: of the model's
  // training algorithm.
  std::optional<std::vector<std::string>> updated;
  StateValues states; // of `updated`
  // Names or globs of initializers that are not trained, and, if there are any,
  // of all that are.
  std::vector<std::string> freeze, trainable;
  // Leave initializers shared that merely have equal values.
  bool keepShared = false;
  // Whether the optimizer pulls parameters towards zero.
  bool decays = false;

  // Whether a training algorithm in the model has anything to say.
  bool readsTraining() const {
    return train && (loss.empty() || !ownOptimizer);
  }
};

bool matchesGlob(llvm::StringRef pattern, llvm::StringRef name);

} // namespace merak
