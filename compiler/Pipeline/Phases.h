// What the pipelines are made of; internal to this folder.
#pragma once

#include "compiler/Pipeline/Pipelines.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/Pass/Pass.h"
#include "onnx/Import/ImportOptions.h"

namespace merak {

// On the module from import to the stage phase: decisions that the model
// brings, as the text of a strategy file.
inline constexpr llvm::StringLiteral kStrategyAttr = "train.strategy";

// The model's own training algorithm in the terms of --optimizer.
Optimizer optimizerOf(const ModelTraining &training);

std::unique_ptr<mlir::Pass> createImportOnnx(const CompilerOptions &options,
                                             PhaseNotes *notes);
std::unique_ptr<mlir::Pass> createPlanStages(const CompilerOptions &options,
                                             PhaseNotes *notes,
                                             const Replanning &again);

} // namespace merak
