// Element types of the plan: sizes and names, in the plan's, NumPy's and
// safetensors' spelling.
#pragma once

#include "runtime/plan/plan.pb.h"

#include <cstdint>
#include <string_view>

namespace merak::runtime {

// Bytes of one element; 0 for an invalid type.
int64_t dtypeSize(planpb::DType dtype);
// "f32", "i64", ...: as messages print it.
const char *dtypeName(planpb::DType dtype);
// "F32", "I64", ...: the name in a safetensors header.
const char *safetensorsName(planpb::DType dtype);
// DTYPE_INVALID if the name is none of ours.
planpb::DType parseSafetensorsName(std::string_view name);

} // namespace merak::runtime
