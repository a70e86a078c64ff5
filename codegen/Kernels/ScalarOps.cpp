#include "codegen/Kernels/ScalarOps.h"

#include "codegen/Kernels/KernelSchedule.h"
#include "codegen/Kernels/ScalarTable.h"
#include "codegen/Kernels/VectorMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;

namespace merak::codegen {

Type ScalarOps::scalarType(Type element) const {
  if (element.isBF16())
    return b.getF32Type();
  if (element.isIndex())
    return b.getI64Type();
  return element;
}
Type ScalarOps::vectorType(Type element) const {
  return VectorType::get({kLanes}, scalarType(element));
}
Type ScalarOps::memoryType(Type element) const {
  if (element.isInteger(1))
    return b.getI8Type();
  if (element.isBF16())
    return b.getIntegerType(16);
  return element;
}
Type ScalarOps::like(Type shape, Type element) const {
  if (auto vector = dyn_cast<VectorType>(shape))
    return VectorType::get(vector.getShape(), element);
  return element;
}

Value ScalarOps::constant(Type type, Attribute value) {
  if (auto vector = dyn_cast<VectorType>(type))
    value = DenseElementsAttr::get(vector, value);
  return arith::ConstantOp::create(b, b.getUnknownLoc(), type,
                                   cast<TypedAttr>(value));
}
Value ScalarOps::constantInt(Type type, int64_t value) {
  return constant(type, b.getIntegerAttr(getElementTypeOrSelf(type), value));
}
Value ScalarOps::splat(Value value) {
  if (isa<VectorType>(value.getType()))
    return value;
  return vector::BroadcastOp::create(
      b, b.getUnknownLoc(), VectorType::get({kLanes}, value.getType()), value);
}

Value ScalarOps::fromMemory(Value value, Type element) {
  Location loc = b.getUnknownLoc();
  if (element.isInteger(1))
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, value,
                                 constantInt(value.getType(), 0));
  if (!element.isBF16())
    return value;
  Type wide = like(value.getType(), b.getI32Type());
  Value bits =
      arith::ShLIOp::create(b, loc, arith::ExtUIOp::create(b, loc, wide, value),
                            constantInt(wide, 16));
  return arith::BitcastOp::create(b, loc, like(wide, b.getF32Type()), bits);
}
Value ScalarOps::toMemory(Value value, Type element) {
  Location loc = b.getUnknownLoc();
  if (element.isInteger(1))
    return arith::ExtUIOp::create(b, loc, like(value.getType(), b.getI8Type()),
                                  value);
  if (!element.isBF16())
    return value;
  Type wide = like(value.getType(), b.getI32Type());
  Value bits = arith::BitcastOp::create(b, loc, wide, value);
  bits = arith::ShRUIOp::create(b, loc, bits, constantInt(wide, 16));
  return arith::TruncIOp::create(b, loc, like(wide, b.getIntegerType(16)),
                                 bits);
}

Value ScalarOps::fromWord(Value word, bool isHigh, Type element) {
  Location loc = b.getUnknownLoc();
  Type type = word.getType();
  if (element.isF16()) {
    Value pair =
        LLVM::BitcastOp::create(b, loc, VectorType::get({2}, element), word);
    return LLVM::ExtractElementOp::create(b, loc, pair,
                                          constantInt(type, isHigh));
  }
  Value bits =
      isHigh
          ? Value(arith::AndIOp::create(
                b, loc, word,
                constantInt(type, static_cast<int32_t>(0xffff0000))))
          : Value(arith::ShLIOp::create(b, loc, word, constantInt(type, 16)));
  return arith::BitcastOp::create(b, loc, b.getF32Type(), bits);
}

