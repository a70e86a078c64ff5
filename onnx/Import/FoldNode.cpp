#include "onnx/Import/FoldNode.h"

#include "passes/Graph/HostTensor.h"
#include "runtime/layout/Strides.h"

#include "llvm/ADT/StringSet.h"

#include <cmath>

using namespace mlir;
using namespace merak;

using Maybe = std::optional<HostTensor>;

static Maybe input(const OnnxNode &node, size_t index) {
  DenseElementsAttr attr = constantOf(node.in(index));
  if (!attr || attr.getNumElements() > kMaxEvaluated)
    return std::nullopt;
  return toHost(attr);
}

static DenseElementsAttr vectorOf(ArrayRef<int64_t> values,
                                  MLIRContext *context) {
  return DenseElementsAttr::get(
      RankedTensorType::get({static_cast<int64_t>(values.size())},
                            IntegerType::get(context, 64)),
      values);
}

static DenseElementsAttr foldShape(const OnnxNode &node) {
  auto type = node.inputs.empty()
                  ? RankedTensorType()
                  : dyn_cast<RankedTensorType>(node.inputs[0].getType());
  if (!type)
    return {};
  MLIRContext *context = type.getContext();
  if (node.type == "Size")
    return DenseElementsAttr::get(
        RankedTensorType::get({}, IntegerType::get(context, 64)),
        type.getNumElements());
  int64_t rank = type.getRank();
  auto bound = [&](StringRef name, int64_t fallback) {
    int64_t value = node.integer(name, fallback);
    return std::clamp<int64_t>(value + (value < 0 ? rank : 0), 0, rank);
  };
  int64_t start = bound("start", 0), end = bound("end", rank);
  return vectorOf(
      type.getShape().slice(start, std::max<int64_t>(end - start, 0)), context);
}

static DenseElementsAttr foldRange(const OnnxNode &node) {
  Maybe start = input(node, 0), limit = input(node, 1), delta = input(node, 2);
  if (!start || !limit || !delta || !start->stored() || !limit->stored() ||
      !delta->stored() || delta->real(0) == 0)
    return {};
  Type element = start->type.getElementType();
  double count = std::ceil((limit->real(0) - start->real(0)) / delta->real(0));
  if (!(count < kMaxEvaluated))
    return {};
  int64_t size = std::max<int64_t>(static_cast<int64_t>(count), 0);
  HostTensor result{RankedTensorType::get({size}, element), {}, {}};
  for (int64_t i = 0; i < size; ++i) {
    if (result.isFloat())
      result.reals.push_back(
          roundTo(element, start->real(0) + i * delta->real(0)));
    else
      result.integers.push_back(start->integer(0) + i * delta->integer(0));
  }
  return toAttribute(result);
}

static DenseElementsAttr foldConstantOfShape(const OnnxNode &node) {
  std::optional<Shape> shape = integersOf(constantOf(node.in(0)));
  if (!shape)
    return {};
  // One number however large: it is stored once.
  int64_t count = 1;
  for (int64_t dim : *shape)
    count *= std::clamp<int64_t>(dim, 0, 1);
  if (!isSaneShape(*shape))
    return {};
  auto value = node.attributes.getAs<DenseElementsAttr>("value");
  MLIRContext *context = node.attributes.getContext();
  if (!value)
    return DenseElementsAttr::get(
        RankedTensorType::get(*shape, Float32Type::get(context)), 0.0f);
  Maybe host = toHost(value);
  if (!host || host->size() != 1)
    return {};
  host->type = RankedTensorType::get(*shape, value.getElementType());
  if (count == 0) {
    host->reals.clear();
    host->integers.clear();
  }
  return toAttribute(*host);
}

static DenseElementsAttr foldRound(const OnnxNode &node, double (*f)(double)) {
  Maybe x = input(node, 0);
  if (!x || !x->isFloat())
    return {};
  for (double &value : x->reals)
    value = f(value);
  return toAttribute(*x);
}

static double signOf(double v) { return (v > 0) - (v < 0); }

static DenseElementsAttr foldMod(const OnnxNode &node) {
  Maybe a = input(node, 0), b = input(node, 1);
  if (!a || !b || a->isFloat() != b->isFloat() ||
      llvm::is_contained(b->integers, 0))
    return {};
  // A scalar divisor is what exporters write.
  if (b->size() != 1)
    return {};
  bool truncated = node.integer("fmod", 0);
  for (int64_t &value : a->integers) {
    int64_t divisor = b->integers[0];
    value = divisor == -1 ? 0 : value % divisor;
    if (!truncated && value && (value < 0) != (divisor < 0))
      value += divisor;
  }
  for (double &value : a->reals)
    value = std::fmod(value, b->reals[0]);
  return toAttribute(*a);
}

