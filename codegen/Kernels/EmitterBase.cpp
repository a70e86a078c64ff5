#include "codegen/Kernels/EmitterBase.h"

namespace merak::codegen::emitter {

// `word`: 64 bits, an integer or the bits of a double.
void EmitterBase::bindScalar(BlockArgument argument, Value word) {
  Type type = argument.getType();
  Type wanted = ops.scalarType(type);
  Value value = word;
  if (isa<FloatType>(type)) {
    value = arith::BitcastOp::create(b, loc, b.getF64Type(), value);
    if (!wanted.isF64())
      value = arith::TruncFOp::create(b, loc, wanted, value);
    if (type.isBF16())
      value = ops.roundToBf16(value);
  } else if (wanted != word.getType()) {
    value = arith::TruncIOp::create(b, loc, wanted, value);
  }
  entry[argument] = value;
}

void EmitterBase::loadArguments(Value operands, Value scalars) {
  Type pointerType = LLVM::LLVMPointerType::get(b.getContext());
  auto element = [&](Value array, Type type, size_t i) -> Value {
    Value slot = LLVM::GEPOp::create(
        b, loc, pointerType, type, array,
        llvm::ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    return LLVM::LoadOp::create(b, loc, type, slot);
  };
  for (size_t i = 0; i < graph.operands.size(); ++i)
    bases.push_back(element(operands, pointerType, i));
  for (auto [i, arg] : llvm::enumerate(graph.scalars))
    bindScalar(arg, element(scalars, b.getI64Type(), i));
}

void EmitterBase::takeArguments(ValueRange arguments) {
  size_t count = graph.operands.size();
  bases.assign(arguments.begin(), arguments.begin() + count);
  for (auto [arg, word] : llvm::zip(graph.scalars, arguments.drop_front(count)))
    bindScalar(arg, word);
}

void EmitterBase::emitEntryOps() {
  for (Operation &op : kernel.getBody().front().without_terminator()) {
    if (auto constant = dyn_cast<arith::ConstantOp>(op);
        constant && isa<RankedTensorType>(constant.getType())) {
      auto dense = dyn_cast<SplatElementsAttr>(constant.getValue());
      if (!dense) {
        op.emitError() << "a constant tensor of a kernel must have equal "
                          "elements";
        failed = true;
        continue;
      }
      auto scalar = cast<TypedAttr>(dense.getSplatValue<Attribute>());
      auto single = arith::ConstantOp::create(b, loc, scalar);
      entry[constant.getResult()] = ops.emit(single, {});
      single.erase();
      continue;
    }
    if (op.getNumResults() != 1 ||
        isa<RankedTensorType>(op.getResult(0).getType()))
      continue;
    SmallVector<Value> values;
    for (Value operand : op.getOperands())
      values.push_back(entryValue(operand));
    Value result = failed ? Value() : ops.emit(&op, values);
    failed |= !result;
    entry[op.getResult(0)] = result;
  }
}

Value EmitterBase::entryValue(Value value) {
  if (Value known = entry.lookup(value))
    return known;
  kernel.emitError()
      << "a kernel op captures a value that is no scalar of the kernel";
  failed = true;
  return entry[value] = i64(0);
}

Reduction EmitterBase::describe(OpResult result) {
  auto generic = cast<linalg::GenericOp>(result.getOwner());
  auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
  unsigned number = result.getResultNumber();
  BlockArgument carried =
      generic.getBody()->getArgument(generic.getNumDpsInputs() + number);
  Type element = carried.getType();
  Operation *combiner = yield.getOperand(number).getDefiningOp();
  bool ok = combiner && combiner->getNumOperands() == 2 &&
            carried.hasOneUse() &&
            llvm::is_contained(combiner->getOperands(), carried) &&
            ScalarOps::neutral(combiner, ops.scalarType(element));
  if (!ok) {
    generic.emitError() << "result " << number
                        << " is not a reduction that kernels know; expected "
                           "one sum, product, maximum, minimum, and, or of the "
                           "carried value with another value";
    failed = true;
    return {result, nullptr, nullptr, element};
  }
  Value other = combiner->getOperand(0) == carried ? combiner->getOperand(1)
                                                   : combiner->getOperand(0);
  return {result, combiner, other, element};
}

Value EmitterBase::advance(Value base, const Access &access, Value offset) {
  if (!offset)
    return base;
  Type type = ops.memoryType(graph.operands[access.operand].element);
  return LLVM::GEPOp::create(b, loc, base.getType(), type, base,
                             llvm::ArrayRef<LLVM::GEPArg>{offset});
}

Value EmitterBase::added(Value old, Value value, const KernelOperand &operand) {
  auto sumOf = [&]() -> Value {
    if (isa<FloatType>(operand.element))
      return arith::AddFOp::create(b, loc, old, value);
    if (operand.element.isInteger(1))
      return arith::OrIOp::create(b, loc, old, value);
    return arith::AddIOp::create(b, loc, old, value);
  };
  Value sum = sumOf();
  return operand.element.isBF16() ? ops.roundToBf16(sum) : sum;
}

} // namespace merak::codegen::emitter
