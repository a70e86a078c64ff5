// Writes the plan directory from a module after the plan phase: programs and
// manifest in Protobuf, generated kernels as one file (a shared object, or PTX
// and machine code for GPUs), folded constants. The same module gives the same
// bytes.
#pragma once

#include "runtime/plan/Plan.h"
#include "runtime/report/Decisions.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/LogicalResult.h"

#include <string>
#include <vector>

namespace merak {

struct PlanWriterOptions {
  std::string directory; // OUT.plan
  std::string target;    // of generated kernels; empty: the device's
  std::string producer = "merakc 0.1";
  double predictedStepSeconds = 0;
  report::Decisions decisions;      // for reports made from the plan
  std::vector<std::string> options; // PlanFile.options
  std::vector<int64_t> devices; // of the ranks; empty: those of their number
  // weights.json: where parameters of no initializer go back (see
  // docs/Import.md); empty: not written.
  std::string weights;
};

// A plan in memory, before it is a directory.
struct BuiltPlan {
  LoadedPlan plan;
  std::vector<PlanExtra> extras; // kernels, constants.bin
};

// What the user asked for is read from the module's attributes `train.config`
// and `dist.mesh`. Errors are reported at ops; `isBug` becomes true if there is
// no code for a kernel, which is no fault of the user.
llvm::FailureOr<BuiltPlan> buildPlan(mlir::ModuleOp module,
                                     const PlanWriterOptions &options,
                                     bool *isBug = nullptr);

// What buildPlan makes, without the code of kernels and the files: enough to
// simulate it.
llvm::FailureOr<LoadedPlan> describePlan(mlir::ModuleOp module,
                                         const PlanWriterOptions &options);

// Builds, verifies (verifyPlan) and saves. `isBug` becomes true also if the
// plan does not pass the verifier.
llvm::LogicalResult writePlan(mlir::ModuleOp module,
                              const PlanWriterOptions &options,
                              bool *isBug = nullptr);

} // namespace merak
