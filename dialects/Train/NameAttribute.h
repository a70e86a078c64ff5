// What inputs and results of a model's functions are called.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::train {

// String, on arguments and results of @model and @step.
inline constexpr llvm::StringLiteral kNameAttr = "train.name";

} // namespace merak::train
