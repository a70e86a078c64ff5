#include "passes/Lowering/ElementwiseToLinalg.h"

#include "dialects/Train/TrainDialect.h"
#include "passes/Lowering/Iteration.h"
#include "passes/Lowering/ScalarBodies.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

Type signlessType(Type type) {
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    return RankedTensorType::get(tensor.getShape(),
                                 signlessType(tensor.getElementType()));
  if (auto integer = dyn_cast<IntegerType>(type))
    return IntegerType::get(type.getContext(), integer.getWidth());
  return type;
}

bool isFusable(Operation *op) { return iterationOf(op).has_value(); }

namespace {

// What bodies compute in: operands of 16 bits are widened, results rounded
// once.
Type computeType(Type element) {
  return isHalf(element) ? Float32Type::get(element.getContext()) : element;
}

enum class Combine { None, Sum, Max, MaxUnsigned };

// A tensor and the loops its dimensions walk.
struct Read {
  Value tensor;
  DimLoops loops;
};

// One scalar at a time inside a body.
struct Scalars {
  OpBuilder &b;
  Location loc;
  SmallVector<Value> in;

  Value operator[](size_t i) const { return in[i]; }
  Value add(Value x, Value y) { return arith::AddFOp::create(b, loc, x, y); }
  Value sub(Value x, Value y) { return arith::SubFOp::create(b, loc, x, y); }
  Value mul(Value x, Value y) { return arith::MulFOp::create(b, loc, x, y); }
  Value div(Value x, Value y) { return arith::DivFOp::create(b, loc, x, y); }
  Value exp(Value x) { return math::ExpOp::create(b, loc, x); }
  Value number(Type type, double value) {
    return arith::ConstantOp::create(
        b, loc, cast<TypedAttr>(b.getFloatAttr(type, value)));
  }
  Value integer(Type type, int64_t value) {
    return arith::ConstantOp::create(
        b, loc, cast<TypedAttr>(b.getIntegerAttr(type, value)));
  }
  Value equal(Value x, Value y) {
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, x, y);
  }
  Value select(Value condition, Value x, Value y) {
    return arith::SelectOp::create(b, loc, condition, x, y);
  }
  Value widen(Value x) {
    Type type = computeType(x.getType());
    return type == x.getType() ? x : arith::ExtFOp::create(b, loc, type, x);
  }
  Value round(Value x, Type element) {
    bool same = x.getType() == element || !isHalf(element);
    return same ? x : arith::TruncFOp::create(b, loc, element, x);
  }
  // 1 / sqrt(square / count + epsilon)
  Value reciprocalRoot(Value square, double count, double epsilon) {
    Type type = square.getType();
    Value mean = div(square, number(type, count));
    Value root = math::SqrtOp::create(b, loc, add(mean, number(type, epsilon)));
    return div(number(type, 1), root);
  }
  // Whether the index of loop `loop` is the label.
  Value isLabel(Value label, int loop) {
    Value index = linalg::IndexOp::create(b, loc, loop);
    return equal(arith::IndexCastOp::create(b, loc, label.getType(), index),
                 label);
  }
};
using Body = llvm::function_ref<Value(Scalars &)>;

class Writer {
public:
  Writer(OpBuilder &builder, Operation *op, IRMapping &mapping)
      : b(builder), loc(op->getLoc()), op(op), mapping(mapping),
        it(*iterationOf(op)) {
    for (int loop = 0; loop < static_cast<int>(it.sizes.size()); ++loop) {
      full.push_back(loop);
      if (!it.reduced[loop])
        kept.push_back(loop);
    }
  }
  void run();

private:
  Value tensor(Value operand);
  Read read(unsigned operand) {
    return {tensor(op->getOperand(operand)), it.operands[operand]};
  }
  SmallVector<Read> reads() {
    SmallVector<Read> all;
    for (unsigned i = 0; i < op->getNumOperands(); ++i)
      all.push_back(read(i));
    return all;
  }
  // A value over `out` (loops of the op) computed by `body` from `reads`;
  // loops that are not in `out` are combined.
  Value write(const DimLoops &out, Type element, ArrayRef<Read> reads,
              Combine combine, Body body);
  // A value without the reduced loops computed from such values.
  Value perRow(ArrayRef<Value> rows, Type element, Body body);
  void finish(unsigned result, Value value) {
    mapping.map(op->getResult(result), value);
  }
  // A value without the reduced loops, in the type that the op gives it.
  void finishRow(unsigned result, Value value) {
    Type element = elementOf(op->getResult(result));
    if (elementOf(value) != element)
      value = perRow({value}, element, [](Scalars &s) { return s[0]; });
    finish(result, value);
  }
  Type elementOf(Value value) {
    return signlessType(
        cast<RankedTensorType>(value.getType()).getElementType());
  }

