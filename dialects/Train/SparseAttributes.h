// Discardable attributes of what row-sparse gradients are made of.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::train {

// Unit attribute of a row-sparse `train.update` and of the `pipe.update` made
// of it: rows without a gradient change as by one of zeros. They take these
// steps before they are looked up again, or before anything else reads the
// table.
inline constexpr llvm::StringLiteral kReplayedAttr = "train.replayed";

// Array of F64, of a `train.coalesce`: in turn a number of ids, and the
// different rows that so many consecutive ids of a step are expected to name;
// by ids.
inline constexpr llvm::StringLiteral kTouchedAttr = "train.touched";

// Unit attribute of a `train.coalesce`: sums lie at the front, in the order of
// the first places of their ids, and zeros behind them.
inline constexpr llvm::StringLiteral kCompactAttr = "train.compact";

// I64 attribute of a `train.coalesce`: its slices come from blocks of so many
// places, each of which was made so; ids are those of before.
inline constexpr llvm::StringLiteral kBlockAttr = "train.block";

// Of rows that no lookup of the next step needs, which are exchanged and
// updated beside it. Of a `train.coalesce` in the graph: a dictionary of the
// inputs that hold the table's ids, with their types. Unit attribute of what
// the exchange and the update of such rows became, and of what sums and applies
// gradients that the step before left.
inline constexpr llvm::StringLiteral kDelayedAttr = "train.delayed";

} // namespace merak::train
