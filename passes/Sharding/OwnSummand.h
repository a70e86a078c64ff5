// Ops that mean the rank's own summand of a value, not the whole.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak {

// Unit attribute of such an op: its result is no partial sum, though its
// operand is one.
inline constexpr llvm::StringLiteral kOwnSummandAttr = "dist.own_summand";

} // namespace merak
