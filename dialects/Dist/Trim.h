// Collectives of operands with zeros at their end, which need not be sent.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::dist {

// F64 attribute of gathers and all-to-alls, and of the collectives that they
// become: the part of the operand that is expected not to be such zeros
// (runtime/plan/Trim.h).
inline constexpr llvm::StringLiteral kTrimAttr = "dist.trim";

} // namespace merak::dist
