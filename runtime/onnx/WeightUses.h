// What weights.json of a plan tells of initializers that are no parameters as
// they are: uses that import took apart, and values that it computed back.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/onnx/FoldedValues.h"

#include <string>
#include <vector>

namespace merak::runtime {

// One reader of an initializer that became a parameter of its own.
struct SplitUse {
  std::string parameter, initializer, output;
  size_t input = 0;
  // Where the initializer was computed from the parameter: what the copy of it
  // is called.
  std::string copy = {};
  std::vector<std::string> functions = {};

  const std::string &name() const { return copy.empty() ? parameter : copy; }
};

struct WeightUses {
  std::vector<SplitUse> splits;
  std::vector<FoldedUse> folds;
};

// From `dir`/weights.json; of a plan without this file, none.
Result<WeightUses> readWeightUses(const std::string &dir);

} // namespace merak::runtime
