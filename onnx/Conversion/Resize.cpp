// ONNX Resize and Upsample: along each dimension a gather (nearest) or a
// product with a matrix of weights (linear, cubic) that is known when
// compiling.
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/HostTensor.h"

#include <algorithm>
#include <cmath>
#include <map>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// How one dimension is resized.
struct Axis {
  int64_t in = 0, out = 0;
  double scale = 1;
  double roiStart = 0, roiEnd = 1;
};

struct Mode {
  StringRef name, transform, nearest;
  double cubic = -0.75, outside = 0;
  bool exclude = false, antialias = false;
};

using Weights = std::map<int64_t, double>; // by input position
} // namespace

// Where output position i lies among the inputs.
static double sourceOf(const Axis &a, const Mode &mode, int64_t i) {
  double x = static_cast<double>(i), length = double(a.in);
  if (mode.transform == "asymmetric")
    return x / a.scale;
  if (mode.transform == "align_corners") {
    double out = a.scale * length;
    return out <= 1 ? 0 : x * (length - 1) / (out - 1);
  }
  if (mode.transform == "pytorch_half_pixel")
    return a.scale * length > 1 ? (x + 0.5) / a.scale - 0.5 : 0;
  if (mode.transform == "tf_half_pixel_for_nn")
    return (x + 0.5) / a.scale;
  if (mode.transform == "half_pixel_symmetric") {
    double exact = a.scale * length;
    double adjust = double(a.out) / exact;
    double offset = length / 2 * (1 - adjust);
    return offset + (x + 0.5) / a.scale - 0.5;
  }
  if (mode.transform == "tf_crop_and_resize") {
    double out = double(a.out);
    if (out > 1)
      return a.roiStart * (length - 1) +
             x * (a.roiEnd - a.roiStart) * (length - 1) / (out - 1);
    return 0.5 * (a.roiStart + a.roiEnd) * (length - 1);
  }
  return (x + 0.5) / a.scale - 0.5; // half_pixel
}

static int64_t nearestOf(const Mode &mode, double x) {
  double whole = std::floor(x), part = x - whole;
  if (mode.nearest == "floor")
    return int64_t(whole);
  if (mode.nearest == "ceil")
    return int64_t(std::ceil(x));
  if (mode.nearest == "round_prefer_ceil")
    return int64_t(part >= 0.5 ? whole + 1 : whole);
  return int64_t(part > 0.5 ? whole + 1 : whole); // round_prefer_floor
}

// The kernel of a filter at distance d.
static double filterAt(const Mode &mode, double d) {
  d = std::fabs(d);
  if (mode.name == "linear")
    return std::max(0.0, 1 - d);
  double a = mode.cubic;
  if (d <= 1)
    return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// What output position i takes from the inputs; positions outside count for
// the edge unless they are excluded.
static Weights weightsOf(const Axis &a, const Mode &mode, int64_t i) {
  double x = sourceOf(a, mode, i);
  bool isLinear = mode.name == "linear";
  double stretch = mode.antialias ? std::min(a.scale, 1.0) : 1.0;
  double reach = (isLinear ? 1 : 2) / stretch;
  Weights weights;
  double sum = 0;
  auto first = int64_t(std::floor(x - reach)),
       last = int64_t(std::ceil(x + reach));
  for (int64_t k = first; k <= last; ++k) {
    double w = filterAt(mode, (x - double(k)) * stretch);
    bool inside = k >= 0 && k < a.in;
    if (w == 0 || (mode.exclude && !inside))
      continue;
    weights[std::clamp<int64_t>(k, 0, a.in - 1)] += w;
    sum += w;
  }
  if (mode.exclude || mode.antialias)
    for (auto &[at, w] : weights)
      w /= sum;
  return weights;
}

static bool isOutside(const Axis &a, const Mode &mode, int64_t i) {
  double x = sourceOf(a, mode, i);
  return mode.transform == "tf_crop_and_resize" &&
         (x < 0 || x > double(a.in - 1));
}

static Value constantOfReals(GraphBuilder &b, ArrayRef<int64_t> shape,
                             std::vector<double> reals, Type element) {
  for (double &real : reals)
    real = roundTo(element, real);
  return b.constant(toAttribute(
      {RankedTensorType::get(shape, element), std::move(reals), {}}));
}

static Value resizeAxis(GraphBuilder &b, Value x, int64_t dim, const Axis &a,
                        const Mode &mode) {
  if (!x || a.in == 0 || a.out > kMaxEvaluated || a.out * a.in > kMaxEvaluated)
    return x ? b.fail("dimension " + llvm::Twine(dim) + " of " +
                      describeType(x.getType()) + " is too large to resize")
             : x;
  Value y;
  if (mode.name == "nearest") {
    SmallVector<int64_t> at;
    for (int64_t i = 0; i < a.out; ++i)
      at.push_back(std::clamp<int64_t>(nearestOf(mode, sourceOf(a, mode, i)), 0,
                                       a.in - 1));
    y = b.gather(x,
                 b.constant(DenseElementsAttr::get(
                     RankedTensorType::get({a.out}, b.builder.getI64Type()),
                     ArrayRef<int64_t>(at))),
                 dim);
  } else {
    std::vector<double> matrix(a.out * a.in);
    for (int64_t i = 0; i < a.out; ++i)
      for (auto [k, w] : weightsOf(a, mode, i))
        matrix[i * a.in + k] = w;
    Type element = tensorType(x).getElementType();
    Value weights = constantOfReals(b, {a.out, a.in}, matrix, element);
    std::string in, out;
    for (int64_t d = 0; d < rankOf(x); ++d)
      in += static_cast<char>('a' + d);
    out = in;
    out[dim] = 'Z';
    y = b.einsum(in + ",Z" + in[dim] + "->" + out, x, weights);
  }
  // What a crop leaves outside of the image.
  SmallVector<bool> outside;
  for (int64_t i = 0; i < a.out; ++i)
    outside.push_back(isOutside(a, mode, i));
  if (!y || llvm::none_of(outside, [](bool out) { return out; }))
    return y;
  Shape shape(rankOf(x), 1);
  shape[dim] = a.out;
  Value mask = b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getI1Type()), outside));
  return b.select(mask, b.scalarLike(mode.outside, y), y);
}

