// Floats of one type as another.
#pragma once

#include "runtime/plan/Plan.h"

#include <cstddef>

namespace merak::runtime {

// `count` floats in another float type, rounded to the nearest; what f32 or f64
// hold and f16 does not becomes infinite. False: one of them is no float.
bool convertFloats(planpb::DType from, const char *in, planpb::DType to,
                   char *out, size_t count);

} // namespace merak::runtime
