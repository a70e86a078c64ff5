// Whether generated kernels bear the memory that a plan gives them.
#pragma once

#include "codegen/Kernels/KernelCompiler.h"
#include "dialects/Plan/PlanDialect.h"

namespace merak {

// Fails at each kernel call that writes a result over an operand though the
// kernel's code may read elements of that after it has written them.
llvm::LogicalResult
checkSharedOperands(mlir::ModuleOp module,
                    const llvm::StringMap<codegen::CompiledKernel> &kernels);

} // namespace merak
