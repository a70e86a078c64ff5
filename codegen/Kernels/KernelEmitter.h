// Writes one kernel as a function of loops (scf) over vectors of sixteen lanes
// (arith, math-free) and memory accesses (llvm).
#pragma once

#include "codegen/Kernels/KernelGraph.h"
#include "codegen/Kernels/KernelSchedule.h"
#include "codegen/Kernels/KernelTarget.h"

namespace merak::codegen {

// Appends `func.func @symbol(!llvm.ptr, !llvm.ptr, i64, i64)` to `module`.
// Fails with an error at an op whose scalar operation is not available.
mlir::LogicalResult emitKernel(mlir::ModuleOp module, llvm::StringRef symbol,
                               const KernelGraph &graph,
                               const KernelSchedule &schedule,
                               const KernelTarget &target);

} // namespace merak::codegen