static std::optional<std::vector<double>> realsOf(Value value) {
  DenseElementsAttr attr = constantOf(value);
  std::optional<HostTensor> host =
      attr && attr.getNumElements() <= 1024 ? toHost(attr) : std::nullopt;
  if (!host)
    return std::nullopt;
  std::vector<double> reals;
  for (int64_t i = 0; i < host->size(); ++i)
    reals.push_back(host->real(i));
  return reals;
}

CONVERT(convertResize) {
  if (failed(needsRank(node, b, 1, 1)))
    return failure();
  Value x = node.in(0);
  bool old = node.opset < 11;
  size_t roiAt = old ? 99 : 1, scalesAt = old ? 1 : 2, sizesAt = old ? 99 : 3;
  auto given = [&](size_t at) {
    return node.in(at) && tensorType(node.in(at)).getNumElements() > 0;
  };
  std::optional<std::vector<double>> scales, sizes, roi;
  if (given(scalesAt) && !(scales = realsOf(node.in(scalesAt)))) {
    b.fail("expected constant scales, found data computed from the model's "
           "inputs or parameters");
    return failure();
  }
  if (given(sizesAt) && !(sizes = realsOf(node.in(sizesAt)))) {
    b.fail("expected constant sizes, found data computed from the model's "
           "inputs or parameters");
    return failure();
  }
  if (auto floats = node.attributes.getAs<DenseF32ArrayAttr>("scales"))
    scales.emplace(floats.asArrayRef().begin(), floats.asArrayRef().end());
  if (given(roiAt))
    roi = realsOf(node.in(roiAt));
  Shape axes = node.integers("axes").value_or(dimsFrom(0, rankOf(x)));
  if (failed(wrapAxes(axes, rankOf(x), b)))
    return failure();
  size_t count = scales ? scales->size() : sizes ? sizes->size() : 0;
  if (count != axes.size() || (roi && roi->size() != 2 * count)) {
    b.fail("expected a scale or a size for each of " +
           llvm::Twine(axes.size()) + " dimensions, found " +
           llvm::Twine(count));
    return failure();
  }
  Mode mode;
  mode.name = node.string("mode", "nearest");
  mode.name = mode.name == "bilinear" ? "linear" : mode.name;
  mode.transform = node.string("coordinate_transformation_mode",
                               old ? "asymmetric" : "half_pixel");
  mode.nearest =
      node.string("nearest_mode", old ? "floor" : "round_prefer_floor");
  mode.cubic = node.real("cubic_coeff_a", -0.75);
  mode.outside = node.real("extrapolation_value", 0);
  mode.exclude = node.integer("exclude_outside", 0);
  mode.antialias = node.integer("antialias", 0);
  if (mode.name != "nearest" && mode.name != "linear" && mode.name != "cubic") {
    b.fail("expected mode nearest, linear or cubic, found '" + mode.name + "'");
    return failure();
  }
  if (mode.transform == "tf_crop_and_resize" && !roi) {
    b.fail("expected a constant roi");
    return failure();
  }
  std::vector<Axis> all;
  for (size_t i = 0; i < axes.size(); ++i) {
    Axis a;
    a.in = shapeOf(x)[axes[i]];
    if (roi) {
      a.roiStart = (*roi)[i];
      a.roiEnd = (*roi)[i + axes.size()];
    }
    if (scales) {
      a.scale = (*scales)[i];
      double wide = mode.transform == "tf_crop_and_resize"
                        ? double(a.in) * (a.roiEnd - a.roiStart) * a.scale
                        : double(a.in) * a.scale;
      a.out = int64_t(std::floor(wide));
    } else {
      a.out = int64_t((*sizes)[i]);
      a.scale = a.in ? double(a.out) / double(a.in) : 1;
    }
    if (!(a.scale > 0) || a.out < 1) {
      b.fail("expected positive scales and sizes");
      return failure();
    }
    all.push_back(a);
  }
  // One scale for all dimensions.
  StringRef policy = node.string("keep_aspect_ratio_policy", "stretch");
  if (sizes && policy != "stretch") {
    bool larger = policy == "not_smaller";
    double scale = all[0].scale;
    for (const Axis &a : all)
      scale = larger ? std::max(scale, a.scale) : std::min(scale, a.scale);
    for (Axis &a : all) {
      a.scale = scale;
      a.out = int64_t(std::floor(scale * double(a.in) + 0.5));
    }
  }
  Type element = tensorType(x).getElementType();
  Value y = x;
  bool moves = mode.name == "nearest";
  if (!moves && !isa<FloatType>(element))
    y = b.cast(y, b.builder.getF32Type());
  for (size_t i = 0; i < axes.size(); ++i)
    if (all[i].in != all[i].out || all[i].scale != 1 ||
        mode.transform == "tf_crop_and_resize")
      y = resizeAxis(b, y, axes[i], all[i], mode);
  return give(results, y ? b.cast(y, element) : y);
}

