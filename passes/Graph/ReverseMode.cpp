#include "passes/Graph/ReverseMode.h"

#include "dialects/Train/Builders.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

bool merak::isFloatTensor(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && isa<FloatType>(type.getElementType());
}

LogicalResult ReverseMode::run(OpBuilder &b, ArrayRef<Operation *> forward,
                               Value y, bool scaled) {
  auto type = tensorTypeOf(y);
  Value one = ConstantOp::create(
      b, y.getLoc(),
      DenseElementsAttr::get(type, b.getFloatAttr(type.getElementType(), 1.0)));
  gradient[y] = one;
  if (scaled) {
    auto first = LossScaleOp::create(b, y.getLoc(), type, one);
    if (Operation *op = y.getDefiningOp())
      if (Attribute id = op->getAttr(kIdAttr))
        first->setAttr(kOfAttr, id);
    gradient[y] = first.getY();
  }
  LogicalResult result = success();
  for (Operation *op : llvm::reverse(forward))
    if (failed(differentiate(b, op)))
      result = failure();
  return result;
}

LogicalResult ReverseMode::differentiate(OpBuilder &b, Operation *op) {
  SmallVector<Value> resultGrads;
  for (Value result : op->getResults())
    resultGrads.push_back(gradient.lookup(result));
  if (llvm::none_of(resultGrads, [](Value grad) { return bool(grad); }))
    return success();
  if (isa<ReadOp>(op))
    return success();
  SmallVector<bool> wanted;
  for (Value operand : op->getOperands())
    wanted.push_back(needed.contains(operand));
  if (llvm::none_of(wanted, [](bool want) { return want; }))
    return success();
  auto differentiable = dyn_cast<DifferentiableOpInterface>(op);
  if (!differentiable)
    return op->emitError("no gradient is known for '") << op->getName() << "'";
  for (size_t i = 1; i < resultGrads.size(); ++i)
    if (resultGrads[i])
      return op->emitError("no gradient through result ")
             << i << " of '" << op->getName() << "'";
  SmallVector<Value> operandGrads;
  Block::iterator at = b.getInsertionPoint();
  Operation *last = at == b.getInsertionBlock()->begin() ? nullptr : &*--at;
  differentiable.buildGradient(b, resultGrads, wanted, operandGrads);
  for (auto [operand, grad, want] :
       llvm::zip_equal(op->getOperands(), operandGrads, wanted)) {
    if (!want || !grad)
      continue;
    Value &sum = gradient[operand];
    if (!sum) {
      sum = grad;
      continue;
    }
    auto both = AddOp::create(b, operand.getLoc(), sum, grad);
    both->setAttr(kSumAttr, b.getUnitAttr());
    sum = both;
  }
  // The gradient belongs to the stage of its forward op; the sum over the uses
  // of a value to the stage of its first use.
  Attribute id = op->getAttr(kIdAttr);
  for (Block::iterator grad = last ? std::next(last->getIterator())
                                   : b.getInsertionBlock()->begin();
       id && grad != b.getInsertionPoint(); ++grad)
    grad->setAttr(kOfAttr, id);
  return success();
}