  void elementwise();
  void reduce(Combine combine);
  void softmax();
  void softmaxGrad();
  void layerNorm(LayerNormOp norm);
  void layerNormGrad(LayerNormGradOp norm);
  void layerNormParamGrad(LayerNormParamGradOp norm);
  void rmsNorm(RmsNormOp norm);
  void rmsNormGrad(RmsNormGradOp norm);
  void rmsNormParamGrad(RmsNormParamGradOp norm);
  void crossEntropy(SoftmaxCrossEntropyOp loss);
  void crossEntropyGrad(SoftmaxCrossEntropyGradOp loss);

  OpBuilder &b;
  Location loc;
  Operation *op;
  IRMapping &mapping;
  Iteration it;
  DimLoops full, kept;
};

} // namespace

static TypedAttr splatOf(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  auto splat = constant ? dyn_cast<SplatElementsAttr>(constant.getValue())
                        : SplatElementsAttr();
  if (!splat)
    return {};
  Attribute number = splat.getSplatValue<Attribute>();
  if (auto integer = dyn_cast<IntegerAttr>(number))
    number =
        IntegerAttr::get(signlessType(integer.getType()), integer.getValue());
  return cast<TypedAttr>(number);
}

Value Writer::tensor(Value operand) {
  if (Value known = mapping.lookupOrNull(operand))
    return known;
  auto type = cast<RankedTensorType>(operand.getType());
  Value scalar = arith::ConstantOp::create(b, loc, splatOf(operand));
  Value empty = tensor::EmptyOp::create(b, loc, type.getShape(),
                                        signlessType(type.getElementType()));
  Value filled =
      linalg::FillOp::create(b, loc, ValueRange{scalar}, ValueRange{empty})
          .getResult(0);
  mapping.map(operand, filled);
  return filled;
}

static Value neutral(OpBuilder &b, Location loc, Type element,
                     Combine combine) {
  TypedAttr attr;
  if (auto type = dyn_cast<FloatType>(element)) {
    double value = combine == Combine::Max
                       ? -std::numeric_limits<double>::infinity()
                       : 0.0;
    attr = b.getFloatAttr(type, value);
  } else {
    unsigned width = element.getIntOrFloatBitWidth();
    // Of sums and of unsigned maxima: 0.
    llvm::APInt value = combine == Combine::Max
                            ? llvm::APInt::getSignedMinValue(width)
                            : llvm::APInt(width, 0);
    attr = b.getIntegerAttr(element, value);
  }
  return arith::ConstantOp::create(b, loc, attr);
}

Value Writer::write(const DimLoops &out, Type element, ArrayRef<Read> reads,
                    Combine combine, Body body) {
  MLIRContext *context = op->getContext();
  auto mapOf = [&](const DimLoops &loops) {
    SmallVector<AffineExpr> exprs;
    for (int loop : loops)
      exprs.push_back(loop == kNoLoop ? getAffineConstantExpr(0, context)
                                      : getAffineDimExpr(loop, context));
    return AffineMap::get(it.sizes.size(), 0, exprs, context);
  };
  SmallVector<Value> inputs;
  SmallVector<AffineMap> maps;
  for (const Read &read : reads) {
    inputs.push_back(read.tensor);
    maps.push_back(mapOf(read.loops));
  }
  maps.push_back(mapOf(out));
  SmallVector<int64_t> shape;
  for (int loop : out)
    shape.push_back(loop == kNoLoop ? 1 : it.sizes[loop]);
  Value init = tensor::EmptyOp::create(b, loc, shape, element);
  SmallVector<utils::IteratorType> iterators(it.sizes.size(),
                                             utils::IteratorType::parallel);
  if (combine != Combine::None) {
    for (int loop : full)
      if (!llvm::is_contained(out, loop))
        iterators[loop] = utils::IteratorType::reduction;
    init = linalg::FillOp::create(b, loc,
                                  ValueRange{neutral(b, loc, element, combine)},
                                  ValueRange{init})
               .getResult(0);
  }
  auto generic = linalg::GenericOp::create(
      b, loc, TypeRange{init.getType()}, inputs, ValueRange{init}, maps,
      iterators, [&](OpBuilder &inner, Location where, ValueRange arguments) {
        Scalars scalars{inner, where, {}};
        for (Value argument : arguments.drop_back())
          scalars.in.push_back(scalars.widen(argument));
        Value value = scalars.round(body(scalars), element);
        Value carried = arguments.back();
        bool real = isa<FloatType>(element);
        if (combine == Combine::Sum)
          value = real ? arith::AddFOp::create(inner, where, carried, value)
                             .getResult()
                       : arith::AddIOp::create(inner, where, carried, value)
                             .getResult();
        else if (combine == Combine::Max)
          value = real ? arith::MaximumFOp::create(inner, where, carried, value)
                             .getResult()
                       : arith::MaxSIOp::create(inner, where, carried, value)
                             .getResult();
        else if (combine == Combine::MaxUnsigned)
          value = arith::MaxUIOp::create(inner, where, carried, value);
        linalg::YieldOp::create(inner, where, value);
      });
  return generic.getResult(0);
}

