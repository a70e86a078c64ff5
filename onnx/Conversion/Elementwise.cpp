// Element-wise ONNX ops.
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/HostTensor.h"

#include <cmath>
#include <fmt/format.h>

using namespace mlir;
using namespace merak;
using namespace merak::train;

template <typename OpTy> CONVERT(unary) {
  if (failed(needs(node, b, 1)))
    return failure();
  return give(results, b.unary<OpTy>(node.in(0)));
}

template <typename OpTy> CONVERT(unaryFloat) {
  if (failed(needsFloat(node, b)))
    return failure();
  return give(results, b.unary<OpTy>(node.in(0)));
}

template <typename OpTy> CONVERT(binary) {
  if (failed(needs(node, b, 2)))
    return failure();
  return give(results, b.binary<OpTy>(node.in(0), node.in(1)));
}

// The second operand of a binary op before opset 7: `broadcast` lets it be
// smaller, its dimensions then begin at `axis`, or end with the last one.
static Value oldOperand(const OnnxNode &node, GraphBuilder &b) {
  Value l = node.in(0), r = node.in(1);
  if (!node.integer("broadcast", 0) || !node.hasAttribute("axis"))
    return r;
  std::optional<int64_t> axis = wrapAxis(node.integer("axis", 0), rankOf(l), b);
  if (!axis)
    return {};
  Shape shape(shapeOf(r));
  while (static_cast<int64_t>(shape.size()) + *axis < rankOf(l))
    shape.push_back(1);
  return b.reshape(r, shape);
}

template <typename OpTy> CONVERT(oldBinary) {
  if (failed(needs(node, b, 2)))
    return failure();
  return give(results, b.binary<OpTy>(node.in(0), oldOperand(node, b)));
}

template <ComparePredicate predicate> CONVERT(oldCompare) {
  if (failed(needs(node, b, 2)))
    return failure();
  return give(results, b.compare(predicate, node.in(0), oldOperand(node, b)));
}

// Sum, Max, Min: any number of inputs.
template <typename OpTy> CONVERT(variadic) {
  if (failed(needs(node, b, std::max<size_t>(node.inputs.size(), 1))))
    return failure();
  Value value = node.in(0);
  for (size_t i = 1; i < node.inputs.size(); ++i)
    value = b.binary<OpTy>(value, node.in(i));
  return give(results, value);
}

CONVERT(convertMean) {
  if (failed(variadic<AddOp>(node, b, results)))
    return failure();
  return give(results, b.binary<MulOp>(results[0], 1.0 / node.inputs.size()));
}

template <ComparePredicate predicate> CONVERT(compare) {
  if (failed(needs(node, b, 2)))
    return failure();
  return give(results, b.compare(predicate, node.in(0), node.in(1)));
}

CONVERT(convertPow) {
  if (failed(needs(node, b, 2)))
    return failure();
  Type element = tensorType(node.in(0)).getElementType();
  // Powers are float arithmetic; f64 holds integers up to 2^53.
  Type wide = isa<FloatType>(element) ? element : b.builder.getF64Type();
  Value y = b.binary<PowOp>(b.cast(node.in(0), wide), b.cast(node.in(1), wide));
  return give(results, b.cast(y, element));
}

CONVERT(convertXor) {
  if (failed(needs(node, b, 2)))
    return failure();
  return give(results, b.compare(ComparePredicate::ne, node.in(0), node.in(1)));
}

CONVERT(convertIdentity) {
  if (failed(needs(node, b, 1)))
    return failure();
  return give(results, node.in(0));
}

CONVERT(convertWhere) {
  if (failed(needs(node, b, 3)))
    return failure();
  return give(results, b.select(node.in(0), node.in(1), node.in(2)));
}

Type merak::onnxElement(int64_t onnxType, MLIRContext *context) {
  switch (onnxType) {
  case 1:
    return Float32Type::get(context);
  case 2:
    return IntegerType::get(context, 8, IntegerType::Unsigned);
  case 3:
    return IntegerType::get(context, 8);
  case 4:
    return IntegerType::get(context, 16, IntegerType::Unsigned);
  case 5:
    return IntegerType::get(context, 16);
  case 6:
    return IntegerType::get(context, 32);
  case 7:
    return IntegerType::get(context, 64);
  case 9:
    return IntegerType::get(context, 1);
  case 10:
    return Float16Type::get(context);
  case 11:
    return Float64Type::get(context);
  case 12:
    return IntegerType::get(context, 32, IntegerType::Unsigned);
  case 13:
    return IntegerType::get(context, 64, IntegerType::Unsigned);
  case 16:
    return BFloat16Type::get(context);
  default:
    return {};
  }
}

