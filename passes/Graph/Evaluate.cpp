// What train ops compute, on constants.
#include "dialects/Train/TrainDialect.h"
#include "passes/Graph/HostTensor.h"
#include "runtime/layout/Strides.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/TypeSwitch.h"

#include <algorithm>
#include <cmath>

using namespace mlir;
using namespace merak;
using namespace merak::train;

using Maybe = std::optional<HostTensor>;
using Shape = SmallVector<int64_t>;

static Shape stridesOf(ArrayRef<int64_t> shape) {
  return llvm::to_vector(layout::denseStrides(shape));
}

// Strides that read a tensor of `shape` as if it were broadcast to rank `rank`.
static Shape broadcastStrides(ArrayRef<int64_t> shape, size_t rank) {
  Shape strides = stridesOf(shape);
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == 1)
      strides[i] = 0;
  strides.insert(strides.begin(), rank - shape.size(), 0);
  return strides;
}

// Calls f(i, offsets) for every index of `shape` in row-major order, where
// offsets[k] is the dot product of the index with strides[k].
template <size_t N, typename F>
static void walk(ArrayRef<int64_t> shape, const std::array<Shape, N> &strides,
                 std::array<int64_t, N> offsets, F f) {
  int64_t total = 1;
  for (int64_t dim : shape)
    total *= dim;
  Shape index(shape.size(), 0);
  const int64_t last = static_cast<int64_t>(shape.size()) - 1;
  const int64_t row = last < 0 ? 1 : shape[last];
  std::array<int64_t, N> steps{};
  for (size_t k = 0; last >= 0 && k < N; ++k)
    steps[k] = strides[k][last];
  for (int64_t i = 0; i < total; i += row) {
    std::array<int64_t, N> at = offsets;
    for (int64_t j = 0; j < row; ++j) {
      f(i + j, at);
      for (size_t k = 0; k < N; ++k)
        at[k] += steps[k];
    }
    for (int64_t d = last - 1; d >= 0; --d) {
      for (size_t k = 0; k < N; ++k)
        offsets[k] += strides[k][d];
      if (++index[d] < shape[d])
        break;
      for (size_t k = 0; k < N; ++k)
        offsets[k] -= strides[k][d] * shape[d];
      index[d] = 0;
    }
  }
}

static HostTensor empty(RankedTensorType type, int64_t stored) {
  HostTensor result{type, {}, {}};
  if (result.isFloat())
    result.reals.resize(stored);
  else
    result.integers.resize(stored);
  return result;
}

namespace {

// The elements of a tensor, for loops over all of them: its type is looked at
// once.
class Elements {
public:
  Elements(const HostTensor &of)
      : reals(of.isFloat() ? of.reals.data() : nullptr),
        integers(of.integers.data()), step(of.isSplat() ? 0 : 1) {}
  double real(int64_t i) const {
    return reals ? reals[step * i] : static_cast<double>(integers[step * i]);
  }
  int64_t integer(int64_t i) const {
    return reals ? static_cast<int64_t>(reals[step * i]) : integers[step * i];
  }

private:
  const double *reals; // null: they are integers
  const int64_t *integers;
  int64_t step;
};

// Where a loop writes elements of a tensor.
class Written {
public:
  Written(HostTensor &of)
      : isFloat(of.isFloat()), reals(of.reals.data()),
        integers(of.integers.data()) {}
  void copy(int64_t i, const Elements &from, int64_t j) const {
    if (isFloat)
      reals[i] = from.real(j);
    else
      integers[i] = from.integer(j);
  }

  const bool isFloat;
  double *const reals;
  int64_t *const integers;
};

} // namespace

// `from` seen through offset and strides, one stride per result dimension.
static HostTensor view(const HostTensor &from, RankedTensorType type,
                       int64_t offset, const Shape &strides) {
  HostTensor result = empty(type, from.isSplat() ? 1 : type.getNumElements());
  if (type.getNumElements() == 0)
    return empty(type, 0);
  const Written to(result);
  const Elements all(from);
  if (from.isSplat())
    to.copy(0, all, 0);
  else
    walk<1>(type.getShape(), {strides}, {offset},
            [&](int64_t i, const std::array<int64_t, 1> &at) {
              to.copy(i, all, at[0]);
            });
  return result;
}

