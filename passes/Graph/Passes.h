// Passes and pipelines of the graph phase.
#pragma once

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"

namespace merak {

#define GEN_PASS_DECL
#include "passes/Graph/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/Graph/Passes.h.inc"

// Carriers -> train ops -> one op for each known pattern. Input: what
// importOnnx makes. Output: forward ops only, ready to be differentiated.
// `dropout`: whether masks are drawn; `train`: whether batch norm takes the
// statistics of the batch.
void buildGraphImportPipeline(mlir::OpPassManager &manager, bool dropout = true,
                              bool train = true);

} // namespace merak
