// ONNX file -> module of train.parameter symbols and one `func.func @model` of
// train.onnx_node carriers, typed, with the shape arithmetic folded away.
//
// The graph is imported at the global batch. Import never fails on an op it
// does not know; that is reported by `legalize-onnx`, together with all others.
#pragma once

#include "dialects/Train/NameAttribute.h"
#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "onnx/Import/ImportOptions.h"
#include "onnx/Import/ImportReport.h"

namespace merak {

// Attributes of the module and of arguments and results of @model.
inline constexpr llvm::StringLiteral kImportNameAttr = train::kNameAttr;

// Problems are emitted as diagnostics of `context`, all of them.
mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>>
importOnnx(const std::string &path, const ImportOptions &options,
           mlir::MLIRContext &context, ImportReport *report = nullptr);

// "model.onnx: node '/h.0/attn/Softmax'", the place of a diagnostic in words.
std::string describeLocation(mlir::Location location);

} // namespace merak
