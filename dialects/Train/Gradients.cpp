// Gradients of element-wise, shape, reduction and contraction ops.
#include "dialects/Train/Builders.h"

using namespace mlir;
using namespace merak::train;

// Signature of every buildGradient below. `dy` is the gradient of result 0.
#define GRADIENT(OpName)                                                       \
  void OpName::buildGradient(OpBuilder &b, ArrayRef<Value> resultGrads,        \
                             ArrayRef<bool> wanted,                            \
                             SmallVectorImpl<Value> &grads)
#define PRELUDE                                                                \
  Location loc = getLoc();                                                     \
  Value dy = resultGrads[0];                                                   \
  grads.assign((*this)->getNumOperands(), Value());                            \
  if (!dy)                                                                     \
    return;

static Value add(OpBuilder &b, Location loc, Value x, Value y) {
  return AddOp::create(b, loc, x, y);
}
static Value sub(OpBuilder &b, Location loc, Value x, Value y) {
  return SubOp::create(b, loc, x, y);
}
static Value mul(OpBuilder &b, Location loc, Value x, Value y) {
  return MulOp::create(b, loc, x, y);
}
static Value div(OpBuilder &b, Location loc, Value x, Value y) {
  return DivOp::create(b, loc, x, y);
}
static Value neg(OpBuilder &b, Location loc, Value x) {
  return NegOp::create(b, loc, x);
}
static Value number(OpBuilder &b, Location loc, Value like, double value) {
  return scalarConstant(b, loc, tensorTypeOf(like).getElementType(), value);
}
// condition ? value : 0, broadcast to `value`.
static Value maskWhere(OpBuilder &b, Location loc, ComparePredicate predicate,
                       Value lhs, Value rhs, Value value) {
  Value condition = CompareOp::create(b, loc, predicate, lhs, rhs);
  return SelectOp::create(b, loc, condition, value, number(b, loc, value, 0));
}

//===----------------------------------------------------------------------===//
// Element-wise
//===----------------------------------------------------------------------===//

GRADIENT(NegOp) { PRELUDE grads[0] = neg(b, loc, dy); }
GRADIENT(ExpOp) { PRELUDE grads[0] = mul(b, loc, dy, getY()); }
GRADIENT(LogOp) { PRELUDE grads[0] = div(b, loc, dy, getX()); }
GRADIENT(SqrtOp) {
  PRELUDE grads[0] = div(b, loc, scale(b, loc, dy, 0.5), getY());
}
GRADIENT(ReciprocalOp) {
  PRELUDE grads[0] = neg(b, loc, mul(b, loc, dy, mul(b, loc, getY(), getY())));
}
GRADIENT(AbsOp) {
  PRELUDE Value zero = number(b, loc, getX(), 0);
  Value positive = maskWhere(b, loc, ComparePredicate::gt, getX(), zero, dy);
  Value negative = maskWhere(b, loc, ComparePredicate::lt, getX(), zero, dy);
  grads[0] = sub(b, loc, positive, negative);
}
GRADIENT(SinOp) {
  PRELUDE grads[0] = mul(b, loc, dy, CosOp::create(b, loc, getX()));
}
GRADIENT(CosOp) {
  PRELUDE grads[0] =
      neg(b, loc, mul(b, loc, dy, SinOp::create(b, loc, getX())));
}
GRADIENT(TanhOp) {
  PRELUDE Value square = mul(b, loc, getY(), getY());
  grads[0] = mul(b, loc, dy, sub(b, loc, number(b, loc, getY(), 1), square));
}
GRADIENT(ErfOp) {
  // erf'(x) = 2 / sqrt(pi) * exp(-x^2)
  PRELUDE Value e =
      ExpOp::create(b, loc, neg(b, loc, mul(b, loc, getX(), getX())));
  grads[0] = mul(b, loc, dy, scale(b, loc, e, 1.1283791670955126));
}
GRADIENT(SigmoidOp) {
  PRELUDE Value rest = sub(b, loc, number(b, loc, getY(), 1), getY());
  grads[0] = mul(b, loc, dy, mul(b, loc, getY(), rest));
}
GRADIENT(ReluOp) {
  PRELUDE grads[0] = maskWhere(b, loc, ComparePredicate::gt, getX(),
                               number(b, loc, getX(), 0), dy);
}
GRADIENT(TanOp) {
  PRELUDE Value square = mul(b, loc, getY(), getY());
  grads[0] = mul(b, loc, dy, add(b, loc, square, number(b, loc, getY(), 1)));
}
// 1 / sqrt(1 - x^2)
static Value arcSlope(OpBuilder &b, Location loc, Value x) {
  Value rest = sub(b, loc, number(b, loc, x, 1), mul(b, loc, x, x));
  return ReciprocalOp::create(b, loc, SqrtOp::create(b, loc, rest));
}
GRADIENT(AsinOp) {
  PRELUDE grads[0] = mul(b, loc, dy, arcSlope(b, loc, getX()));
}
GRADIENT(AcosOp) {
  PRELUDE grads[0] = neg(b, loc, mul(b, loc, dy, arcSlope(b, loc, getX())));
}
GRADIENT(AtanOp) {
  PRELUDE Value square = mul(b, loc, getX(), getX());
  grads[0] = div(b, loc, dy, add(b, loc, square, number(b, loc, getX(), 1)));
}
GRADIENT(SinhOp) {
  PRELUDE grads[0] = mul(b, loc, dy, CoshOp::create(b, loc, getX()));
}
GRADIENT(CoshOp) {
  PRELUDE grads[0] = mul(b, loc, dy, SinhOp::create(b, loc, getX()));
}
GRADIENT(FloorOp) {
  PRELUDE grads[0] = zerosLike(b, loc, tensorTypeOf(getX()));
}
GRADIENT(RoundOp) {
  PRELUDE grads[0] = zerosLike(b, loc, tensorTypeOf(getX()));
}
GRADIENT(GeluOp) {
  PRELUDE grads[0] = GeluGradOp::create(b, loc, dy, getX(), getTanhAttr());
}
GRADIENT(CastOp) {
  PRELUDE if (!isa<FloatType>(tensorTypeOf(getX()).getElementType())) return;
  // A sum that was formed in f32 and rounded for y is taken before that.
  auto rounded = dy.getDefiningOp<CastOp>();
  grads[0] = rounded && rounded.getX().getType() == getX().getType() &&
                     isHalf(tensorTypeOf(dy).getElementType())
                 ? rounded.getX()
                 : Value(CastOp::create(b, loc, getX().getType(), dy));
}