Maybe merak::zip(const HostTensor &a, const HostTensor &b,
                 RankedTensorType type,
                 const std::function<double(double, double)> &real,
                 const std::function<int64_t(int64_t, int64_t)> &integer) {
  bool isFloat = a.isFloat();
  if (isFloat ? !real : !integer)
    return std::nullopt;
  bool splat = a.isSplat() && b.isSplat() && type.getNumElements() > 0;
  HostTensor result = empty(type, splat ? 1 : type.getNumElements());
  Type element = type.getElementType();
  const Written to(result);
  const Elements as(a), bs(b);
  auto compute = [&](int64_t i, int64_t at, int64_t bt) {
    if (isFloat) {
      double value = real(as.real(at), bs.real(bt));
      if (to.isFloat)
        to.reals[i] = roundTo(element, value);
      else
        to.integers[i] = static_cast<int64_t>(value);
    } else {
      to.integers[i] = integer(as.integer(at), bs.integer(bt));
    }
  };
  if (splat) {
    compute(0, 0, 0);
    return result;
  }
  size_t rank = type.getRank();
  walk<2>(type.getShape(),
          {broadcastStrides(a.type.getShape(), rank),
           broadcastStrides(b.type.getShape(), rank)},
          {0, 0}, [&](int64_t i, const std::array<int64_t, 2> &at) {
            compute(i, at[0], at[1]);
          });
  return result;
}

static Maybe map(const HostTensor &x, RankedTensorType type,
                 const std::function<double(double)> &f) {
  if (!x.isFloat())
    return std::nullopt;
  HostTensor result = empty(type, x.stored());
  for (size_t i = 0; i < x.stored(); ++i)
    result.reals[i] = roundTo(type.getElementType(), f(x.reals[i]));
  return result;
}

static Maybe evaluateUnary(Operation *op, const HostTensor &x,
                           RankedTensorType type) {
  using F = std::function<double(double)>;
  F f =
      TypeSwitch<Operation *, F>(op)
          .Case<NegOp>([](auto) { return [](double v) { return -v; }; })
          .Case<ExpOp>([](auto) { return [](double v) { return exp(v); }; })
          .Case<LogOp>([](auto) { return [](double v) { return log(v); }; })
          .Case<SqrtOp>([](auto) { return [](double v) { return sqrt(v); }; })
          .Case<ReciprocalOp>(
              [](auto) { return [](double v) { return 1 / v; }; })
          .Case<AbsOp>([](auto) { return [](double v) { return fabs(v); }; })
          .Case<SinOp>([](auto) { return [](double v) { return sin(v); }; })
          .Case<CosOp>([](auto) { return [](double v) { return cos(v); }; })
          .Case<TanhOp>([](auto) { return [](double v) { return tanh(v); }; })
          .Case<ErfOp>([](auto) { return [](double v) { return erf(v); }; })
          .Case<TanOp>([](auto) { return [](double v) { return tan(v); }; })
          .Case<AsinOp>([](auto) { return [](double v) { return asin(v); }; })
          .Case<AcosOp>([](auto) { return [](double v) { return acos(v); }; })
          .Case<AtanOp>([](auto) { return [](double v) { return atan(v); }; })
          .Case<SinhOp>([](auto) { return [](double v) { return sinh(v); }; })
          .Case<CoshOp>([](auto) { return [](double v) { return cosh(v); }; })
          .Case<FloorOp>([](auto) { return [](double v) { return floor(v); }; })
          .Case<RoundOp>(
              [](auto) { return [](double v) { return nearbyint(v); }; })
          .Case<SigmoidOp>(
              [](auto) { return [](double v) { return 1 / (1 + exp(-v)); }; })
          .Case<ReluOp>(
              [](auto) { return [](double v) { return std::max(v, 0.0); }; })
          .Default([](auto) { return F(); });
  if (f && x.isFloat())
    return map(x, type, f);
  HostTensor result = x;
  if (isa<NotOp>(op) || isa<NegOp>(op) || isa<AbsOp>(op)) {
    for (int64_t &value : result.integers)
      value = isa<NotOp>(op)   ? !value
              : isa<NegOp>(op) ? -value
                               : std::abs(value);
    return result;
  }
  return std::nullopt;
}

static int64_t powInteger(int64_t base, int64_t exponent) {
  return static_cast<int64_t>(std::llround(
      std::pow(static_cast<double>(base), static_cast<double>(exponent))));
}