// The loops of rows alone, numbered from 0.
Value Writer::perRow(ArrayRef<Value> rows, Type element, Body body) {
  Iteration whole = it;
  DimLoops all = full;
  it.sizes.clear();
  full.clear();
  for (int loop : kept) {
    full.push_back(static_cast<int>(it.sizes.size()));
    it.sizes.push_back(whole.sizes[loop]);
  }
  SmallVector<Read> reads;
  for (Value row : rows)
    reads.push_back({row, full});
  Value result = write(full, element, reads, Combine::None, body);
  it = whole;
  full = all;
  return result;
}

//===----------------------------------------------------------------------===//
// Element-wise ops and plain reductions
//===----------------------------------------------------------------------===//

void Writer::elementwise() {
  // Splats become immediate values of the body.
  SmallVector<Read> inputs;
  SmallVector<TypedAttr> splats;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    splats.push_back(mapping.contains(operand) ? TypedAttr()
                                               : splatOf(operand));
    if (!splats.back())
      inputs.push_back(read(i));
  }
  finish(0, write(it.results[0], elementOf(op->getResult(0)), inputs,
                  Combine::None, [&](Scalars &s) {
                    SmallVector<Value> scalars;
                    size_t next = 0;
                    for (TypedAttr splat : splats)
                      scalars.push_back(splat
                                            ? s.widen(arith::ConstantOp::create(
                                                  s.b, s.loc, splat))
                                            : s[next++]);
                    return emitScalarBody(s.b, op, scalars);
                  }));
}

