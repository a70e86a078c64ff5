// Shape arithmetic that no train op stands for: Shape, Range, Floor ... Nodes
// of other kinds fold by evaluating the train ops they convert to.
#pragma once

#include "mlir/IR/BuiltinAttributes.h"
#include "onnx/Conversion/OnnxNode.h"

namespace merak {

// The value of the only output if it follows from types and constant inputs.
mlir::DenseElementsAttr foldNode(const OnnxNode &node);

// Whether foldNode knows ops of the type at all.
bool isFoldable(llvm::StringRef type);

} // namespace merak
