// ONNX ops with sliding windows: convolution and pooling.
#include "onnx/Conversion/Conversion.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// One entry a spatial dimension; pads are begins then ends.
struct Window {
  Shape kernel, strides, dilations, pads, out;
  Shape extra; // how far ceil_mode reaches beyond the pads, which contain it

  bool dilates() const {
    return llvm::any_of(dilations, [](int64_t d) { return d != 1; });
  }
  bool exceeds() const {
    return llvm::any_of(extra, [](int64_t e) { return e > 0; });
  }
};
} // namespace

// Windows are computed in f32; narrower numbers fit into it, and f64 stays
// until the precision of the model is decided. Null after a report for others.
static Value asF32(GraphBuilder &b, Value x) {
  Type element = tensorType(x).getElementType();
  if (element.isF64())
    return x;
  if (isa<FloatType>(element) ? element.getIntOrFloatBitWidth() <= 32
                              : element.getIntOrFloatBitWidth() <= 16)
    return b.cast(x, b.builder.getF32Type());
  return b.fail(
      "unsupported element type, expected a float or an integer of at "
      "most 16 bits, found " +
      describeType(x.getType()));
}

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
    int64_t extra = 0, rest = slack < 0 ? 0 : slack % w.strides[i];
    // One more window, if it begins before the end of the input.
    if (node.integer("ceil_mode", 0) && rest &&
        (slack / w.strides[i] + 1) * w.strides[i] < spatial[i] + w.pads[i])
      extra = w.strides[i] - rest;
    w.extra.push_back(extra);
    w.pads[i + n] += extra;
    slack += extra;
    if (slack < 0) {
      b.fail("expected a window that fits, found one of " + llvm::Twine(reach) +
             " in " + describeType(node.in(0).getType()));
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

// y [n, c, ...] + bias [c].
static Value addBias(GraphBuilder &b, Value y, Value bias) {
  if (!y || !bias)
    return y;
  Shape shape(rankOf(y) - 1, 1);
  shape[0] = tensorType(bias).getNumElements();
  return b.binary<AddOp>(y, b.reshape(bias, shape));
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
  Type element = tensorType(x).getElementType();
  x = asF32(b, x);
  weight = asF32(b, weight);
  if (!x || !weight)
    return failure();
  Value y =
      b.cast(ConvOp::create(b.builder, b.loc,
                            resultType(x, shapeOf(weight)[0], w,
                                       tensorType(x).getElementType()),
                            x, weight, w.strides, w.pads, w.dilations, group),
             element);
  return give(results, addBias(b, y, node.in(2)));
}

// A depthwise convolution over what came before: k - 1 earlier elements (zeros
// without them) stand in front, the last k - 1 are the next call's.
CONVERT(convertCausalConv) {
  if (failed(needsFloat(node, b, 2)) || failed(needsRank(node, b, 2, 3)))
    return failure();
  Value x = node.in(0), weight = node.in(1), wide;
  if (rankOf(x) != 3 || rankOf(weight) != 3 || shapeOf(weight)[1] != 1 ||
      shapeOf(weight)[0] != shapeOf(x)[1] || shapeOf(weight)[2] < 1) {
    b.fail("expected [n,c,length] and a weight [c,1,k], found " +
           describeType(x.getType()) + " and " +
           describeType(weight.getType()));
    return failure();
  }
  int64_t channels = shapeOf(x)[1], length = shapeOf(x)[2];
  int64_t before = shapeOf(weight)[2] - 1;
  if (Value past = node.in(3))
    wide = b.concat({past, x}, 2);
  else
    wide = PadOp::create(b.builder, b.loc, x, Shape{0, 0, before},
                         Shape{0, 0, 0}, Shape{0, 0, 0}, llvm::APFloat(0.0));
  if (!wide)
    return failure();
  if (results.size() > 1)
    results[1] = b.sliceDim(wide, 2, length, before);
  Type element = tensorType(x).getElementType();
  Value in = asF32(b, wide), w = asF32(b, weight);
  if (!in || !w)
    return failure();
  Type wider = tensorType(in).getElementType();
  Value y = ConvOp::create(
      b.builder, b.loc,
      RankedTensorType::get({shapeOf(x)[0], channels, length}, wider), in, w,
      Shape{1}, Shape{0, 0}, Shape{1}, channels);
  if (Value bias = node.in(2))
    y = addBias(b, y, b.cast(bias, wider));
  StringRef activation = node.string("activation", "none");
  if (activation == "silu" || activation == "swish")
    y = b.binary<MulOp>(y, b.unary<SigmoidOp>(y));
  return give(results, b.cast(y, element));
}

// The adjoint of a convolution: each input element adds a window to the output.
CONVERT(convertConvTranspose) {
  if (failed(needsFloat(node, b, 2)) || failed(needsRank(node, b, 2, 3)))
    return failure();
  Value x = node.in(0), weight = node.in(1);
  size_t n = rankOf(x) - 2;
  int64_t group = node.integer("group", 1);
  if (rankOf(weight) != rankOf(x) || group < 1 ||
      shapeOf(weight)[0] != shapeOf(x)[1] || shapeOf(x)[1] % group) {
    b.fail("expected a weight for " + llvm::Twine(shapeOf(x)[1]) +
           " input channels in " + llvm::Twine(group) + " groups, found " +
           describeType(x.getType()) + " and " +
           describeType(weight.getType()));
    return failure();
  }
  Shape kernel(shapeOf(weight).drop_front(2));
  Shape strides = node.integers("strides").value_or(Shape(n, 1));
  Shape dilations = node.integers("dilations").value_or(Shape(n, 1));
  Shape pads = node.integers("pads").value_or(Shape(2 * n, 0));
  Shape more = node.integers("output_padding").value_or(Shape(n, 0));
  std::optional<Shape> wanted = node.integers("output_shape");
  if (wanted && wanted->size() == n + 2)
    wanted->erase(wanted->begin(), wanted->begin() + 2);
  if (strides.size() != n || dilations.size() != n || pads.size() != 2 * n ||
      more.size() != n || (wanted && wanted->size() != n)) {
    b.fail("expected strides, dilations, pads, output_padding and "
           "output_shape for " +
           llvm::Twine(n) + " spatial dimensions");
    return failure();
  }
  StringRef autoPad = node.string("auto_pad", "NOTSET");
  Shape shape{shapeOf(x)[0], shapeOf(weight)[1] * group};
  for (size_t i = 0; i < n; ++i) {
    int64_t reach = (kernel[i] - 1) * dilations[i] + 1;
    int64_t whole = strides[i] * (shapeOf(x)[i + 2] - 1) + more[i] + reach;
    bool same = autoPad.starts_with("SAME");
    int64_t out = whole - pads[i] - pads[i + n];
    if (autoPad == "VALID")
      out = whole;
    if (wanted || same) {
      out = wanted ? (*wanted)[i] : shapeOf(x)[i + 2] * strides[i];
      int64_t total = std::max<int64_t>(whole - out, 0), less = total / 2;
      pads[i] = autoPad == "SAME_UPPER" || !same ? less : total - less;
      pads[i + n] = total - pads[i];
      if (wanted && !same && autoPad == "NOTSET")
        std::swap(pads[i], pads[i + n]);
    }
    if (strides[i] < 1 || dilations[i] < 1 || out < 1 || pads[i] < 0 ||
        pads[i + n] < 0 || out > (int64_t(1) << 24) ||
        (out + pads[i] + pads[i + n] - reach) / strides[i] + 1 !=
            shapeOf(x)[i + 2]) {
      b.fail("unsupported output of size " + llvm::Twine(out) +
             " along dimension " + llvm::Twine(i + 2) +
             ", expected output_padding below the stride and pads that are "
             "not negative");
      return failure();
    }
    shape.push_back(out);
  }
  Type element = tensorType(x).getElementType();
  x = asF32(b, x);
  weight = asF32(b, weight);
  if (!x || !weight)
    return failure();
  auto i64s = [&](const Shape &list) {
    return b.builder.getDenseI64ArrayAttr(list);
  };
  Value y = ConvGradInputOp::create(
      b.builder, b.loc,
      RankedTensorType::get(shape, tensorType(x).getElementType()), x, weight,
      i64s(strides), i64s(pads), i64s(dilations),
      b.builder.getI64IntegerAttr(group));
  return give(results, addBias(b, b.cast(y, element), node.in(2)));
}

static LogicalResult parsePool(const OnnxNode &node, GraphBuilder &b,
                               Window &w) {
  if (failed(needsRank(node, b, 1, 3)))
    return failure();
  return parseWindow(node, b, node.integers("kernel_shape").value_or(Shape()),
                     w);
}

// The position in the flat tensor at which the plane of each sample and
// channel begins, [n, c, 1, ...].
static Value planeStarts(GraphBuilder &b, ArrayRef<int64_t> shape) {
  int64_t size = 1;
  for (int64_t dim : shape.drop_front(2))
    size *= dim;
  SmallVector<int64_t> starts;
  for (int64_t i = 0; i < shape[0] * shape[1]; ++i)
    starts.push_back(i * size);
  Shape wide(shape.size(), 1);
  wide[0] = shape[0];
  wide[1] = shape[1];
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(wide, b.builder.getI64Type()),
      ArrayRef<int64_t>(starts)));
}