void Writer::reduce(Combine combine) {
  finish(0, write(it.results[0], elementOf(op->getResult(0)), reads(), combine,
                  [](Scalars &s) { return s[0]; }));
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

void Writer::softmax() {
  Type result = elementOf(op->getResult(0)), type = computeType(result);
  Read x = read(0);
  Value max =
      write(kept, type, {x}, Combine::Max, [](Scalars &s) { return s[0]; });
  Value e = write(full, type, {x, {max, kept}}, Combine::None,
                  [](Scalars &s) { return s.exp(s.sub(s[0], s[1])); });
  Value sum = write(kept, type, {{e, full}}, Combine::Sum,
                    [](Scalars &s) { return s[0]; });
  finish(0, write(full, result, {{e, full}, {sum, kept}}, Combine::None,
                  [](Scalars &s) { return s.div(s[0], s[1]); }));
}

void Writer::softmaxGrad() { // y, dy
  Type result = elementOf(op->getResult(0)), type = computeType(result);
  Value sum = write(kept, type, reads(), Combine::Sum,
                    [](Scalars &s) { return s.mul(s[0], s[1]); });
  finish(0, write(full, result, {read(0), read(1), {sum, kept}}, Combine::None,
                  [](Scalars &s) { return s.mul(s[0], s.sub(s[1], s[2])); }));
}

// loss = lse - logits[label]; lse = max + log(sum(exp(logits - max)))
void Writer::crossEntropy(SoftmaxCrossEntropyOp loss) {
  Type type = computeType(elementOf(loss.getLogits()));
  int last = full.back();
  Read x = read(0);
  Value labels = read(1).tensor;
  Value max =
      write(kept, type, {x}, Combine::Max, [](Scalars &s) { return s[0]; });
  Value picked =
      write(kept, type, {x, {labels, kept}}, Combine::Sum, [&](Scalars &s) {
        return s.select(s.isLabel(s[1], last), s[0], s.number(type, 0));
      });
  Value sum = write(kept, type, {x, {max, kept}}, Combine::Sum,
                    [](Scalars &s) { return s.exp(s.sub(s[0], s[1])); });
  Value lse = perRow({max, sum}, type, [](Scalars &s) {
    return s.add(s[0], math::LogOp::create(s.b, s.loc, s[1]));
  });
  std::optional<uint64_t> ignored = loss.getIgnoreIndex();
  finishRow(0, perRow({lse, picked, labels}, type, [&](Scalars &s) {
              Value value = s.sub(s[0], s[1]);
              if (!ignored)
                return value;
              Value isIgnored =
                  s.equal(s[2], s.integer(s[2].getType(),
                                          static_cast<int64_t>(*ignored)));
              return s.select(isIgnored, s.number(type, 0), value);
            }));
  finishRow(1, lse);
}

void Writer::crossEntropyGrad(SoftmaxCrossEntropyGradOp loss) {
  Type result = elementOf(loss.getLogits()), type = computeType(result);
  int last = full.back();
  std::optional<uint64_t> ignored = loss.getIgnoreIndex();
  finish(0, write(full, result, reads(), Combine::None, [&](Scalars &s) {
           Value p = s.exp(s.sub(s[0], s[2]));
           Value hit =
               s.select(s.isLabel(s[1], last), s.sub(p, s.number(type, 1)), p);
           Value d = s.mul(hit, s[3]);
           if (!ignored)
             return d;
           Value isIgnored = s.equal(
               s[1], s.integer(s[1].getType(), static_cast<int64_t>(*ignored)));
           return s.select(isIgnored, s.number(type, 0), d);
         }));
}

//===----------------------------------------------------------------------===//
// Normalizations
//===----------------------------------------------------------------------===//

void Writer::layerNorm(LayerNormOp norm) {
  Type result = elementOf(norm.getX()), type = computeType(result);
  double count = static_cast<double>(it.countOf(true));
  double epsilon = norm.getEpsilon().convertToDouble();
  Read x = read(0);
  Value sum =
      write(kept, type, {x}, Combine::Sum, [](Scalars &s) { return s[0]; });
  Value mean = perRow({sum}, type, [&](Scalars &s) {
    return s.div(s[0], s.number(type, count));
  });
  Value square =
      write(kept, type, {x, {mean, kept}}, Combine::Sum, [](Scalars &s) {
        Value d = s.sub(s[0], s[1]);
        return s.mul(d, d);
      });
  Value rstd = perRow({square}, type, [&](Scalars &s) {
    return s.reciprocalRoot(s[0], count, epsilon);
  });
  SmallVector<Read> inputs = {x, {mean, kept}, {rstd, kept}};
  for (unsigned i = 1; i < op->getNumOperands(); ++i)
    inputs.push_back(read(i));
  finish(0, write(full, result, inputs, Combine::None, [&](Scalars &s) {
           Value y = s.mul(s.sub(s[0], s[1]), s[2]);
           size_t next = 3;
           if (norm.getScale())
             y = s.mul(y, s[next++]);
           return norm.getBias() ? s.add(y, s[next]) : y;
         }));
  finishRow(1, mean);
  finishRow(2, rstd);
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy scale
void Writer::layerNormGrad(LayerNormGradOp norm) {
  Type result = elementOf(norm.getX()), type = computeType(result);
  double count = static_cast<double>(it.countOf(true));
  bool scaled = static_cast<bool>(norm.getScale());
  auto g = [scaled](Scalars &s) { return scaled ? s.mul(s[0], s[4]) : s[0]; };
  auto xhat = [](Scalars &s) { return s.mul(s.sub(s[1], s[2]), s[3]); };
  SmallVector<Read> inputs = reads(); // dy, x, mean, rstd, [scale]
  Value sum =
      write(kept, type, inputs, Combine::Sum, [&](Scalars &s) { return g(s); });
  Value dot = write(kept, type, inputs, Combine::Sum,
                    [&](Scalars &s) { return s.mul(g(s), xhat(s)); });
  auto mean = [&](Value of) {
    return perRow({of}, type, [&](Scalars &s) {
      return s.div(s[0], s.number(type, count));
    });
  };
  size_t at = inputs.size();
  inputs.push_back({mean(sum), kept});
  inputs.push_back({mean(dot), kept});
  finish(0, write(full, result, inputs, Combine::None, [&](Scalars &s) {
           Value centered = s.sub(g(s), s[at]);
           return s.mul(s[3], s.sub(centered, s.mul(xhat(s), s[at + 1])));
         }));
}

void Writer::layerNormParamGrad(LayerNormParamGradOp norm) {
  Type type = computeType(elementOf(norm.getX())); // dy, x, mean, rstd
  finishRow(0, write(kept, type, reads(), Combine::Sum, [](Scalars &s) {
              return s.mul(s[0], s.mul(s.sub(s[1], s[2]), s[3]));
            }));
  finishRow(1, write(kept, type, {read(0)}, Combine::Sum,
                     [](Scalars &s) { return s[0]; }));
}

void Writer::rmsNorm(RmsNormOp norm) {
  Type result = elementOf(norm.getX()), type = computeType(result);
  double count = static_cast<double>(it.countOf(true));
  double epsilon = norm.getEpsilon().convertToDouble();
  Read x = read(0);
  Value square = write(kept, type, {x}, Combine::Sum,
                       [](Scalars &s) { return s.mul(s[0], s[0]); });
  Value rstd = perRow({square}, type, [&](Scalars &s) {
    return s.reciprocalRoot(s[0], count, epsilon);
  });
  SmallVector<Read> inputs = {x, {rstd, kept}};
  if (norm.getScale())
    inputs.push_back(read(1));
  finish(0, write(full, result, inputs, Combine::None, [&](Scalars &s) {
           Value y = s.mul(s[0], s[1]);
           return norm.getScale() ? s.mul(y, s[2]) : y;
         }));
  finishRow(1, rstd);
}

// dx = rstd (g - x rstd^2 mean(g x)), g = dy scale
void Writer::rmsNormGrad(RmsNormGradOp norm) {
  Type result = elementOf(norm.getX()), type = computeType(result);
  double count = static_cast<double>(it.countOf(true));
  bool scaled = static_cast<bool>(norm.getScale());
  auto g = [scaled](Scalars &s) { return scaled ? s.mul(s[0], s[3]) : s[0]; };
  SmallVector<Read> inputs = reads(); // dy, x, rstd, [scale]
  Value dot = write(kept, type, inputs, Combine::Sum,
                    [&](Scalars &s) { return s.mul(g(s), s[1]); });
  Value factor = perRow({dot, inputs[2].tensor}, type, [&](Scalars &s) {
    Value mean = s.div(s[0], s.number(type, count));
    return s.mul(mean, s.mul(s[1], s[1]));
  });
  size_t at = inputs.size();
  inputs.push_back({factor, kept});
  finish(0, write(full, result, inputs, Combine::None, [&](Scalars &s) {
           return s.mul(s[2], s.sub(g(s), s.mul(s[1], s[at])));
         }));
}

void Writer::rmsNormParamGrad(RmsNormParamGradOp norm) {
  finishRow(0, write(kept, computeType(elementOf(norm.getX())), reads(),
                     Combine::Sum,
                     [](Scalars &s) { // dy, x, rstd
                       return s.mul(s[0], s.mul(s[1], s[2]));
                     }));
}

void Writer::run() {
  llvm::TypeSwitch<Operation *>(op)
      .Case([&](ReduceSumOp) { reduce(Combine::Sum); })
      .Case([&](ReduceMaxOp max) {
        bool isUnsigned = cast<RankedTensorType>(max.getX().getType())
                              .getElementType()
                              .isUnsignedInteger();
        reduce(isUnsigned ? Combine::MaxUnsigned : Combine::Max);
      })
      .Case([&](SoftmaxOp) { softmax(); })
      .Case([&](SoftmaxGradOp) { softmaxGrad(); })
      .Case([&](LayerNormOp norm) { layerNorm(norm); })
      .Case([&](LayerNormGradOp norm) { layerNormGrad(norm); })
      .Case([&](LayerNormParamGradOp norm) { layerNormParamGrad(norm); })
      .Case([&](RmsNormOp norm) { rmsNorm(norm); })
      .Case([&](RmsNormGradOp norm) { rmsNormGrad(norm); })
      .Case([&](RmsNormParamGradOp norm) { rmsNormParamGrad(norm); })
      .Case([&](SoftmaxCrossEntropyOp loss) { crossEntropy(loss); })
      .Case([&](SoftmaxCrossEntropyGradOp loss) { crossEntropyGrad(loss); })
      .Default([&](Operation *) { elementwise(); });
}

void writeLinalg(OpBuilder &builder, Operation *op, IRMapping &mapping) {
  Writer(builder, op, mapping).run();
}

} // namespace merak::lowering
