// Which library kernel of docs/Kernels.md stands for a train op, with its
// operands, attributes and scalars.
#pragma once

#include "dialects/Plan/PlanDialect.h"

#include <optional>

namespace merak::lowering {

struct LibraryCall {
  llvm::StringRef op;
  llvm::SmallVector<mlir::Value, 4> inputs, outputs;
  llvm::SmallVector<mlir::NamedAttribute, 4> attrs; // strings
  llvm::SmallVector<mlir::Attribute, 2> scalars;
};

// Nothing if no library kernel has the op's name.
std::optional<LibraryCall> libraryCallOf(mlir::Operation *op);

// Text of attributes: "1,2", shortest decimals that read back equal.
std::string listText(llvm::ArrayRef<int64_t> list);
std::string numberText(double value);

plan::ScalarAttr integerScalar(mlir::MLIRContext *context, int64_t value);
plan::ScalarAttr realScalar(mlir::MLIRContext *context, double value);
plan::ScalarAttr namedScalar(mlir::MLIRContext *context, llvm::StringRef name);
// This rank's coordinate on `axis` times `scale`; no axis: 0.
plan::ScalarAttr offsetScalar(mlir::MLIRContext *context,
                              std::optional<llvm::StringRef> axis,
                              int64_t scale);

} // namespace merak::lowering
