// Attributes of copies of parameters in a smaller type that outlive a step.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::pipe {

// Symbol of a parameter or constant, on a value of kind step of its shape: the
// copy that is made of it whenever it was loaded, and that the update, if it is
// trained, writes beside it. No action stores it, and no checkpoint knows of
// it.
inline constexpr llvm::StringLiteral kCopyOfAttr = "pipe.copy_of";
// Symbol of that value, on the update.
inline constexpr llvm::StringLiteral kCopyAttr = "pipe.copy";

} // namespace merak::pipe