Value ScalarOps::toWord(Value low, Value high, Type element) {
  Location loc = b.getUnknownLoc();
  if (Value first = unrounded.lookup(low), second = unrounded.lookup(high);
      first && second)
    return convertedPair(second, first, element);
  Type type = b.getI32Type();
  if (element.isF16()) {
    Value pair = LLVM::UndefOp::create(b, loc, VectorType::get({2}, element));
    pair =
        LLVM::InsertElementOp::create(b, loc, pair, low, constantInt(type, 0));
    pair =
        LLVM::InsertElementOp::create(b, loc, pair, high, constantInt(type, 1));
    return LLVM::BitcastOp::create(b, loc, type, pair);
  }
  low = arith::ShRUIOp::create(b, loc,
                               arith::BitcastOp::create(b, loc, type, low),
                               constantInt(type, 16));
  high = arith::AndIOp::create(
      b, loc, arith::BitcastOp::create(b, loc, type, high),
      constantInt(type, static_cast<int32_t>(0xffff0000)));
  return arith::OrIOp::create(b, loc, low, high);
}

Value ScalarOps::convertedPair(Value high, Value low, Type element) {
  Location loc = b.getUnknownLoc();
  const char *intrinsic =
      element.isF16() ? "llvm.nvvm.ff2f16x2.rn" : "llvm.nvvm.ff2bf16x2.rn";
  Value pair = LLVM::CallIntrinsicOp::create(
                   b, loc, VectorType::get({2}, element),
                   b.getStringAttr(intrinsic), ValueRange{high, low})
                   .getResult(0);
  return LLVM::BitcastOp::create(b, loc, b.getI32Type(), pair);
}

// To nearest, ties to even, on the bits; a NaN stays one.
Value ScalarOps::roundToBf16(Value value) {
  Location loc = b.getUnknownLoc();
  Type type = value.getType();
  if (target.isGpu) {
    // The conversion of two is one instruction, and the upper one of them is
    // the f32; that of one is four times as slow.
    Value rounded = arith::BitcastOp::create(
        b, loc, type,
        convertedPair(value, constant(type, b.getF32FloatAttr(0)),
                      b.getBF16Type()));
    unrounded[rounded] = value;
    return rounded;
  }
  Type wide = like(type, b.getI32Type());
  Value bits = arith::BitcastOp::create(b, loc, wide, value);
  Value odd = arith::AndIOp::create(
      b, loc, arith::ShRUIOp::create(b, loc, bits, constantInt(wide, 16)),
      constantInt(wide, 1));
  Value bias = arith::AddIOp::create(b, loc, odd, constantInt(wide, 0x7fff));
  Value rounded = arith::AndIOp::create(
      b, loc, arith::AddIOp::create(b, loc, bits, bias),
      constantInt(wide, static_cast<int32_t>(0xffff0000)));
  Value isNan =
      arith::CmpFOp::create(b, loc, arith::CmpFPredicate::UNO, value, value);
  rounded = arith::SelectOp::create(b, loc, isNan,
                                    constantInt(wide, 0x7fc00000), rounded);
  return arith::BitcastOp::create(b, loc, type, rounded);
}

Value ScalarOps::roundToOdd(Value value) {
  Location loc = b.getUnknownLoc();
  Type narrow = like(value.getType(), b.getF32Type());
  Type bitsType = like(value.getType(), b.getI32Type());
  Value nearest = arith::TruncFOp::create(b, loc, narrow, value);
  Value back = arith::ExtFOp::create(b, loc, value.getType(), nearest);
  // Of an even neighbour the odd one lies beyond the value, one step towards
  // zero or away from it. A NaN counts as held.
  Value bits = arith::BitcastOp::create(b, loc, bitsType, nearest);
  auto compare = [&](arith::CmpFPredicate predicate, Value l, Value r) {
    return arith::CmpFOp::create(b, loc, predicate, l, r);
  };
  Value isNegative = compare(arith::CmpFPredicate::OLT, value,
                             constant(value.getType(), b.getF64FloatAttr(0)));
  Value isAbove = compare(arith::CmpFPredicate::OGT, back, value);
  Value isPast = arith::XOrIOp::create(b, loc, isAbove, isNegative);
  Value step = arith::SelectOp::create(
      b, loc, isPast, constantInt(bitsType, -1), constantInt(bitsType, 1));
  Value isEven = arith::CmpIOp::create(
      b, loc, arith::CmpIPredicate::eq,
      arith::AndIOp::create(b, loc, bits, constantInt(bitsType, 1)),
      constantInt(bitsType, 0));
  Value moves = arith::AndIOp::create(
      b, loc, isEven, compare(arith::CmpFPredicate::ONE, back, value));
  Value moved = arith::AddIOp::create(b, loc, bits, step);
  bits = arith::SelectOp::create(b, loc, moves, moved, bits);
  return arith::BitcastOp::create(b, loc, narrow, bits);
}

