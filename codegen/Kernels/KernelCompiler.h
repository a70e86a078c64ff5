// Compiles kernel functions (fused element-wise operations and reductions,
// written as linalg) to native code: one relocatable object for a list of
// kernels, and a shared object from several of them; or PTX and, with NVIDIA's
// tools, a file of code for several GPUs. No code is generated at
// run time. What a kernel function may hold is in docs/Kernels.md; how it
// becomes loops in codegen/Kernels/KernelSchedule.h.
#pragma once

#include "codegen/Kernels/KernelRange.h"
#include "codegen/Kernels/KernelTarget.h"
#include "runtime/core/Status.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/LogicalResult.h"

#include <string>
#include <utility>
#include <vector>

namespace merak::codegen {

struct CompiledKernel {
  // Name of the function in the shared object. It is a hash of the kernel's
  // structure and target: equal kernels share one.
  std::string symbol;
  KernelRange range;
  int64_t blockThreads = 0; // of grids
  // (input, output): may be one view of one buffer, an update in place.
  // Numbers count tensor arguments and results.
  std::vector<std::pair<unsigned, unsigned>> inPlace;
};

struct CompileStatistics {
  unsigned kernelsAsked = 0, kernelsCompiled = 0;
  double emitSeconds = 0, toLLVMSeconds = 0, optimizeSeconds = 0,
         objectSeconds = 0;
};

struct KernelObject {
  // An ELF file, for GPUs the text of a PTX module; empty if there are no
  // kernels.
  std::string object;
  llvm::StringMap<CompiledKernel> kernels; // by function name
  CompileStatistics statistics;
  std::string assembly; // if asked for
};

struct CompileOptions {
  KernelTarget target;
  bool keepAssembly = false;
};

// The dialects a kernel function and its compilation need.
void registerKernelDialects(mlir::DialectRegistry &registry);

// Compiles the functions `names` of `module`, all functions marked
// `merak.kernel` if there are none. Reports every problem at its op.
llvm::FailureOr<KernelObject>
compileKernels(mlir::ModuleOp module, llvm::ArrayRef<llvm::StringRef> names,
               const CompileOptions &options);

// What compileKernels says of the functions marked `merak.kernel`, without the
// code: enough to tell how long a plan takes.
llvm::FailureOr<llvm::StringMap<CompiledKernel>>
describeKernels(mlir::ModuleOp module, const KernelTarget &target);

// Writes the shared object `path` from relocatable objects, with the first
// linker found of ld.lld, mold, ld and cc. It depends on no library; with a
// sanitizer on the program that loads it.
Status linkSharedObject(llvm::ArrayRef<std::string> objects,
                        const std::string &path,
                        Sanitizer sanitizer = Sanitizer::None);

} // namespace merak::codegen
