// Fourier transforms as products with constant matrices, and tables of signal
// processing that are known ahead of time.
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/HostTensor.h"

#include <cmath>
#include <functional>
#include <numbers>

using namespace mlir;
using namespace merak;
using namespace merak::train;

static constexpr double kTurn = 2 * std::numbers::pi;

// A constant of the numbers f(i), row major.
static Value tabulate(GraphBuilder &b, ArrayRef<int64_t> shape, Type element,
                      const std::function<double(int64_t)> &f) {
  auto real = dyn_cast_or_null<FloatType>(element);
  if (!real)
    return b.fail("expected a float type of the result");
  HostTensor table{RankedTensorType::get(shape, element), {}, {}};
  for (int64_t i = 0; i < table.size(); ++i)
    table.reals.push_back(roundTo(element, f(i)));
  DenseElementsAttr value = toAttribute(table);
  return value ? b.constant(value) : b.fail("expected a smaller table");
}

// A number given as a constant input.
static std::optional<double> numberAt(const OnnxNode &node, GraphBuilder &b,
                                      size_t input) {
  DenseElementsAttr value =
      node.in(input) ? constantOf(node.in(input)) : DenseElementsAttr();
  std::optional<HostTensor> host = value ? toHost(value) : std::nullopt;
  if (host && host->size() == 1)
    return host->real(0);
  b.fail("expected a constant number as input " + llvm::Twine(input));
  return std::nullopt;
}

static Type tableType(const OnnxNode &node, GraphBuilder &b) {
  return onnxElement(node.integer("output_datatype", 1),
                     b.builder.getContext());
}

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

// a0 - a1 cos(t) + a2 cos(2t) over one period.
struct Window {
  double a0, a1, a2;
};
static constexpr Window kHann = {0.5, 0.5, 0};
static constexpr Window kHamming = {25.0 / 46, 21.0 / 46, 0};
static constexpr Window kBlackman = {0.42, 0.5, 0.08};

template <const Window &window> CONVERT(convertWindow) {
  std::optional<double> size = numberAt(node, b, 0);
  if (!size)
    return failure();
  double period = node.integer("periodic", 1) ? *size : *size - 1;
  return give(results, tabulate(b, {static_cast<int64_t>(*size)},
                                tableType(node, b), [&](int64_t i) {
                                  double t =
                                      period > 0 ? kTurn * i / period : 0;
                                  return window.a0 - window.a1 * std::cos(t) +
                                         window.a2 * std::cos(2 * t);
                                }));
}

// Triangles that are equally wide on the scale of mel: [spectrum, bins].
CONVERT(convertMelWeights) {
  double given[5];
  for (size_t i = 0; i < 5; ++i) {
    std::optional<double> number = numberAt(node, b, i);
    if (!number)
      return failure();
    given[i] = *number;
  }
  auto [bins, length, rate, low, high] = given;
  auto melOf = [](double hertz) {
    return 2595 * std::log1p(hertz / 700) / std::log(10.0);
  };
  double first = melOf(low), step = (melOf(high) - first) / (bins + 2);
  auto corner = [&, length = length, rate = rate](int64_t i) {
    double hertz = 700 * std::expm1((first + step * i) / 2595 * std::log(10.0));
    return std::floor((length + 1) * hertz / rate);
  };
  int64_t count = static_cast<int64_t>(bins);
  int64_t rows = static_cast<int64_t>(length) / 2 + 1;
  if (!(bins >= 1 && length >= 1 && rate > 0) ||
      !(corner(count + 1) < static_cast<double>(rows) + 1)) {
    b.fail("expected edges inside of the spectrum");
    return failure();
  }
  return give(
      results, tabulate(b, {rows, count}, tableType(node, b), [&](int64_t at) {
        int64_t i = at % count;
        double row = static_cast<double>(at / count);
        double left = corner(i), top = corner(i + 1), right = corner(i + 2);
        if (row == top)
          return 1.0;
        if (row >= left && row < top)
          return (row - left) / (top - left);
        if (row > top && row < right)
          return (right - row) / (right - top);
        return 0.0;
      }));
}

//===----------------------------------------------------------------------===//
// Transforms
//===----------------------------------------------------------------------===//

namespace {
struct Transform {
  int64_t length;
  bool inverse, oneSided;
};
} // namespace