// The mask is drawn again: nothing is stored.
GRADIENT(DropoutOp) {
  PRELUDE grads[0] =
      DropoutOp::create(b, loc, dy.getType(), dy, getRatioAttr(), getIdAttr(),
                        nullptr, nullptr, nullptr, nullptr);
}

// Gradients of both operands of a broadcasting op.
#define BROADCAST(lhsGrad, rhsGrad)                                            \
  PRELUDE if (wanted[0]) grads[0] =                                            \
      reduceToType(b, loc, lhsGrad, tensorTypeOf(getLhs()));                   \
  if (wanted[1])                                                               \
  grads[1] = reduceToType(b, loc, rhsGrad, tensorTypeOf(getRhs()))

GRADIENT(AddOp) { BROADCAST(dy, dy); }
GRADIENT(SubOp) { BROADCAST(dy, neg(b, loc, dy)); }
GRADIENT(MulOp) {
  BROADCAST(mul(b, loc, dy, getRhs()), mul(b, loc, dy, getLhs()));
}
GRADIENT(DivOp) {
  BROADCAST(div(b, loc, dy, getRhs()),
            neg(b, loc, div(b, loc, mul(b, loc, dy, getResult()), getRhs())));
}
GRADIENT(PowOp) {
  // d/dx x^p = p x^(p-1); a constant exponent keeps x^(p-1) exact for p = 2.
  auto lhsGrad = [&]() -> Value {
    Location loc = getLoc();
    Value dy = resultGrads[0];
    if (auto constant = getRhs().getDefiningOp<ConstantOp>())
      if (auto splat = dyn_cast<SplatElementsAttr>(constant.getValue()))
        if (isa<FloatType>(splat.getElementType())) {
          double p = splat.getSplatValue<APFloat>().convertToDouble();
          Value power =
              p == 2 ? getLhs()
                     : Value(PowOp::create(b, loc, getLhs(),
                                           number(b, loc, getLhs(), p - 1)));
          return mul(b, loc, dy, scale(b, loc, power, p));
        }
    Value less = sub(b, loc, getRhs(), number(b, loc, getRhs(), 1));
    Value power = PowOp::create(b, loc, getLhs(), less);
    return mul(b, loc, dy, mul(b, loc, getRhs(), power));
  };
  BROADCAST(lhsGrad(),
            mul(b, loc, dy,
                mul(b, loc, getResult(), LogOp::create(b, loc, getLhs()))));
}
// Ties give the whole gradient to the left operand.
GRADIENT(MaxOp) {
  BROADCAST(maskWhere(b, loc, ComparePredicate::ge, getLhs(), getRhs(), dy),
            maskWhere(b, loc, ComparePredicate::lt, getLhs(), getRhs(), dy));
}
GRADIENT(MinOp) {
  BROADCAST(maskWhere(b, loc, ComparePredicate::le, getLhs(), getRhs(), dy),
            maskWhere(b, loc, ComparePredicate::gt, getLhs(), getRhs(), dy));
}
#undef BROADCAST