CONVERT(convertMaxPool) {
  Window w;
  if (failed(parsePool(node, b, w)))
    return failure();
  Type element = tensorType(node.in(0)).getElementType();
  Value x = asF32(b, node.in(0));
  if (!x)
    return failure();
  auto op = MaxPoolOp::create(
      b.builder, b.loc,
      TypeRange{resultType(x, shapeOf(x)[1], w, tensorType(x).getElementType()),
                resultType(x, shapeOf(x)[1], w, b.builder.getI64Type())},
      x, w.kernel, w.strides, w.pads, w.dilations);
  if (results.size() > 1 && node.usedOutputs[1]) {
    Value at = op.getIndex();
    if (node.integer("storage_order", 0) && w.kernel.size() == 2) {
      // row * width + column becomes column * height + row.
      double height = double(shapeOf(x)[2]), width = double(shapeOf(x)[3]);
      Value row = b.binary<DivOp>(at, b.scalarLike(width, at));
      Value column =
          b.binary<SubOp>(at, b.binary<MulOp>(row, b.scalarLike(width, at)));
      at = b.binary<AddOp>(b.binary<MulOp>(column, b.scalarLike(height, at)),
                           row);
    }
    results[1] = b.binary<AddOp>(at, planeStarts(b, shapeOf(x)));
  }
  return give(results, b.cast(op.getY(), element));
}