CONVERT(convertCast) {
  if (failed(needs(node, b, 1)))
    return failure();
  int64_t to = node.integer("to", 0);
  Type element = onnxElement(to, b.builder.getContext());
  if (!element) {
    b.fail("expected a supported element type, found ONNX type code " +
           llvm::Twine(to));
    return failure();
  }
  return give(results, b.cast(node.in(0), element));
}

CONVERT(convertCastLike) {
  if (failed(needs(node, b, 2)))
    return failure();
  return give(results,
              b.cast(node.in(0), tensorType(node.in(1)).getElementType()));
}

CONVERT(convertClip) {
  if (failed(needs(node, b, 1)))
    return failure();
  Value x = node.in(0);
  if (node.has(1))
    x = b.binary<MaxOp>(x, node.in(1));
  else if (node.hasAttribute("min"))
    x = b.binary<MaxOp>(x, node.real("min", 0));
  if (node.has(2))
    x = b.binary<MinOp>(x, node.in(2));
  else if (node.hasAttribute("max"))
    x = b.binary<MinOp>(x, node.real("max", 0));
  return give(results, x);
}

// x where x > 0, else `negative`.
static Value rectify(GraphBuilder &b, Value x, Value negative) {
  return b.select(b.compare(ComparePredicate::gt, x, b.scalarLike(0, x)), x,
                  negative);
}

CONVERT(convertLeakyRelu) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  return give(results,
              rectify(b, x, b.binary<MulOp>(x, node.real("alpha", 0.01))));
}

CONVERT(convertPRelu) {
  if (failed(needs(node, b, 2)))
    return failure();
  Value x = node.in(0), slope = node.in(1);
  // A slope a channel, before broadcasting was that of NumPy.
  if (node.opset < 7 && rankOf(slope) == 1 && shapeOf(slope)[0] > 1) {
    Shape shape(std::max<int64_t>(rankOf(x) - 1, 1), 1);
    shape[0] = shapeOf(slope)[0];
    slope = b.reshape(slope, shape);
  }
  return give(results, rectify(b, x, b.binary<MulOp>(x, slope)));
}

// exp of the negative part, so that the unused branch stays finite.
static Value expNegative(GraphBuilder &b, Value x) {
  return b.unary<ExpOp>(b.binary<MinOp>(x, 0.0));
}

CONVERT(convertElu) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Value negative = b.binary<MulOp>(b.binary<SubOp>(expNegative(b, x), 1.0),
                                   node.real("alpha", 1.0));
  return give(results, rectify(b, x, negative));
}

CONVERT(convertSelu) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Value negative =
      b.binary<MulOp>(b.binary<SubOp>(expNegative(b, x), 1.0),
                      node.real("alpha", 1.67326319217681884765625));
  return give(results,
              b.binary<MulOp>(rectify(b, x, negative),
                              node.real("gamma", 1.05070102214813232421875)));
}

CONVERT(convertHardSigmoid) {
  if (failed(needsFloat(node, b)))
    return failure();
  bool isSwish = node.type == "HardSwish";
  Value x = node.in(0);
  Value line = b.binary<AddOp>(
      b.binary<MulOp>(x, isSwish ? 1.0 / 6 : node.real("alpha", 0.2)),
      b.scalarLike(isSwish ? 0.5 : node.real("beta", 0.5), x));
  Value gate = b.binary<MinOp>(b.binary<MaxOp>(line, 0.0), 1.0);
  return give(results, isSwish ? b.binary<MulOp>(x, gate) : gate);
}

// log(1 + exp(x)) without overflow.
static Value softplus(GraphBuilder &b, Value x) {
  Value tail = b.unary<ExpOp>(b.unary<NegOp>(b.unary<AbsOp>(x)));
  return b.binary<AddOp>(b.unary<ReluOp>(x),
                         b.unary<LogOp>(b.binary<AddOp>(tail, 1.0)));
}

CONVERT(convertSoftplus) {
  if (failed(needsFloat(node, b)))
    return failure();
  return give(results, softplus(b, node.in(0)));
}