static Maybe evaluateBinary(Operation *op, const HostTensor &a,
                            const HostTensor &b, RankedTensorType type) {
  if (a.isFloat() != b.isFloat())
    return std::nullopt;
  // A zero divisor has no integer result.
  if (isa<DivOp>(op) && !b.isFloat() && llvm::is_contained(b.integers, 0))
    return std::nullopt;
  using D = double;
  using I = int64_t;
  auto run = [&](auto f) { return zip(a, b, type, f, f); };
  if (isa<AddOp>(op))
    return zip(
        a, b, type, [](D x, D y) { return x + y; },
        [](I x, I y) { return I(uint64_t(x) + uint64_t(y)); });
  if (isa<SubOp>(op))
    return zip(
        a, b, type, [](D x, D y) { return x - y; },
        [](I x, I y) { return I(uint64_t(x) - uint64_t(y)); });
  if (isa<MulOp>(op))
    return zip(
        a, b, type, [](D x, D y) { return x * y; },
        [](I x, I y) { return I(uint64_t(x) * uint64_t(y)); });
  if (isa<DivOp>(op))
    return zip(
        a, b, type, [](D x, D y) { return x / y; },
        [](I x, I y) { return y == -1 ? I(0 - uint64_t(x)) : x / y; });
  if (isa<PowOp>(op))
    return zip(
        a, b, type, [](D x, D y) { return std::pow(x, y); }, powInteger);
  if (isa<MaxOp>(op))
    return run([](auto x, auto y) { return std::max(x, y); });
  if (isa<MinOp>(op))
    return run([](auto x, auto y) { return std::min(x, y); });
  if (isa<AndOp>(op))
    return zip(a, b, type, nullptr, [](I x, I y) { return x & y; });
  if (isa<OrOp>(op))
    return zip(a, b, type, nullptr, [](I x, I y) { return x | y; });
  if (isa<XorOp>(op))
    return zip(a, b, type, nullptr, [](I x, I y) { return x ^ y; });
  if (auto compare = dyn_cast<CompareOp>(op)) {
    ComparePredicate predicate = compare.getPredicate();
    return run([predicate](auto x, auto y) -> decltype(x) {
      switch (predicate) {
      case ComparePredicate::eq:
        return x == y;
      case ComparePredicate::ne:
        return x != y;
      case ComparePredicate::lt:
        return x < y;
      case ComparePredicate::le:
        return x <= y;
      case ComparePredicate::gt:
        return x > y;
      case ComparePredicate::ge:
        return x >= y;
      }
      return 0;
    });
  }
  return std::nullopt;
}

static Maybe evaluateCast(const HostTensor &x, RankedTensorType type) {
  HostTensor result = empty(type, x.stored());
  Type element = type.getElementType();
  const Written to(result);
  const Elements from(x);
  const bool isFloat = x.isFloat(), isBool = element.isInteger(1);
  for (size_t i = 0; i < x.stored(); ++i) {
    if (to.isFloat) {
      to.reals[i] = roundTo(element, from.real(i));
      continue;
    }
    double real = isFloat ? x.reals[i] : 0;
    if (isFloat && !isBool && !(std::fabs(real) < 9.2e18))
      return std::nullopt;
    if (isBool)
      to.integers[i] = isFloat ? real != 0 : x.integers[i] != 0;
    else
      to.integers[i] = from.integer(i);
  }
  return result;
}

static Maybe evaluateSelect(const HostTensor &c, const HostTensor &a,
                            const HostTensor &b, RankedTensorType type) {
  HostTensor result = empty(type, type.getNumElements());
  size_t rank = type.getRank();
  const Written to(result);
  const Elements cs(c), as(a), bs(b);
  walk<3>(type.getShape(),
          {broadcastStrides(c.type.getShape(), rank),
           broadcastStrides(a.type.getShape(), rank),
           broadcastStrides(b.type.getShape(), rank)},
          {0, 0, 0}, [&](int64_t i, const std::array<int64_t, 3> &at) {
            if (cs.integer(at[0]))
              to.copy(i, as, at[1]);
            else
              to.copy(i, bs, at[2]);
          });
  return result;
}