//===----------------------------------------------------------------------===//
// Borders
//===----------------------------------------------------------------------===//

// Crops or pads the middle of each axis to a size.
CONVERT(convertCenterCropPad) {
  std::optional<Shape> sizes;
  if (failed(needsRank(node, b, 2, 1)) ||
      failed(node.integersAt(1, "shape", b, sizes)))
    return failure();
  Value x = node.in(0);
  Shape axes = node.integers("axes").value_or(dimsFrom(0, rankOf(x)));
  if (failed(wrapAxes(axes, rankOf(x), b)))
    return failure();
  if (!sizes || sizes->size() != axes.size()) {
    b.fail("expected a size for each of " + llvm::Twine(axes.size()) + " axes");
    return failure();
  }
  Shape low(rankOf(x), 0), high(rankOf(x), 0), starts(rankOf(x), 0),
      kept(shapeOf(x)), steps(rankOf(x), 1);
  for (auto [axis, size] : llvm::zip(axes, *sizes)) {
    int64_t dim = shapeOf(x)[axis];
    if (size < 0 || size > kMaxEvaluated) {
      b.fail("expected sizes that are not negative, found " +
             describeShape(*sizes));
      return failure();
    }
    if (size < dim) {
      starts[axis] = (dim - size) / 2;
      kept[axis] = size;
    } else {
      low[axis] = (size - dim) / 2;
      high[axis] = size - dim - low[axis];
    }
  }
  x = b.slice(x, starts, kept, steps);
  if (!x)
    return failure();
  return give(results, PadOp::create(b.builder, b.loc, x, low, high,
                                     Shape(rankOf(x), 0), llvm::APFloat(0.0)));
}

void merak::addResizeConversions(OnnxTable &table) {
  table.add("Resize", 10, convertResize);
  table.add("Upsample", 7, convertResize, 9);
  table.add("CenterCropPad", 18, convertCenterCropPad);
}