CONVERT(convertMish) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  return give(results, b.binary<MulOp>(x, b.unary<TanhOp>(softplus(b, x))));
}

CONVERT(convertSoftsign) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  return give(results,
              b.binary<DivOp>(x, b.binary<AddOp>(b.unary<AbsOp>(x), 1.0)));
}

CONVERT(convertSwish) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  double alpha = node.real("alpha", 1.0);
  Value inner = alpha == 1.0 ? x : b.binary<MulOp>(x, alpha);
  return give(results, b.binary<MulOp>(x, b.unary<SigmoidOp>(inner)));
}

CONVERT(convertGelu) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  bool isTanh = node.string("approximate", "none") == "tanh";
  return give(results,
              GeluOp::create(b.builder, b.loc, x.getType(), x, isTanh));
}

// Before opset 12 the file does not say whether the node is active: PyTorch
// writes it only then.
static LogicalResult dropoutRatio(const OnnxNode &node, GraphBuilder &b,
                                  double &ratio) {
  ratio = 0;
  if (!node.dropout || (node.opset < 7 && node.integer("is_test", 0)))
    return success();
  ratio = 0.5;
  if (node.opset < 12) {
    ratio = node.real("ratio", ratio);
  } else {
    DenseElementsAttr mode =
        node.has(2) ? constantOf(node.in(2)) : DenseElementsAttr();
    if (node.has(2) && !mode) {
      b.fail("expected a constant training_mode");
      return failure();
    }
    std::optional<Shape> flags = mode ? integersOf(mode) : std::nullopt;
    if (node.hasAttribute(kTrainingMode))
      flags = Shape{node.integer(kTrainingMode, 0)};
    if (!flags || llvm::none_of(*flags, [](int64_t f) { return f; })) {
      ratio = 0;
      return success();
    }
    std::optional<double> given =
        node.has(1) ? splatOf(node.in(1)) : std::optional(ratio);
    if (!given) {
      b.fail("expected a constant ratio");
      return failure();
    }
    ratio = *given;
  }
  if (ratio >= 0 && ratio < 1)
    return success();
  b.fail(fmt::format("expected a ratio in [0, 1), found {}", ratio));
  return failure();
}

CONVERT(convertDropout) {
  double ratio;
  if (failed(needsFloat(node, b)) || failed(dropoutRatio(node, b, ratio)))
    return failure();
  Value x = node.in(0);
  auto drop = [&](Value value) -> Value {
    if (ratio == 0)
      return value;
    return DropoutOp::create(b.builder, b.loc, value.getType(), value,
                             b.builder.getF64FloatAttr(ratio),
                             b.builder.getI64IntegerAttr(node.number), nullptr,
                             nullptr, nullptr, nullptr);
  };
  if (results.size() > 1 && node.usedOutputs[1]) {
    // The mask of ones: what is kept is not zero.
    Type element = tensorType(x).getElementType();
    Value ones = drop(b.constant(DenseElementsAttr::get(
        tensorType(x), b.builder.getFloatAttr(element, 1.0))));
    results[1] = b.compare(ComparePredicate::gt, ones, b.scalar(0, element));
  }
  return give(results, drop(x));
}

CONVERT(convertOneHot) {
  if (failed(needs(node, b, 3)))
    return failure();
  // Any number type.
  DenseElementsAttr given = constantOf(node.in(1));
  std::optional<HostTensor> depth;
  if (given && given.getNumElements() == 1)
    depth = toHost(given);
  if (!depth) {
    b.fail("expected one constant depth, found data computed from the model's "
           "inputs or parameters");
    return failure();
  }
  Value ids = node.in(0), values = node.in(2);
  int64_t rank = rankOf(ids), axis = node.integer("axis", -1);
  std::optional<int64_t> at = wrapAxis(axis, rank + 1, b);
  if (!at || tensorType(values).getNumElements() != 2)
    return failure();
  auto count = static_cast<int64_t>(depth->real(0));
  if (count < 1 || count > kMaxEvaluated) {
    b.fail("expected a positive depth, found " + llvm::Twine(count));
    return failure();
  }
  Shape shape(shapeOf(ids)), classes(rank + 1 - *at, 1);
  shape.insert(shape.begin() + *at, 1);
  classes[0] = count;
  SmallVector<int64_t> numbers(count);
  for (int64_t i = 0; i < count; ++i)
    numbers[i] = i;
  Type element = b.builder.getI64Type();
  Value iota = b.constant(DenseElementsAttr::get(
      RankedTensorType::get(classes, element), ArrayRef<int64_t>(numbers)));
  Value wide = b.reshape(b.cast(ids, element), shape);
  // Negative ids count from the end.
  wide = b.select(b.compare(ComparePredicate::lt, wide, b.scalar(0, element)),
                  b.binary<AddOp>(wide, b.scalar(count, element)), wide);
  Value hit = b.compare(ComparePredicate::eq, wide, iota);
  Value off = b.reshape(b.sliceDim(values, 0, 0, 1), {});
  Value on = b.reshape(b.sliceDim(values, 0, 1, 1), {});
  return give(results, b.select(hit, on, off));
}

