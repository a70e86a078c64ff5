// plan.program -> planpb::Program.
#pragma once

#include "codegen/Kernels/KernelCompiler.h"
#include "codegen/PlanWriter/Boundaries.h"
#include "dialects/Plan/PlanDialect.h"
#include "runtime/plan/Plan.h"

namespace merak {

planpb::DType dtypeOf(mlir::Type type); // DTYPE_INVALID: no such type

// Of a rank, which tells the boxes that it sends and receives of values between
// stages on meshes of their own; elsewhere all ranks have the same program.
planpb::Program
writeProgram(plan::ProgramOp program,
             const llvm::StringMap<codegen::CompiledKernel> &kernels,
             const Boundaries &boundaries, int64_t rank);

} // namespace merak
