// First values of an optimizer's states.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::train {

// Discardable attribute on a trained train.parameter: a dictionary of the
// states that do not begin with zeros ("exp_avg", "exp_avg_sq", "momentum",
// "sum"), each a SourceAttr or an ElementsAttr of the parameter's type.
inline constexpr llvm::StringLiteral kStatesAttr = "train.states";

} // namespace merak::train