void merak::addElementwiseConversions(OnnxTable &table) {
  auto old = [&](const char *type, OnnxConversionFn convert) {
    table.add(type, 1, convert, 6);
  };
  old("Add", oldBinary<AddOp>);
  old("Sub", oldBinary<SubOp>);
  old("Mul", oldBinary<MulOp>);
  old("Div", oldBinary<DivOp>);
  old("Pow", oldBinary<PowOp>);
  old("And", oldBinary<AndOp>);
  old("Or", oldBinary<OrOp>);
  old("Xor", oldBinary<XorOp>);
  old("Equal", oldCompare<ComparePredicate::eq>);
  old("Less", oldCompare<ComparePredicate::lt>);
  old("Greater", oldCompare<ComparePredicate::gt>);
  table.add("Abs", 1, unary<AbsOp>);
  table.add("Neg", 1, unary<NegOp>);
  table.add("Not", 1, unary<NotOp>);
  table.add("Cos", 7, unaryFloat<CosOp>);
  table.add("Erf", 9, unaryFloat<ErfOp>);
  table.add("Exp", 1, unaryFloat<ExpOp>);
  table.add("Log", 1, unaryFloat<LogOp>);
  table.add("Reciprocal", 1, unaryFloat<ReciprocalOp>);
  table.add("Relu", 1, unaryFloat<ReluOp>);
  table.add("Sigmoid", 1, unaryFloat<SigmoidOp>);
  table.add("Sin", 7, unaryFloat<SinOp>);
  table.add("Sqrt", 1, unaryFloat<SqrtOp>);
  table.add("Tanh", 1, unaryFloat<TanhOp>);
  table.add("Add", 7, binary<AddOp>);
  table.add("Sub", 7, binary<SubOp>);
  table.add("Mul", 7, binary<MulOp>);
  table.add("Div", 7, binary<DivOp>);
  table.add("And", 7, binary<AndOp>);
  table.add("Or", 7, binary<OrOp>);
  table.add("Xor", 7, convertXor);
  table.add("Pow", 7, convertPow);
  table.add("Sum", 1, variadic<AddOp>);
  table.add("Max", 1, variadic<MaxOp>);
  table.add("Min", 1, variadic<MinOp>);
  table.add("Mean", 1, convertMean);
  table.add("Equal", 7, compare<ComparePredicate::eq>);
  table.add("Less", 7, compare<ComparePredicate::lt>);
  table.add("LessOrEqual", 12, compare<ComparePredicate::le>);
  table.add("Greater", 7, compare<ComparePredicate::gt>);
  table.add("GreaterOrEqual", 12, compare<ComparePredicate::ge>);
  table.add("Identity", 1, convertIdentity);
  table.add("Where", 9, convertWhere);
  table.add("Cast", 1, convertCast);
  table.add("CastLike", 15, convertCastLike);
  table.add("Clip", 1, convertClip);
  table.add("LeakyRelu", 1, convertLeakyRelu);
  table.add("PRelu", 1, convertPRelu);
  table.add("Elu", 1, convertElu);
  table.add("Selu", 1, convertSelu);
  table.add("HardSigmoid", 1, convertHardSigmoid);
  table.add("HardSwish", 14, convertHardSigmoid);
  table.add("Softplus", 1, convertSoftplus);
  table.add("Softsign", 1, convertSoftsign);
  table.add("Mish", 18, convertMish);
  table.add("Swish", 24, convertSwish);
  table.add("Gelu", 20, convertGelu);
  table.add("Dropout", 1, convertDropout);
  table.add("OneHot", 9, convertOneHot);
}
