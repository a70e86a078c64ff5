// Tensors without elements: what is made of them is known.
#include "passes/Graph/CanonicalizeGraph.h"

#include "passes/Graph/GraphBuilder.h"

#include <limits>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {

bool isEmpty(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() && type.getNumElements() == 0;
}

// What a maximum over nothing is: the smallest number of the type.
Attribute lowest(Type element) {
  if (auto real = dyn_cast<FloatType>(element))
    return FloatAttr::get(
        real, APFloat::getInf(real.getFloatSemantics(), /*Negative=*/true));
  auto integer = cast<IntegerType>(element);
  unsigned width = integer.getWidth();
  bool isUnsigned = integer.isUnsigned() || width == 1;
  return IntegerAttr::get(integer, isUnsigned
                                       ? APInt::getZero(width)
                                       : APInt::getSignedMinValue(width));
}

// The number that every element of the result equals if an operand is empty;
// null: it is not known.
Attribute everyElement(Operation *op, PatternRewriter &rewriter) {
  Type element = tensorType(op->getResult(0)).getElementType();
  if (isa<ReduceSumOp, EinsumOp, ScatterAddOp>(op))
    return rewriter.getZeroAttr(element);
  if (isa<ReduceMaxOp>(op))
    return lowest(element);
  if (auto pad = dyn_cast<PadOp>(op)) {
    double value = pad.getValue().convertToDouble();
    if (auto real = dyn_cast<FloatType>(element))
      return FloatAttr::get(real, value);
    return IntegerAttr::get(element, static_cast<int64_t>(value));
  }
  return {};
}

struct FoldEmpty : RewritePattern {
  FoldEmpty(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 4, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (op->getNumOperands() == 0 || op->getNumResults() == 0 ||
        !isa<TrainDialect>(op->getDialect()) || !isPure(op))
      return failure();
    GraphBuilder b(rewriter, op->getLoc());
    if (llvm::all_of(op->getResults(), isEmpty)) {
      SmallVector<Value> results;
      for (Value result : op->getResults())
        results.push_back(b.constant(
            DenseElementsAttr::getFromRawBuffer(tensorType(result), {})));
      rewriter.replaceOp(op, results);
      return success();
    }
    if (llvm::none_of(op->getOperands(), isEmpty))
      return failure();
    if (isa<ConcatOp>(op)) {
      SmallVector<Value> rest(llvm::make_filter_range(
          op->getOperands(), [](Value v) { return !isEmpty(v); }));
      if (rest.size() == 1)
        rewriter.replaceOp(op, rest);
      else
        rewriter.modifyOpInPlace(op, [&] { op->setOperands(rest); });
      return success();
    }
    Attribute value = everyElement(op, rewriter);
    if (!value)
      return failure();
    rewriter.replaceOp(op, b.constant(DenseElementsAttr::get(
                               tensorType(op->getResult(0)), value)));
    return success();
  }
};

} // namespace

void merak::addEmptyPatterns(RewritePatternSet &patterns) {
  patterns.add<FoldEmpty>(patterns.getContext());
}