Value ScalarOps::castInt(Value value, Type element, bool isSigned) {
  Type from = getElementTypeOrSelf(value.getType());
  unsigned source = from.getIntOrFloatBitWidth();
  unsigned wanted = element.getIntOrFloatBitWidth();
  Type type = like(value.getType(), element);
  Location loc = b.getUnknownLoc();
  if (source == wanted)
    return value;
  if (source > wanted)
    return arith::TruncIOp::create(b, loc, type, value);
  if (isSigned)
    return arith::ExtSIOp::create(b, loc, type, value);
  return arith::ExtUIOp::create(b, loc, type, value);
}

// Integer division must not trap: x / 0 is x, and the most negative number
// divided by -1 wraps.
Value ScalarOps::divide(Operation *op, Value a, Value d) {
  Location loc = op->getLoc();
  Type type = a.getType();
  Value zero = constantInt(type, 0), one = constantInt(type, 1);
  auto equals = [&](int64_t n) -> Value {
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, d,
                                 constantInt(type, n));
  };
  Value safe = arith::SelectOp::create(b, loc, equals(0), one, d);
  if (isa<arith::DivUIOp>(op))
    return arith::DivUIOp::create(b, loc, a, safe);
  if (isa<arith::RemUIOp>(op))
    return arith::RemUIOp::create(b, loc, a, safe);
  Value minusOne = equals(-1);
  safe = arith::SelectOp::create(b, loc, minusOne, one, safe);
  if (isa<arith::RemSIOp>(op))
    return arith::RemSIOp::create(b, loc, a, safe);
  Value quotient = arith::DivSIOp::create(b, loc, a, safe);
  Value negated = arith::SubIOp::create(b, loc, zero, a);
  return arith::SelectOp::create(b, loc, minusOne, negated, quotient);
}

static TypedAttr neutralReal(Neutral neutral, FloatType type) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto real = [&](double value) { return FloatAttr::get(type, value); };
  switch (neutral) {
  case Neutral::Zero:
    return real(0.0);
  case Neutral::One:
    return real(1.0);
  case Neutral::Least:
    return real(-kInfinity);
  case Neutral::Greatest:
    return real(kInfinity);
  case Neutral::AllOnes:
  case Neutral::None:
    break;
  }
  return nullptr;
}

static TypedAttr neutralWhole(Neutral neutral, IntegerType type) {
  unsigned width = type.getWidth();
  auto whole = [&](const llvm::APInt &value) {
    return IntegerAttr::get(type, value);
  };
  switch (neutral) {
  case Neutral::Zero:
    return whole(llvm::APInt(width, 0));
  case Neutral::One:
    return whole(llvm::APInt(width, 1));
  case Neutral::AllOnes:
    return whole(llvm::APInt::getAllOnes(width));
  case Neutral::Least:
    return whole(llvm::APInt::getSignedMinValue(width));
  case Neutral::Greatest:
    return whole(llvm::APInt::getSignedMaxValue(width));
  case Neutral::None:
    break;
  }
  return nullptr;
}

TypedAttr ScalarOps::neutral(Operation *op, Type element) {
  Neutral neutral = scalarOp(op).neutral;
  if (auto type = dyn_cast<FloatType>(element))
    return neutralReal(neutral, type);
  if (element.isSignlessInteger())
    return neutralWhole(neutral, cast<IntegerType>(element));
  return nullptr;
}