// x [..., n, ..., 1 or 2] along `axis`; the last dimension holds real and
// imaginary parts. What is longer than the transform is cut, what is shorter
// counts as zeros.
static Value transform(GraphBuilder &b, Value x, int64_t axis,
                       const Transform &t) {
  if (!x)
    return x;
  int64_t last = rankOf(x) - 1, parts = shapeOf(x)[last];
  bool toReal = t.inverse && t.oneSided;
  int64_t wanted = toReal ? t.length / 2 + 1 : t.length;
  int64_t terms = std::min(shapeOf(x)[axis], wanted);
  int64_t points = t.oneSided && !t.inverse ? t.length / 2 + 1 : t.length;
  if (parts < 1 || parts > 2 || axis == last || t.length < 1 || last > 20)
    return b.fail("expected real numbers or pairs along the last dimension "
                  "and another axis, found " +
                  describeType(x.getType()));
  x = b.sliceDim(x, axis, 0, terms);
  std::string dims, moved;
  for (int64_t i = 0; i < last; ++i) {
    dims += static_cast<char>('a' + i);
    moved += i == axis ? 'z' : static_cast<char>('a' + i);
  }
  std::string equation = dims + "," + dims[axis] + "z->" + moved;
  Shape flat(shapeOf(x).drop_back());
  Type element = tensorType(x).getElementType();
  double scale = t.inverse ? 1.0 / static_cast<double>(t.length) : 1;
  // Part `p` of x times scale * wave(angle), over the terms.
  auto product = [&](int64_t p, double sign, double (*wave)(double)) {
    Value matrix = tabulate(b, {terms, points}, element, [&](int64_t i) {
      int64_t k = i / points;
      // A real result counts the frequencies that are left out.
      bool twice = toReal && k > 0 && 2 * k != t.length;
      int64_t turns = k * (i % points) % t.length;
      return sign * scale * (twice ? 2 : 1) *
             wave(kTurn * static_cast<double>(turns) /
                  static_cast<double>(t.length));
    });
    Value part = b.reshape(b.sliceDim(x, last, p, 1), flat);
    return b.einsum(equation, part, matrix);
  };
  auto cosine = [](double a) { return std::cos(a); };
  auto sine = [](double a) { return std::sin(a); };
  double turn = t.inverse ? -1 : 1;
  Value real = product(0, 1, cosine);
  if (parts == 2)
    real = b.binary<AddOp>(real, product(1, turn, sine));
  if (!real)
    return real;
  Shape single(shapeOf(real));
  single.push_back(1);
  real = b.reshape(real, single);
  if (toReal)
    return real;
  Value imaginary = product(0, -turn, sine);
  if (parts == 2)
    imaginary = b.binary<AddOp>(imaginary, product(1, 1, cosine));
  imaginary = b.reshape(imaginary, single);
  return real && imaginary ? b.concat({real, imaginary}, last) : Value();
}

CONVERT(convertDft) {
  if (failed(needsRank(node, b, 1, 2)) || failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  int64_t given = node.integer("axis", node.opset < 20 ? 1 : -2);
  if (node.opset >= 20 && node.has(2)) {
    std::optional<double> number = numberAt(node, b, 2);
    if (!number)
      return failure();
    given = static_cast<int64_t>(*number);
  }
  std::optional<int64_t> axis = wrapAxis(given, rankOf(x), b);
  if (!axis)
    return failure();
  Transform t{shapeOf(x)[*axis], node.integer("inverse", 0) != 0,
              node.integer("onesided", 0) != 0};
  if (t.inverse && t.oneSided)
    t.length = 2 * (t.length - 1);
  if (node.has(1)) {
    std::optional<double> length = numberAt(node, b, 1);
    if (!length)
      return failure();
    t.length = static_cast<int64_t>(*length);
  }
  return give(results, transform(b, x, *axis, t));
}

// Transforms of frames that begin every `step` samples of [batch, n, 1 or 2].
CONVERT(convertStft) {
  if (failed(needsRank(node, b, 2, 3)) || failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0), window = node.in(2);
  std::optional<double> step = numberAt(node, b, 1);
  std::optional<double> length;
  if (node.has(3))
    length = numberAt(node, b, 3);
  else if (window)
    length = static_cast<double>(shapeOf(window)[0]);
  else
    b.fail("expected a window or a frame_length");
  if (!step || !length)
    return failure();
  int64_t frame = static_cast<int64_t>(*length);
  int64_t stride = static_cast<int64_t>(*step), total = shapeOf(x)[1];
  if (frame < 1 || stride < 1 || frame > total ||
      (window && shapeOf(window) != ArrayRef<int64_t>(frame))) {
    b.fail("expected frames inside of " + llvm::Twine(total) +
           " samples, found " + llvm::Twine(frame) + " every " +
           llvm::Twine(stride));
    return failure();
  }
  int64_t frames = 1 + (total - frame) / stride;
  SmallVector<int64_t> ids;
  for (int64_t i = 0; i < frames; ++i)
    for (int64_t j = 0; j < frame; ++j)
      ids.push_back(i * stride + j);
  Value at = b.constant(DenseElementsAttr::get(
      RankedTensorType::get({frames, frame}, b.builder.getI64Type()),
      ArrayRef<int64_t>(ids)));
  Value framed = b.gather(x, at, 1); // [batch, frames, frame, parts]
  if (window)
    framed = b.binary<MulOp>(framed, b.reshape(window, {frame, 1}));
  return give(results,
              transform(b, framed, 2,
                        {frame, false, node.integer("onesided", 1) != 0}));
}

void merak::addSignalConversions(OnnxTable &table) {
  table.add("HannWindow", 17, convertWindow<kHann>);
  table.add("HammingWindow", 17, convertWindow<kHamming>);
  table.add("BlackmanWindow", 17, convertWindow<kBlackman>);
  table.add("MelWeightMatrix", 17, convertMelWeights);
  table.add("DFT", 17, convertDft);
  table.add("STFT", 17, convertStft);
}
