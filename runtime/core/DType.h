// Element types: the plan's sizes and names (from runtime/plan/Plan.h), and
// safetensors' names for them.
#pragma once

#include "runtime/plan/Plan.h"

#include <string_view>

namespace merak::runtime {

using merak::dtypeName;
using merak::dtypeSize;

// "F32", "I64", ...: the name in a safetensors header.
const char *safetensorsName(planpb::DType dtype);
// DTYPE_INVALID if the name is none of ours.
planpb::DType parseSafetensorsName(std::string_view name);

} // namespace merak::runtime
