// Groups of train ops that become one generated kernel, what such a kernel
// reads and writes, and the kernel functions of a module.
#pragma once

#include "dialects/Train/TrainDialect.h"
#include "passes/Lowering/Views.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"

#include <vector>

namespace merak::lowering {

// In program order; runs where its last op stands.
using KernelGroup = llvm::SmallVector<mlir::Operation *, 4>;

struct KernelOperands {
  llvm::SmallVector<mlir::Value> inputs, outputs;
};

// The groups of an action's body, disjoint.
std::vector<KernelGroup> formKernelGroups(mlir::Block &body, bool forGpu);
// Inputs: what the group reads from outside, splat constants excepted.
// Outputs: what is used outside or `wanted` in memory.
KernelOperands kernelOperandsOf(llvm::ArrayRef<mlir::Operation *> group,
                                llvm::function_ref<bool(mlir::Value)> wanted);
// Whether some user takes the constant as an operand in memory.
bool constantNeedsMemory(train::ConstantOp constant);

// Makes the functions with `merak.kernel`, one for all equal kernels.
class KernelFactory {
public:
  explicit KernelFactory(mlir::ModuleOp module) : module_(module) {}
  mlir::FailureOr<mlir::func::FuncOp>
  get(llvm::ArrayRef<mlir::Operation *> group, const KernelOperands &operands,
      llvm::ArrayRef<View> inputs, llvm::ArrayRef<View> outputs,
      bool accumulate);

private:
  mlir::ModuleOp module_;
  llvm::StringMap<mlir::func::FuncOp> known_; // by structure
};

} // namespace merak::lowering
