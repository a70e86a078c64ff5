// What the files of the conversion table share.
#pragma once

#include "onnx/Conversion/OnnxNode.h"

namespace merak {

using Results = llvm::SmallVectorImpl<mlir::Value>;

#define CONVERT(name)                                                          \
  static mlir::LogicalResult name(const OnnxNode &node, GraphBuilder &b,       \
                                  Results &results)

// Every conversion starts here: the operands it cannot do without.
inline mlir::LogicalResult needs(const OnnxNode &node, GraphBuilder &b,
                                 size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!node.in(i)) {
      b.fail("expected at least " + llvm::Twine(count) + " inputs, found " +
             llvm::Twine(node.inputs.size()));
      return mlir::failure();
    }
  return mlir::success();
}

inline bool isFloat(mlir::Value x) {
  return llvm::isa<mlir::FloatType>(tensorType(x).getElementType());
}

inline mlir::LogicalResult needsFloat(const OnnxNode &node, GraphBuilder &b,
                                      size_t count = 1) {
  if (failed(needs(node, b, count)))
    return mlir::failure();
  if (isFloat(node.in(0)))
    return mlir::success();
  b.fail("expected a float tensor, found " +
         describeType(node.in(0).getType()));
  return mlir::failure();
}

// The same with a rank of at least `rank`.
inline mlir::LogicalResult needsRank(const OnnxNode &node, GraphBuilder &b,
                                     size_t count, int64_t rank) {
  if (failed(needs(node, b, count)))
    return mlir::failure();
  if (rankOf(node.in(0)) >= rank)
    return mlir::success();
  b.fail("expected an input of rank " + llvm::Twine(rank) + " or more, found " +
         describeType(node.in(0).getType()));
  return mlir::failure();
}

inline mlir::LogicalResult give(Results &results, mlir::Value value) {
  results[0] = value;
  return mlir::success(static_cast<bool>(value));
}

// The dimensions [first, rank).
inline Shape dimsFrom(int64_t first, int64_t rank) {
  Shape dims;
  for (int64_t i = first; i < rank; ++i)
    dims.push_back(i);
  return dims;
}

// x - max - log(sum(exp(x - max))).
mlir::Value logSoftmax(GraphBuilder &b, mlir::Value x, int64_t axis);

} // namespace merak