// Puts values where MaxPool found them.
CONVERT(convertMaxUnpool) {
  std::optional<Shape> wanted;
  if (failed(needsFloat(node, b, 2)) || failed(needsRank(node, b, 2, 3)) ||
      failed(node.integersAt(2, "output_shape", b, wanted)))
    return failure();
  Type element = tensorType(node.in(0)).getElementType();
  Value x = asF32(b, node.in(0)), index = node.in(1);
  if (!x)
    return failure();
  size_t n = rankOf(x) - 2;
  Shape kernel = node.integers("kernel_shape").value_or(Shape());
  Shape strides = node.integers("strides").value_or(Shape(n, 1));
  Shape pads = node.integers("pads").value_or(Shape(2 * n, 0));
  if (kernel.size() != n || strides.size() != n || pads.size() != 2 * n ||
      shapeOf(index) != shapeOf(x) || (wanted && wanted->size() != n + 2)) {
    b.fail("expected an index for each element, and kernel_shape, strides and "
           "pads for " +
           llvm::Twine(n) + " spatial dimensions");
    return failure();
  }
  Shape shape(shapeOf(x));
  for (size_t i = 0; i < n; ++i)
    shape[i + 2] =
        (shape[i + 2] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + n];
  if (!isSaneShape(shape)) {
    b.fail("expected windows that fit, found an output of " +
           describeShape(shape));
    return failure();
  }
  index = b.binary<SubOp>(b.cast(index, b.builder.getI64Type()),
                          planeStarts(b, shape));
  if (!index)
    return failure();
  Value y = MaxPoolGradOp::create(
      b.builder, b.loc,
      RankedTensorType::get(shape, tensorType(x).getElementType()), x, index);
  Shape high(rankOf(x), 0);
  for (size_t i = 0; wanted && i < n; ++i)
    high[i + 2] = (*wanted)[i + 2] - shape[i + 2];
  if (llvm::any_of(high, [](int64_t h) { return h < 0; })) {
    b.fail("expected an output_shape of at least " + describeShape(shape));
    return failure();
  }
  if (llvm::any_of(high, [](int64_t h) { return h > 0; }))
    y = PadOp::create(b.builder, b.loc, y, Shape(rankOf(x), 0), high,
                      Shape(rankOf(x), 0), llvm::APFloat(0.0));
  return give(results, b.cast(y, element));
}