// Running sums and products along one axis of a small tensor.
static DenseElementsAttr foldCumSum(const OnnxNode &node) {
  Maybe x = input(node, 0), at = input(node, 1);
  if (!x || !at || at->size() != 1 || node.integer("exclusive", 0) ||
      node.integer("reverse", 0))
    return {};
  int64_t rank = x->type.getRank(), axis = at->integer(0);
  axis += axis < 0 ? rank : 0;
  if (axis < 0 || axis >= rank)
    return {};
  HostTensor sums = *x;
  int64_t inner = 1, length = x->type.getDimSize(axis);
  for (int64_t i = axis + 1; i < rank; ++i)
    inner *= x->type.getDimSize(i);
  if (x->isFloat())
    sums.reals.resize(x->size());
  else
    sums.integers.resize(x->size());
  for (int64_t i = 0; i < x->size(); ++i) {
    bool first = i / inner % length == 0;
    if (x->isFloat())
      sums.reals[i] = x->real(i) + (first ? 0 : sums.reals[i - inner]);
    else
      sums.integers[i] = x->integer(i) + (first ? 0 : sums.integers[i - inner]);
  }
  return toAttribute(sums);
}

static DenseElementsAttr foldReduceProd(const OnnxNode &node) {
  Maybe x = input(node, 0);
  if (!x || x->isFloat() || x->type.getRank() != 1)
    return {};
  int64_t product = 1;
  for (int64_t i = 0; i < x->size(); ++i)
    product = static_cast<int64_t>(uint64_t(product) * uint64_t(x->integer(i)));
  Shape shape;
  if (node.integer("keepdims", 1))
    shape.push_back(1);
  return DenseElementsAttr::get(
      RankedTensorType::get(shape, IntegerType::get(x->type.getContext(), 64)),
      product);
}

static DenseElementsAttr foldNonZero(const OnnxNode &node) {
  Maybe x = input(node, 0);
  if (!x || x->type.getRank() < 1)
    return {};
  int64_t rank = x->type.getRank();
  SmallVector<int64_t> found;
  for (int64_t i = 0; i < x->size(); ++i)
    if (x->real(i) != 0)
      found.push_back(i);
  SmallVector<int64_t> indices;
  const std::vector<int64_t> strides = layout::denseStrides(x->type.getShape());
  // Of element 7 of [3, 4], strides 4 and 1: row 7 / 4 % 3 = 1, column
  // 7 / 1 % 4 = 3.
  for (int64_t d = 0; d < rank; ++d)
    for (int64_t i : found)
      indices.push_back(i / strides[d] % x->type.getDimSize(d));
  auto type = RankedTensorType::get({rank, static_cast<int64_t>(found.size())},
                                    IntegerType::get(x->type.getContext(), 64));
  return DenseElementsAttr::get(type, ArrayRef<int64_t>(indices));
}

// Of a table of equal elements (token types that are all 0) any element is the
// same.
static DenseElementsAttr foldGatherElements(const OnnxNode &node) {
  DenseElementsAttr data = constantOf(node.in(0));
  auto index = node.in(1) ? dyn_cast<RankedTensorType>(node.in(1).getType())
                          : RankedTensorType();
  if (!data || !index || !data.isSplat())
    return {};
  return DenseElementsAttr::get(
      RankedTensorType::get(index.getShape(), data.getElementType()),
      data.getSplatValue<Attribute>());
}

bool merak::isFoldable(StringRef type) {
  static const llvm::StringSet<> kTypes = {
      "Shape", "Size", "Range",  "ConstantOfShape", "Floor",  "Ceil",
      "Round", "Sign", "CumSum", "ReduceProd",      "NonZero"};
  return kTypes.contains(type);
}

DenseElementsAttr merak::foldNode(const OnnxNode &node) {
  StringRef type = node.type;
  if (node.usedOutputs.size() != 1 ||
      !(node.domain.empty() || node.domain == "ai.onnx"))
    return {};
  if (type == "Shape" || type == "Size")
    return foldShape(node);
  if (type == "Range")
    return foldRange(node);
  if (type == "ConstantOfShape")
    return foldConstantOfShape(node);
  if (type == "Floor")
    return foldRound(node, std::floor);
  if (type == "Ceil")
    return foldRound(node, std::ceil);
  if (type == "Round")
    return foldRound(node, std::nearbyint);
  if (type == "Sign")
    return foldRound(node, signOf);
  if (type == "Mod")
    return foldMod(node);
  if (type == "CumSum")
    return foldCumSum(node);
  if (type == "ReduceProd")
    return foldReduceProd(node);
  if (type == "NonZero")
    return foldNonZero(node);
  if (type == "GatherElements")
    return foldGatherElements(node);
  return {};
}