static Maybe evaluateConcat(ConcatOp op, ArrayRef<HostTensor> inputs,
                            RankedTensorType type) {
  HostTensor result = empty(type, type.getNumElements());
  Shape strides = stridesOf(type.getShape());
  int64_t start = 0;
  const Written to(result);
  for (const HostTensor &input : inputs) {
    const Elements from(input);
    walk<1>(input.type.getShape(), {strides}, {start * strides[op.getAxis()]},
            [&](int64_t i, const std::array<int64_t, 1> &at) {
              to.copy(at[0], from, i);
            });
    start += input.type.getDimSize(op.getAxis());
  }
  return result;
}

static Maybe evaluateGather(GatherOp op, const HostTensor &table,
                            const HostTensor &ids, RankedTensorType type) {
  int64_t axis = op.getAxis(), outer = 1, inner = 1, groups = 1;
  ArrayRef<int64_t> shape = table.type.getShape();
  for (uint64_t i = 0; i < op.getBatch(); ++i)
    groups *= shape[i];
  for (int64_t i = 0; i < axis; ++i)
    outer *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i)
    inner *= shape[i];
  HostTensor result = empty(type, type.getNumElements());
  const Written to(result);
  const Elements from(table);
  int64_t at = 0;
  const int64_t own = groups ? ids.size() / groups : 0; // ids of a group
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t k = 0; k < own; ++k) {
      int64_t id = ids.integer(o / (outer / groups) * own + k);
      id += id < 0 ? shape[axis] : 0;
      if (id < 0 || id >= shape[axis])
        return std::nullopt;
      for (int64_t i = 0; i < inner; ++i)
        to.copy(at++, from, (o * shape[axis] + id) * inner + i);
    }
  return result;
}

static Maybe evaluateReduce(const HostTensor &x, ArrayRef<int64_t> axes,
                            RankedTensorType type, bool isMax) {
  HostTensor result = empty(type, type.getNumElements());
  double start = isMax ? -INFINITY : 0;
  std::fill(result.reals.begin(), result.reals.end(), start);
  std::fill(result.integers.begin(), result.integers.end(),
            isMax ? INT64_MIN : 0);
  Shape kept(x.type.getShape());
  for (int64_t axis : axes)
    kept[axis] = 1;
  Shape strides = stridesOf(kept);
  for (int64_t axis : axes)
    strides[axis] = 0;
  const Written to(result);
  const Elements from(x);
  walk<1>(x.type.getShape(), {strides}, {0},
          [&](int64_t i, const std::array<int64_t, 1> &at) {
            if (to.isFloat) {
              double &sum = to.reals[at[0]];
              sum = isMax ? std::max(sum, from.real(i)) : sum + from.real(i);
            } else {
              int64_t &sum = to.integers[at[0]];
              sum = isMax ? std::max(sum, from.integer(i))
                          : sum + from.integer(i);
            }
          });
  for (double &value : result.reals)
    value = roundTo(type.getElementType(), value);
  return result;
}

static Maybe evaluateEinsum(EinsumOp op, const HostTensor &a,
                            const HostTensor &b, RankedTensorType type) {
  EinsumOp::Letters letters = op.getLetters();
  std::string all = letters.out;
  Shape sizes(type.getShape());
  auto strides = [&](const std::string &text, ArrayRef<int64_t> shape) {
    Shape own = stridesOf(shape);
    for (size_t i = 0; i < text.size(); ++i)
      if (all.find(text[i]) == std::string::npos) {
        all += text[i];
        sizes.push_back(shape[i]);
      }
    return own;
  };
  Shape as = strides(letters.lhs, a.type.getShape());
  Shape bs = strides(letters.rhs, b.type.getShape());
  Shape os = stridesOf(type.getShape());
  auto spread = [&](const std::string &text, const Shape &own) {
    Shape wide(all.size(), 0);
    for (size_t i = 0; i < text.size(); ++i)
      wide[all.find(text[i])] = own[i];
    return wide;
  };
  double work = 1;
  for (int64_t size : sizes)
    work *= static_cast<double>(size);
  if (work > 1e8 || !a.isFloat())
    return std::nullopt;
  HostTensor result = empty(type, type.getNumElements());
  const Elements left(a), right(b);
  walk<3>(sizes,
          {spread(letters.lhs, as), spread(letters.rhs, bs),
           spread(letters.out, os)},
          {0, 0, 0}, [&](int64_t, const std::array<int64_t, 3> &at) {
            result.reals[at[2]] += left.real(at[0]) * right.real(at[1]);
          });
  for (double &value : result.reals)
    value = roundTo(type.getElementType(), value);
  return result;
}

