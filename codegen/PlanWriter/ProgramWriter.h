// plan.program -> planpb::Program.
#pragma once

#include "codegen/Kernels/KernelCompiler.h"
#include "dialects/Plan/PlanDialect.h"
#include "runtime/plan/Plan.h"

namespace merak {

planpb::DType dtypeOf(mlir::Type type); // DTYPE_INVALID: no such type

planpb::Program
writeProgram(plan::ProgramOp program,
             const llvm::StringMap<codegen::CompiledKernel> &kernels);

} // namespace merak
