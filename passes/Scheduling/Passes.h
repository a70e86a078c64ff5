// Passes of the schedule phase.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace merak {

#define GEN_PASS_DECL
#include "passes/Scheduling/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/Scheduling/Passes.h.inc"

} // namespace merak
