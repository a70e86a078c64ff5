// From a module of kernels as loops over vectors to object code, in process.
#pragma once

#include "codegen/Kernels/KernelTarget.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/LogicalResult.h"

#include <string>

namespace merak::codegen {

struct LoweringTimes {
  double toLLVM = 0, optimize = 0, emit = 0; // seconds
};

// `module` holds functions written by emitKernel or emitGridKernel and is
// consumed. `object` receives a relocatable ELF file, for GPUs the text of a
// PTX module. `assembly`, if given, its text form.
llvm::LogicalResult lowerToObject(mlir::ModuleOp module,
                                  const KernelTarget &target,
                                  std::string &object,
                                  std::string *assembly = nullptr,
                                  LoweringTimes *times = nullptr);

} // namespace merak::codegen
