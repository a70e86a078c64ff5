// The files that a model was read from, noted on the module by import: an array
// of dictionaries with the `path` that a `#train.source` has, the length in
// `bytes` and the `hash` of the contents; where that is one of samples, in
// `sampled` the time at which the file was written, in nanoseconds since 1970
// (runtime/plan/FileIdentity.h).
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::train {

inline constexpr llvm::StringLiteral kFilesAttr = "train.files";

} // namespace merak::train
