// merakc --check: everything about a model at once, and nothing written.
#pragma once

#include "compiler/Pipeline/Options.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/raw_ostream.h"

namespace merak {

// Prints problems (what stands in the way of compiling), warnings (what the
// exporter changed) and advice. Returns the exit code: 0 without problems,
// else 1.
int checkModel(const CompilerOptions &options, mlir::MLIRContext &context,
               llvm::raw_ostream &out);

} // namespace merak
