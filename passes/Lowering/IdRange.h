// Which ids a model input may hold, read off the ops that look them up.
#pragma once

#include "mlir/IR/Value.h"

#include <cstdint>
#include <optional>

namespace merak::lowering {

struct IdRange {
  int64_t limit = 0;              // ids lie in [0, limit)
  std::optional<int64_t> allowed; // one more legal value: an ignored label
};

// Follows `ids` through ops that keep its elements. Nothing if no op uses them
// as positions, or not all of them. `axisSize(axis)`: ranks over which a table
// is split.
std::optional<IdRange>
idRangeOf(mlir::Value ids,
          llvm::function_ref<int64_t(llvm::StringRef)> axisSize);

} // namespace merak::lowering
