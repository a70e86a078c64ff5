// Attributes, types and tensors of ONNX as MLIR attributes and types.
#pragma once

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "onnx/Import/OnnxFile.h"

namespace merak {

// Null for an element type the compiler has none for.
mlir::Type elementTypeOf(int onnxType, mlir::MLIRContext *context);

// Null if the element type is unknown.
mlir::DenseElementsAttr attributeOf(const OnnxTensor &tensor,
                                    llvm::StringRef bytes,
                                    mlir::MLIRContext *context);

// Numbers of any float type, to look at; empty for others.
std::vector<float> floatsOf(int onnxType, llvm::StringRef bytes);

// Null if the node has none of this name.
const onnx::AttributeProto *findAttribute(const onnx::NodeProto &node,
                                          llvm::StringRef name);

// Attributes of a node. What has no MLIR form (subgraphs) becomes a string.
mlir::DictionaryAttr attributesOf(const onnx::NodeProto &node,
                                  mlir::MLIRContext *context);

} // namespace merak