// The sum of each window, where padding counts as zero.
static Value windowSum(GraphBuilder &b, Value x, const Window &w) {
  Type type = tensorType(x).getElementType();
  int64_t channels = shapeOf(x)[1], count = 1;
  for (int64_t k : w.kernel)
    count *= k;
  if (!w.dilates()) {
    Value mean =
        AvgPoolOp::create(b.builder, b.loc, resultType(x, channels, w, type), x,
                          w.kernel, w.strides, w.pads, true);
    return b.binary<MulOp>(mean, double(count));
  }
  Shape shape{channels, 1};
  llvm::append_range(shape, w.kernel);
  Value ones = b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, type), b.builder.getFloatAttr(type, 1.0)));
  return ConvOp::create(b.builder, b.loc, resultType(x, channels, w, type), x,
                        ones, w.strides, w.pads, w.dilations, channels);
}

// 1 / elements of each window, without those that ceil_mode adds.
static Value windowShares(GraphBuilder &b, ArrayRef<int64_t> spatial,
                          const Window &w, bool countPad) {
  size_t n = spatial.size();
  int64_t total = 1;
  for (int64_t out : w.out)
    total *= out;
  SmallVector<float> shares;
  for (int64_t at = 0; at < total; ++at) {
    int64_t count = 1, rest = at;
    for (size_t i = n; i-- > 0;) {
      int64_t start = rest % w.out[i] * w.strides[i] - w.pads[i], inside = 0;
      rest /= w.out[i];
      int64_t end = spatial[i] + w.pads[i + n] - w.extra[i];
      for (int64_t k = 0; k < w.kernel[i]; ++k) {
        int64_t p = start + k * w.dilations[i];
        inside += countPad ? p < end : p >= 0 && p < spatial[i];
      }
      count *= inside;
    }
    shares.push_back(1.0f / float(std::max<int64_t>(count, 1)));
  }
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(w.out, b.builder.getF32Type()),
      ArrayRef<float>(shares)));
}

CONVERT(convertAveragePool) {
  Window w;
  if (failed(parsePool(node, b, w)))
    return failure();
  Type element = tensorType(node.in(0)).getElementType();
  Value x = asF32(b, node.in(0));
  if (!x)
    return failure();
  bool countPad = node.integer("count_include_pad", 0) != 0;
  if (w.dilates() || (w.exceeds() && countPad))
    return give(
        results,
        b.cast(b.binary<MulOp>(windowSum(b, x, w),
                               b.cast(windowShares(b, shapeOf(x).drop_front(2),
                                                   w, countPad),
                                      tensorType(x).getElementType())),
               element));
  auto op = AvgPoolOp::create(
      b.builder, b.loc,
      resultType(x, shapeOf(x)[1], w, tensorType(x).getElementType()), x,
      w.kernel, w.strides, w.pads, countPad);
  return give(results, b.cast(op.getY(), element));
}

