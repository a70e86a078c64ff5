// What the pipelines are made of; internal to this folder.
#pragma once

#include "compiler/Import/ImportOptions.h"
#include "compiler/Pipeline/Pipelines.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/Pass/Pass.h"

namespace merak {

// On the module from import on, what the model brings: decisions as a strategy
// file, and its own optimizer.
inline constexpr llvm::StringLiteral kStrategyAttr = "train.strategy";
inline constexpr llvm::StringLiteral kOptimizerAttr = "train.optimizer";

// The model's own training algorithm in the terms of --optimizer.
OptimizerOptions optimizerOf(const ModelTraining &training);
// What the plan says of an optimizer, {kind, lr, ..., constants}, and back.
llvm::SmallVector<mlir::NamedAttribute>
toAttributes(const OptimizerOptions &optimizer, mlir::MLIRContext *context);
OptimizerOptions optimizerFrom(mlir::DictionaryAttr attributes);
// What its kernel needs, by kind.
mlir::DictionaryAttr optimizerConstants(const OptimizerOptions &optimizer,
                                        mlir::MLIRContext *context);

std::unique_ptr<mlir::Pass> createImportOnnx(const CompilerOptions &options,
                                             PhaseNotes *notes);
std::unique_ptr<mlir::Pass> createPlanStages(const CompilerOptions &options,
                                             PhaseNotes *notes,
                                             const Replanning &again);

} // namespace merak
