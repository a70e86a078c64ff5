// What kind an op of the dist dialect is.
#pragma once

#include "mlir/IR/OpDefinition.h"

namespace merak::dist {

// Makes another layout of a value; `axes` are the mesh axes that it changes.
template <typename Op>
struct Conversion : mlir::OpTrait::TraitBase<Op, Conversion> {};
// A conversion that communicates.
template <typename Op>
struct Collective : mlir::OpTrait::TraitBase<Op, Collective> {};

} // namespace merak::dist
