// Passes of the stage phase.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace merak {

#define GEN_PASS_DECL
#include "passes/Staging/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/Staging/Passes.h.inc"

} // namespace merak