GRADIENT(SelectOp) {
  PRELUDE Value zero = number(b, loc, dy, 0);
  if (wanted[1])
    grads[1] =
        reduceToType(b, loc, SelectOp::create(b, loc, getCondition(), dy, zero),
                     tensorTypeOf(getLhs()));
  if (wanted[2])
    grads[2] =
        reduceToType(b, loc, SelectOp::create(b, loc, getCondition(), zero, dy),
                     tensorTypeOf(getRhs()));
}

//===----------------------------------------------------------------------===//
// Shape
//===----------------------------------------------------------------------===//

GRADIENT(ReshapeOp) {
  PRELUDE grads[0] = reshapeTo(b, loc, dy, tensorTypeOf(getX()).getShape());
}
GRADIENT(TransposeOp) {
  PRELUDE SmallVector<int64_t> inverse(getPerm().size());
  for (auto [index, dim] : llvm::enumerate(getPerm()))
    inverse[dim] = static_cast<int64_t>(index);
  grads[0] = TransposeOp::create(b, loc, dy, inverse);
}
GRADIENT(ExpandOp) {
  PRELUDE grads[0] = reduceToType(b, loc, dy, tensorTypeOf(getX()));
}
GRADIENT(SliceOp) {
  PRELUDE ArrayRef<int64_t> shape = tensorTypeOf(getX()).getShape();
  SmallVector<int64_t> high, interior;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t size = getSizes()[i], step = getSteps()[i];
    interior.push_back(step - 1);
    high.push_back(shape[i] - getStarts()[i] - size -
                   (step - 1) * std::max<int64_t>(0, size - 1));
  }
  grads[0] =
      PadOp::create(b, loc, dy, getStartsAttr(), b.getDenseI64ArrayAttr(high),
                    b.getDenseI64ArrayAttr(interior), b.getF64FloatAttr(0));
}
GRADIENT(PadOp) {
  PRELUDE ArrayRef<int64_t> shape = tensorTypeOf(getX()).getShape();
  SmallVector<int64_t> steps;
  for (int64_t interior : getInterior())
    steps.push_back(interior + 1);
  grads[0] = SliceOp::create(b, loc, dy, getLow(), shape, steps);
}
GRADIENT(ConcatOp) {
  PRELUDE int64_t start = 0;
  for (auto [index, input] : llvm::enumerate(getInputs())) {
    int64_t size = tensorTypeOf(input).getDimSize(getAxis());
    if (wanted[index])
      grads[index] = sliceAxis(b, loc, dy, getAxis(), start, size);
    start += size;
  }
}
GRADIENT(GatherOp) {
  PRELUDE grads[0] = ScatterAddOp::create(
      b, loc, getTable().getType(), dy, getIds(), getAxisAttr(), getRowsAttr(),
      getSplitAxisAttr(), getBatchAttr());
}
GRADIENT(ScatterAddOp) {
  PRELUDE grads[0] =
      GatherOp::create(b, loc, dy, getIds(), getAxisAttr(), getRowsAttr(),
                       getSplitAxisAttr(), getBatchAttr());
}

// Of the largest (smallest) the updates that are it, in equal parts; of a
// product the other factors, of which no more than one may be zero.
GRADIENT(ScatterReduceOp) {
  PRELUDE IntegerAttr axis = getBatchAttr();
  auto rowsOf = [&](Value table) -> Value {
    return GatherOp::create(b, loc, table, getIds(), axis, IntegerAttr(),
                            StringAttr(), axis);
  };
  auto countOf = [&](Value flags) -> Value {
    return ScatterAddOp::create(b, loc, getTable().getType(), flags, getIds(),
                                axis, IntegerAttr(), StringAttr(), axis);
  };
  Value u = getUpdates(), own = rowsOf(dy);
  Value zero = number(b, loc, u, 0);
  Value ones = ExpandOp::create(b, loc, u.getType(), number(b, loc, u, 1));
  if (getKind() != ScatterReduction::mul) {
    Value best =
        maskWhere(b, loc, ComparePredicate::eq, u, rowsOf(getTable()), ones);
    grads[0] = mul(b, loc, own, div(b, loc, best, rowsOf(countOf(best))));
    return;
  }
  Value isZero = maskWhere(b, loc, ComparePredicate::eq, u, zero, ones);
  Value others = sub(b, loc, rowsOf(countOf(isZero)), isZero);
  Value factors = add(b, loc, u, isZero); // zeros as ones
  Value product =
      ScatterReduceOp::create(b, loc, getTable().getType(), factors, getIds(),
                              ScatterReduction::mul, getBatch());
  Value rest = div(b, loc, rowsOf(product), factors);
  grads[0] = maskWhere(b, loc, ComparePredicate::eq, others, zero,
                       mul(b, loc, own, rest));
}

