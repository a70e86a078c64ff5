// merakc --operators: what the compiler knows of every operator, as JSON.
#pragma once

#include "mlir/IR/MLIRContext.h"
#include "llvm/Support/raw_ostream.h"

namespace merak {

// "operators": the forms of ONNX operators with their versions and the inputs
// to which gradients go on. "ops": the ops of the train dialect that they
// become and which interfaces these have.
void printOperators(mlir::MLIRContext &context, llvm::raw_ostream &out);

} // namespace merak
