// Rows of a table that are owed the steps they were left out of.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::train {

// Discardable unit attribute of a row-sparse `train.update` and of the
// `pipe.update` made of it: rows without a gradient change as by one of zeros.
// They take these steps before they are looked up again, or before anything
// else reads the table.
inline constexpr llvm::StringLiteral kReplayedAttr = "train.replayed";

} // namespace merak::train
