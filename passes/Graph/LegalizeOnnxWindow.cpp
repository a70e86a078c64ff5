// ONNX ops with sliding windows: convolution and pooling.
#include "passes/Graph/OnnxConversion.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// One entry a spatial dimension; pads are begins then ends.
struct Window {
  Shape kernel, strides, dilations, pads, out;
};
} // namespace

static LogicalResult parseWindow(const OnnxNode &node, GraphBuilder &b,
                                 ArrayRef<int64_t> kernel, Window &w) {
  ArrayRef<int64_t> spatial = shapeOf(node.in(0)).drop_front(2);
  size_t n = spatial.size();
  w.kernel = Shape(kernel);
  w.strides = node.integers("strides").value_or(Shape(n, 1));
  w.dilations = node.integers("dilations").value_or(Shape(n, 1));
  w.pads = node.integers("pads").value_or(Shape(2 * n, 0));
  if (w.kernel.size() != n || w.strides.size() != n ||
      w.dilations.size() != n || w.pads.size() != 2 * n) {
    b.fail("expected kernel_shape, strides, dilations and pads for " +
           llvm::Twine(n) + " spatial dimensions");
    return failure();
  }
  StringRef autoPad = node.string("auto_pad", "NOTSET");
  for (size_t i = 0; i < n; ++i) {
    int64_t reach = (w.kernel[i] - 1) * w.dilations[i] + 1;
    if (w.strides[i] < 1 || w.dilations[i] < 1 || w.kernel[i] < 1 ||
        w.pads[i] < 0 || w.pads[i + n] < 0 ||
        std::max({w.strides[i], w.dilations[i], w.kernel[i], w.pads[i],
                  w.pads[i + n]}) > (int64_t(1) << 24)) {
      b.fail("expected positive kernel, strides and dilations and pads that "
             "are not negative");
      return failure();
    }
    if (autoPad == "VALID")
      w.pads[i] = w.pads[i + n] = 0;
    if (autoPad.starts_with("SAME")) {
      int64_t out = (spatial[i] + w.strides[i] - 1) / w.strides[i];
      int64_t total =
          std::max<int64_t>((out - 1) * w.strides[i] + reach - spatial[i], 0);
      int64_t less = total / 2;
      w.pads[i] = autoPad == "SAME_UPPER" ? less : total - less;
      w.pads[i + n] = total - w.pads[i];
    }
    int64_t slack = spatial[i] + w.pads[i] + w.pads[i + n] - reach;
    if (slack < 0) {
      b.fail("expected a window that fits, found one of " + llvm::Twine(reach) +
             " in " + describeType(node.in(0).getType()));
      return failure();
    }
    if (node.integer("ceil_mode", 0) && slack % w.strides[i]) {
      b.fail("unsupported ceil_mode, expected windows that divide dimension " +
             llvm::Twine(i + 2) + " of " + describeType(node.in(0).getType()));
      return failure();
    }
    w.out.push_back(slack / w.strides[i] + 1);
  }
  return success();
}

static RankedTensorType resultType(Value x, int64_t channels, const Window &w,
                                   Type element) {
  Shape shape{shapeOf(x)[0], channels};
  llvm::append_range(shape, w.out);
  return RankedTensorType::get(shape, element);
}

CONVERT(convertConv) {
  if (failed(needsFloat(node, b, 2)) || failed(needsRank(node, b, 2, 3)))
    return failure();
  Value x = node.in(0), weight = node.in(1);
  int64_t group = node.integer("group", 1);
  if (rankOf(weight) != rankOf(x) || group < 1 ||
      shapeOf(weight)[1] * group != shapeOf(x)[1] ||
      shapeOf(weight)[0] % group) {
    b.fail("expected a weight for " + llvm::Twine(shapeOf(x)[1]) +
           " input channels in " + llvm::Twine(group) + " groups, found " +
           describeType(x.getType()) + " and " +
           describeType(weight.getType()));
    return failure();
  }
  Window w;
  if (failed(parseWindow(node, b, shapeOf(weight).drop_front(2), w)))
    return failure();
  Value y = ConvOp::create(
      b.builder, b.loc,
      resultType(x, shapeOf(weight)[0], w, tensorType(x).getElementType()), x,
      weight, w.strides, w.pads, w.dilations, group);
  if (Value bias = node.in(2)) {
    Shape shape(rankOf(x) - 1, 1);
    shape[0] = tensorType(bias).getNumElements();
    y = b.binary<AddOp>(y, b.reshape(bias, shape));
  }
  return give(results, y);
}

static LogicalResult parsePool(const OnnxNode &node, GraphBuilder &b,
                               Window &w) {
  if (failed(needsFloat(node, b)) || failed(needsRank(node, b, 1, 3)))
    return failure();
  return parseWindow(node, b, node.integers("kernel_shape").value_or(Shape()),
                     w);
}

CONVERT(convertMaxPool) {
  Window w;
  if (failed(parsePool(node, b, w)))
    return failure();
  Value x = node.in(0);
  if (results.size() > 1 && node.usedOutputs[1]) {
    b.fail("unsupported use of the indices");
    return failure();
  }
  Type element = tensorType(x).getElementType();
  auto op = MaxPoolOp::create(
      b.builder, b.loc,
      TypeRange{resultType(x, shapeOf(x)[1], w, element),
                resultType(x, shapeOf(x)[1], w, b.builder.getI64Type())},
      x, w.kernel, w.strides, w.pads, w.dilations);
  return give(results, op.getY());
}

CONVERT(convertAveragePool) {
  Window w;
  if (failed(parsePool(node, b, w)))
    return failure();
  Value x = node.in(0);
  if (llvm::any_of(w.dilations, [](int64_t d) { return d != 1; })) {
    b.fail("unsupported dilations, expected 1");
    return failure();
  }
  auto op = AvgPoolOp::create(
      b.builder, b.loc,
      resultType(x, shapeOf(x)[1], w, tensorType(x).getElementType()), x,
      w.kernel, w.strides, w.pads, node.integer("count_include_pad", 0) != 0);
  return give(results, op.getY());
}

CONVERT(convertGlobalAveragePool) {
  if (failed(needsRank(node, b, 1, 3)))
    return failure();
  Value x = node.in(0);
  return give(results, b.mean(x, dimsFrom(2, rankOf(x)), /*keep=*/true));
}

CONVERT(convertGlobalMaxPool) {
  if (failed(needsRank(node, b, 1, 3)))
    return failure();
  Value x = node.in(0);
  return give(results, b.reduce<ReduceMaxOp>(x, dimsFrom(2, rankOf(x)), true));
}

void merak::addWindowConversions(SmallVectorImpl<OnnxEntry> &table) {
  auto add = [&](const char *type, int64_t since, OnnxConversionFn convert) {
    table.push_back({type, since, kNewestOpset, convert});
  };
  add("Conv", 1, convertConv);
  add("MaxPool", 1, convertMaxPool);
  add("AveragePool", 7, convertAveragePool);
  add("GlobalAveragePool", 1, convertGlobalAveragePool);
  add("GlobalMaxPool", 1, convertGlobalMaxPool);
}