Value ScalarOps::emit(Operation *op, ValueRange given) {
  Location loc = op->getLoc();
  if (op->getNumResults() != 1 || op->getNumRegions() != 0) {
    op->emitError() << "'" << op->getName() << "' is not a scalar operation";
    return nullptr;
  }
  Type element = op->getResult(0).getType();
  if (auto constantOp = dyn_cast<arith::ConstantOp>(op)) {
    if (element.isBF16())
      return constant(
          b.getF32Type(),
          b.getF32FloatAttr(
              cast<FloatAttr>(constantOp.getValue()).getValueAsDouble()));
    if (element.isIndex())
      return constantInt(b.getI64Type(),
                         cast<IntegerAttr>(constantOp.getValue()).getInt());
    return constant(element, constantOp.getValue());
  }
  SmallVector<Value> operands(given);
  bool isVector = llvm::any_of(
      operands, [](Value v) { return isa<VectorType>(v.getType()); });
  if (isVector)
    for (Value &operand : operands)
      operand = splat(operand);
  Type scalar = scalarType(element);
  Type type = isVector ? vectorType(element) : scalar;
  Type source = op->getOperand(0).getType();

  if (isa<arith::IndexCastOp>(op))
    return castInt(operands[0], scalar, true);
  if (isa<arith::IndexCastUIOp>(op))
    return castInt(operands[0], scalar, false);
  if (isa<arith::DivSIOp, arith::DivUIOp, arith::RemSIOp, arith::RemUIOp>(op))
    return divide(op, operands[0], operands[1]);
  if (isa<arith::ExtFOp>(op) && operands[0].getType() == type)
    return operands[0]; // bf16 to f32
  if (isa<arith::TruncFOp>(op) && element.isBF16()) {
    Value value = operands[0];
    if (source.isF64())
      value = roundToOdd(value);
    else if (source.isF16())
      value = arith::ExtFOp::create(b, loc, type, value);
    return roundToBf16(value);
  }
  // Processors convert f32 to f16; from f64 it would be a library call.
  if (isa<arith::TruncFOp>(op) && element.isF16() && source.isF64() &&
      !target.isGpu)
    operands[0] = roundToOdd(operands[0]);
  Value result;
  bool isMath = isa<math::MathDialect>(op->getDialect());
  if (isMath && isa<FloatType>(element)) {
    VectorMath math(b, loc, target.hasFma, target.hasRound, target.isGpu);
    bool half = element.isF16();
    if (half)
      for (Value &operand : operands)
        operand = arith::ExtFOp::create(
            b, loc, like(operand.getType(), b.getF32Type()), operand);
    result = math.emit(op, operands);
    if (!result) {
      op->emitError() << "'" << op->getName()
                      << "' has no implementation in kernels for " << element
                      << " on " << target.name;
      return nullptr;
    }
    if (half)
      result = arith::TruncFOp::create(b, loc, type, result);
  } else if (isMath || isa<arith::ArithDialect>(op->getDialect())) {
    OperationState state(loc, op->getName());
    state.addOperands(operands);
    state.addTypes(type);
    state.propertiesAttr = op->getPropertiesAsAttribute();
    Operation *created = b.create(state);
    // No fast-math, whatever the input says.
    if (auto fast = dyn_cast<arith::ArithFastMathInterface>(created))
      created->setAttr(fast.getFastMathAttrName(),
                       arith::FastMathFlagsAttr::get(
                           b.getContext(), arith::FastMathFlags::none));
    result = created->getResult(0);
  } else {
    op->emitError() << "'" << op->getName()
                    << "' is not allowed in the body of a kernel op; expected "
                       "arith or math";
    return nullptr;
  }
  if (target.isGpu && isa<arith::TruncFOp>(op) && element.isF16() &&
      operands[0].getType().isF32())
    unrounded[result] = operands[0];
  bool exact = isa<arith::SelectOp, arith::NegFOp>(op);
  return element.isBF16() && !exact ? roundToBf16(result) : result;
}

} // namespace merak::codegen
