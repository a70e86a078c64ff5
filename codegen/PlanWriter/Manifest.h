// The manifest of a plan: everything that is not a program.
#pragma once

#include "runtime/plan/Plan.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/LogicalResult.h"

namespace merak {

// Mesh, ranks, tensors, inputs, training setup and memory. Bytes of constants
// are appended to `constants`.
llvm::LogicalResult writeManifest(mlir::ModuleOp module, planpb::PlanFile &file,
                                  std::string &constants);

} // namespace merak
