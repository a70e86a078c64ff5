// Sums of parts that lie beside each other. The gradient of a tensor that was
// cut into slices arrives as a sum of tensors that are zero but for their part:
// with the parts beside each other it is their concatenation, which their
// producers write in place.
#pragma once

#include "mlir/IR/Block.h"

namespace merak::lowering {

// Replaces sums of `train.pad` with zeros in the body whose parts fill one axis
// by `train.concat`. -0 keeps its sign.
void joinPads(mlir::Block &body);

} // namespace merak::lowering
