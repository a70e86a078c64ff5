// What the bytes of a source are: its own type, or that of the tensor.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

inline planpb::DType sourceType(const planpb::Tensor &tensor) {
  const planpb::DType own = tensor.source().dtype();
  return own != planpb::DTYPE_INVALID ? own : tensor.dtype();
}

} // namespace merak