static Maybe evaluateShape(Operation *op, const HostTensor &x,
                           RankedTensorType type) {
  ArrayRef<int64_t> from = x.type.getShape();
  Shape strides = stridesOf(from);
  if (isa<ReshapeOp>(op)) {
    HostTensor result = x;
    result.type = type;
    return result;
  }
  if (auto transpose = dyn_cast<TransposeOp>(op)) {
    Shape permuted;
    for (int64_t dim : transpose.getPerm())
      permuted.push_back(strides[dim]);
    return view(x, type, 0, permuted);
  }
  if (isa<ExpandOp>(op))
    return view(x, type, 0, broadcastStrides(from, type.getRank()));
  if (auto slice = dyn_cast<SliceOp>(op)) {
    int64_t offset = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      offset += slice.getStarts()[i] * strides[i];
      strides[i] *= slice.getSteps()[i];
    }
    return view(x, type, offset, strides);
  }
  if (auto pad = dyn_cast<PadOp>(op)) {
    HostTensor result = empty(type, type.getNumElements());
    double value = pad.getValue().convertToDouble();
    std::fill(result.reals.begin(), result.reals.end(), value);
    std::fill(result.integers.begin(), result.integers.end(),
              static_cast<int64_t>(value));
    Shape to = stridesOf(type.getShape());
    int64_t offset = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      offset += pad.getLow()[i] * to[i];
      to[i] *= pad.getInterior()[i] + 1;
    }
    const Written into(result);
    const Elements all(x);
    walk<1>(from, {to}, {offset},
            [&](int64_t i, const std::array<int64_t, 1> &at) {
              into.copy(at[0], all, i);
            });
    return result;
  }
  return std::nullopt;
}

// The type of its result, if the op could have one here.
static RankedTensorType resultOf(Operation *op) {
  if (op->getNumResults() != 1 || !isPure(op))
    return {};
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  return type && type.hasStaticShape() && type.getNumElements() <= kMaxEvaluated
             ? type
             : RankedTensorType();
}

Maybe merak::evaluateOnHost(Operation *op, ArrayRef<HostTensor> in) {
  const RankedTensorType type = resultOf(op);
  if (!type || llvm::any_of(in, [](const HostTensor &operand) {
        return operand.size() > kMaxEvaluated;
      }))
    return {};
  if (auto constant = dyn_cast<ConstantOp>(op)) {
    auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
    return value ? toHost(value) : std::nullopt;
  }
  if (in.size() == 1 && isa<CastOp>(op))
    return evaluateCast(in[0], type);
  if (auto sum = dyn_cast<ReduceSumOp>(op))
    return evaluateReduce(in[0], sum.getAxes(), type, false);
  if (auto max = dyn_cast<ReduceMaxOp>(op))
    return evaluateReduce(in[0], max.getAxes(), type, true);
  if (auto concat = dyn_cast<ConcatOp>(op))
    return evaluateConcat(concat, in, type);
  if (auto gather = dyn_cast<GatherOp>(op))
    return evaluateGather(gather, in[0], in[1], type);
  if (auto einsum = dyn_cast<EinsumOp>(op))
    return einsum.getRounds() ? Maybe()
                              : evaluateEinsum(einsum, in[0], in[1], type);
  if (isa<SelectOp>(op))
    return evaluateSelect(in[0], in[1], in[2], type);
  if (isa<ReshapeOp, TransposeOp, ExpandOp, SliceOp, PadOp>(op))
    return evaluateShape(op, in[0], type);
  if (in.size() == 1)
    return evaluateUnary(op, in[0], type);
  if (in.size() == 2)
    return evaluateBinary(op, in[0], in[1], type);
  return {};
}

DenseElementsAttr merak::evaluate(Operation *op,
                                  ArrayRef<DenseElementsAttr> operands) {
  if (!resultOf(op))
    return {};
  if (auto constant = dyn_cast<ConstantOp>(op))
    return dyn_cast<DenseElementsAttr>(constant.getValue());
  SmallVector<HostTensor> in;
  for (DenseElementsAttr operand : operands) {
    if (!operand || operand.getNumElements() > kMaxEvaluated)
      return {};
    Maybe host = toHost(operand);
    if (!host)
      return {};
    in.push_back(std::move(*host));
  }
  Maybe result = evaluateOnHost(op, in);
  return result ? toAttribute(*result) : DenseElementsAttr();
}
