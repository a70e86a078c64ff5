// The pass that converts ONNX carriers to train ops.
#pragma once

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace merak {

#define GEN_PASS_DECL
#include "onnx/Conversion/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "onnx/Conversion/Passes.h.inc"

} // namespace merak