// Back to where the chosen elements stood in their row.
GRADIENT(TopKOp) {
  PRELUDE IntegerAttr last =
      b.getI64IntegerAttr(tensorTypeOf(getX()).getRank() - 1);
  grads[0] = ScatterAddOp::create(b, loc, getX().getType(), dy, getIndices(),
                                  last, IntegerAttr(), StringAttr(), last);
}

//===----------------------------------------------------------------------===//
// Reductions and contractions
//===----------------------------------------------------------------------===//

// Brings back dropped dimensions as size 1.
static Value restoreDims(OpBuilder &b, Location loc, Value y, Value x,
                         ArrayRef<int64_t> axes) {
  SmallVector<int64_t> shape(tensorTypeOf(x).getShape());
  for (int64_t axis : axes)
    shape[axis] = 1;
  return reshapeTo(b, loc, y, shape);
}
GRADIENT(ReduceSumOp) {
  PRELUDE grads[0] = ExpandOp::create(
      b, loc, getX().getType(), restoreDims(b, loc, dy, getX(), getAxes()));
}
// Ties share the gradient equally.
GRADIENT(ReduceMaxOp) {
  PRELUDE Value max = restoreDims(b, loc, getY(), getX(), getAxes());
  Value full = ExpandOp::create(b, loc, getX().getType(),
                                restoreDims(b, loc, dy, getX(), getAxes()));
  Value one =
      ExpandOp::create(b, loc, getX().getType(), number(b, loc, getX(), 1));
  Value isMax = maskWhere(b, loc, ComparePredicate::eq, getX(), max, one);
  Value count = reduceSum(b, loc, isMax, getAxes(), true);
  grads[0] = mul(b, loc, full, div(b, loc, isMax, count));
}

// d(lhs): swap lhs and out. Letters of lhs that neither out nor rhs has were
// summed away: their gradient is broadcast. Of products in 8 bits the gradient
// has the type with the larger range, the other operand the one with more
// digits.
static Value einsumGradient(OpBuilder &b, Location loc, Value dy, Value other,
                            const std::string &out,
                            const std::string &otherText,
                            const std::string &wantedText, Value wantedValue,
                            bool otherFirst, bool rounds) {
  ArrayAttr types;
  if (rounds) {
    Type range = Float8E5M2Type::get(b.getContext());
    Type digits = Float8E4M3FNType::get(b.getContext());
    types = otherFirst ? b.getTypeArrayAttr({digits, range})
                       : b.getTypeArrayAttr({range, digits});
  }
  std::string reachable;
  SmallVector<int64_t> shape(tensorTypeOf(wantedValue).getShape());
  SmallVector<int64_t> kept(shape);
  for (auto [index, letter] : llvm::enumerate(wantedText)) {
    if (out.find(letter) != std::string::npos ||
        otherText.find(letter) != std::string::npos)
      reachable.push_back(letter);
    else
      kept[index] = 1;
  }
  Value grad =
      otherFirst
          ? EinsumOp::create(b, loc, otherText + "," + out + "->" + reachable,
                             other, dy, types)
          : EinsumOp::create(b, loc, out + "," + otherText + "->" + reachable,
                             dy, other, types);
  if (reachable == wantedText)
    return grad;
  return ExpandOp::create(b, loc, wantedValue.getType(),
                          reshapeTo(b, loc, grad, kept));
}
GRADIENT(EinsumOp) {
  PRELUDE Letters letters = getLetters();
  const bool rounds = getRoundsAttr() != nullptr;
  if (wanted[0])
    grads[0] = einsumGradient(b, loc, dy, getRhs(), letters.out, letters.rhs,
                              letters.lhs, getLhs(), false, rounds);
  if (wanted[1])
    grads[1] = einsumGradient(b, loc, dy, getLhs(), letters.out, letters.lhs,
                              letters.rhs, getRhs(), true, rounds);
}
