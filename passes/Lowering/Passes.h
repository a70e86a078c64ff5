// Passes of the lowering and the pipeline of the plan phase.
#pragma once

#include "dialects/Plan/PlanDialect.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"

namespace merak {

#define GEN_PASS_DECL
#include "passes/Lowering/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/Lowering/Passes.h.inc"

// Events and call waits. Input: the module after the memory phase. Output: what
// writePlan (codegen/PlanWriter) puts into files.
void buildPlanPipeline(mlir::OpPassManager &manager);

} // namespace merak
