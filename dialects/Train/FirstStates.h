// First values of parameters and of an optimizer's states.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::train {

// Discardable attribute on a trained train.parameter: a dictionary of the
// states that do not begin with zeros ("exp_avg", "exp_avg_sq", "momentum",
// "sum"), each a SourceAttr or an ElementsAttr of the parameter's type.
inline constexpr llvm::StringLiteral kStatesAttr = "train.states";

// Discardable attribute on a train.parameter: the element type of the bytes
// that its source and those of its states point at, where it is not the
// parameter's. They are converted when they are read.
inline constexpr llvm::StringLiteral kSourceTypeAttr = "train.source_type";

} // namespace merak::train