// (sum |x|^p)^(1/p)
static Value powerOf(GraphBuilder &b, Value x, double p) {
  return p == 1 ? x : p == 2 ? b.binary<MulOp>(x, x) : b.binary<PowOp>(x, p);
}
static Value rootOf(GraphBuilder &b, Value x, double p) {
  return p == 1 ? x : p == 2 ? b.unary<SqrtOp>(x) : b.binary<PowOp>(x, 1 / p);
}

CONVERT(convertLpPool) {
  Window w;
  if (failed(needsFloat(node, b)) || failed(parsePool(node, b, w)))
    return failure();
  Type element = tensorType(node.in(0)).getElementType();
  Value x = asF32(b, node.in(0));
  double p = double(node.integer("p", 2));
  if (!x)
    return failure();
  Value sum = windowSum(b, powerOf(b, b.unary<AbsOp>(x), p), w);
  return give(results, b.cast(rootOf(b, sum, p), element));
}

CONVERT(convertGlobalLpPool) {
  if (failed(needsFloat(node, b)) || failed(needsRank(node, b, 1, 3)))
    return failure();
  Value x = node.in(0);
  double p = double(node.integer("p", 2));
  Value sum = b.reduce<ReduceSumOp>(powerOf(b, b.unary<AbsOp>(x), p),
                                    dimsFrom(2, rankOf(x)), true);
  return give(results, rootOf(b, sum, p));
}

// x / (bias + alpha / size * sum of squares of neighbouring channels)^beta.
CONVERT(convertLrn) {
  if (failed(needsFloat(node, b)) || failed(needsRank(node, b, 1, 3)))
    return failure();
  Value x = node.in(0), square = b.binary<MulOp>(x, x), sum;
  int64_t size = node.integer("size", 1), channels = shapeOf(x)[1];
  if (size < 1 || size > 4096) {
    b.fail("expected a positive size, found " + llvm::Twine(size));
    return failure();
  }
  Shape low(rankOf(x), 0), high(rankOf(x), 0);
  low[1] = (size - 1) / 2;
  high[1] = size - 1 - low[1];
  Value wide = PadOp::create(b.builder, b.loc, square, low, high,
                             Shape(rankOf(x), 0), llvm::APFloat(0.0));
  for (int64_t i = 0; i < size; ++i) {
    Value part = b.sliceDim(wide, 1, i, channels);
    sum = sum ? b.binary<AddOp>(sum, part) : part;
  }
  Value base = b.binary<AddOp>(
      b.binary<MulOp>(sum, node.real("alpha", 1e-4) / double(size)),
      node.real("bias", 1.0));
  return give(results, b.binary<DivOp>(
                           x, b.binary<PowOp>(base, node.real("beta", 0.75))));
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

void merak::addWindowConversions(OnnxTable &table) {
  table.add("Conv", 1, convertConv);
  table.add("MaxPool", 1, convertMaxPool);
  table.add("AveragePool", 1, convertAveragePool);
  table.add("ConvTranspose", 1, convertConvTranspose);
  table.add("CausalConvWithState", 27, convertCausalConv);
  table.add("MaxUnpool", 9, convertMaxUnpool);
  table.add("LpPool", 2, convertLpPool);
  table.add("GlobalLpPool", 2, convertGlobalLpPool);
  table.add("LRN", 1, convertLrn);
  table.add("GlobalAveragePool", 1, convertGlobalAveragePool);
  table.add("GlobalMaxPool", 1, convertGlobalMaxPool);
}
