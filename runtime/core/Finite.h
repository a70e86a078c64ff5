// Looking for values that are not numbers or have overflowed. -inf is legal:
// masks are made of it.
#pragma once

#include "runtime/core/Backend.h"

#include <optional>

namespace merak::runtime {

bool isFloat(planpb::DType dtype);

struct NonFinite {
  std::string value; // "nan" or "inf"
  std::string index; // "[2,7]"
};
// The first one in row-major order of a host view.
std::optional<NonFinite> findNonFinite(const View &view);

} // namespace merak::runtime
