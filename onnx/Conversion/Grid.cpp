// ONNX GridSample and AffineGrid: an image read at computed positions.
#include "onnx/Conversion/Conversion.h"

#include <cmath>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// One neighbour along a dimension: its position (f32, whole), its weight (null:
// 1) and where it lies inside the image (null: everywhere).
struct Neighbour {
  Value at, weight, inside;
};

struct Sampler {
  GraphBuilder &b;
  StringRef mode, padding;
  bool align;

  // Mirrored into [low, high].
  Value reflect(Value x, double low, double high) {
    double range = high - low;
    if (range <= 0)
      return b.binary<MulOp>(x, 0.0);
    Value away = b.unary<AbsOp>(b.binary<SubOp>(x, low));
    Value turns = b.unary<FloorOp>(b.binary<MulOp>(away, 1 / range));
    Value rest = b.binary<SubOp>(away, b.binary<MulOp>(turns, range));
    Value half = b.binary<MulOp>(turns, 0.5);
    Value isEven =
        b.compare(ComparePredicate::eq, half, b.unary<FloorOp>(half));
    Value back = b.binary<SubOp>(b.scalarLike(range, rest), rest);
    return b.binary<AddOp>(b.select(isEven, rest, back), low);
  }
  Value clamped(Value x, int64_t length) {
    return b.binary<MinOp>(b.binary<MaxOp>(x, 0.0), double(length - 1));
  }
  Value padded(Value x, int64_t length) {
    if (padding == "border")
      return clamped(x, length);
    if (padding == "reflection")
      return align ? reflect(x, 0, double(length - 1))
                   : reflect(x, -0.5, double(length) - 0.5);
    return x;
  }
  Value inside(Value x, int64_t length) {
    return b.binary<AndOp>(
        b.compare(ComparePredicate::ge, x, b.scalarLike(0, x)),
        b.compare(ComparePredicate::le, x,
                  b.scalarLike(double(length - 1), x)));
  }
  // A whole position that may lie outside.
  Neighbour neighbour(Value at, Value weight, int64_t length) {
    Value mask = padding == "zeros" ? inside(at, length) : Value();
    return {clamped(padded(at, length), length), weight, mask};
  }

  // The weight of a cubic filter (a = -0.75) at distance d in [0, 2].
  Value cubic(Value d, bool far) {
    constexpr double a = -0.75;
    auto horner = [&](double c3, double c2, double c1, double c0) {
      Value y = b.binary<AddOp>(b.binary<MulOp>(d, c3), c2);
      y = b.binary<AddOp>(b.binary<MulOp>(y, d), c1);
      return b.binary<AddOp>(b.binary<MulOp>(y, d), c0);
    };
    return far ? horner(a, -5 * a, 8 * a, -4 * a)
               : horner(a + 2, -(a + 3), 0, 1);
  }

  // What a coordinate in [-1, 1] reads along a dimension of `length`.
  SmallVector<Neighbour> along(Value grid, int64_t length) {
    Value x = b.binary<AddOp>(grid, 1.0);
    x = align ? b.binary<MulOp>(x, double(length - 1) / 2)
              : b.binary<SubOp>(b.binary<MulOp>(x, double(length) / 2), 0.5);
    if (mode == "nearest")
      return {neighbour(b.unary<RoundOp>(padded(x, length)), {}, length)};
    if (mode != "cubic")
      x = padded(x, length);
    Value whole = b.unary<FloorOp>(x), part = b.binary<SubOp>(x, whole);
    Value rest = b.binary<SubOp>(b.scalarLike(1, part), part);
    Value next = b.binary<AddOp>(whole, 1.0);
    if (mode != "cubic")
      return {neighbour(whole, rest, length), neighbour(next, part, length)};
    return {neighbour(b.binary<SubOp>(whole, 1.0),
                      cubic(b.binary<AddOp>(part, 1.0), true), length),
            neighbour(whole, cubic(part, false), length),
            neighbour(next, cubic(rest, false), length),
            neighbour(b.binary<AddOp>(whole, 2.0),
                      cubic(b.binary<AddOp>(rest, 1.0), true), length)};
  }
};
} // namespace

// Numbers 0, step, 2 step ... along the first of `rank` dimensions.
static Value sampleStarts(GraphBuilder &b, int64_t count, int64_t step,
                          int64_t rank) {
  SmallVector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i)
    numbers.push_back(i * step);
  Shape shape(rank, 1);
  shape[0] = count;
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getI64Type()),
      ArrayRef<int64_t>(numbers)));
}

CONVERT(convertGridSample) {
  if (failed(needsFloat(node, b, 2)) || failed(needsRank(node, b, 2, 3)))
    return failure();
  Value x = node.in(0), grid = node.in(1);
  int64_t rank = rankOf(x), dims = rank - 2;
  if (rankOf(grid) != rank || shapeOf(grid).back() != dims ||
      shapeOf(grid)[0] != shapeOf(x)[0]) {
    b.fail("expected a grid of " + llvm::Twine(dims) +
           " coordinates for each position, found " +
           describeType(grid.getType()) + " for " + describeType(x.getType()));
    return failure();
  }
  StringRef mode = node.string("mode", "linear");
  if (mode == "bilinear" || mode == "bicubic")
    mode = mode.drop_front(2);
  Sampler sampler{b, mode, node.string("padding_mode", "zeros"),
                  node.integer("align_corners", 0) != 0};
  Type element = tensorType(x).getElementType();
  // Channels last, positions flat: a gather of rows reads all channels.
  Shape last = dimsFrom(0, rank);
  last.erase(last.begin() + 1);
  last.push_back(1);
  int64_t planes = 1;
  for (int64_t dim : shapeOf(x).drop_front(2))
    planes *= dim;
  Value rows =
      b.reshape(b.transpose(x, last), {shapeOf(x)[0] * planes, shapeOf(x)[1]});
  Shape outer(shapeOf(grid).drop_back());
  SmallVector<SmallVector<Neighbour>> choices;
  for (int64_t d = 0; d < dims; ++d) {
    // The last dimension of the image comes first in the grid.
    Value part = b.reshape(b.sliceDim(grid, rank - 1, dims - 1 - d, 1), outer);
    choices.push_back(
        sampler.along(b.cast(part, b.builder.getF32Type()), shapeOf(x)[d + 2]));
  }
  Value start = sampleStarts(b, shapeOf(x)[0], planes, rank - 1), sum;
  int64_t combinations = 1;
  for (const auto &choice : choices)
    combinations *= static_cast<int64_t>(choice.size());
  for (int64_t n = 0; n < combinations; ++n) {
    Value at, weight, mask;
    int64_t rest = n;
    for (int64_t d = 0; d < dims; ++d) {
      auto count = static_cast<int64_t>(choices[d].size());
      const Neighbour &one = choices[d][rest % count];
      rest /= count;
      Value whole = b.cast(one.at, b.builder.getI64Type());
      at = at ? b.binary<AddOp>(
                    b.binary<MulOp>(
                        at, b.scalarLike(double(shapeOf(x)[d + 2]), at)),
                    whole)
              : whole;
      if (one.weight)
        weight = weight ? b.binary<MulOp>(weight, one.weight) : one.weight;
      if (one.inside)
        mask = mask ? b.binary<AndOp>(mask, one.inside) : one.inside;
    }
    Value read = b.gather(rows, b.binary<AddOp>(at, start), 0);
    Shape wide(outer);
    wide.push_back(1);
    if (mask)
      read = b.select(b.reshape(mask, wide), read, b.scalarLike(0, rows));
    if (weight)
      read = b.binary<MulOp>(read, b.cast(b.reshape(weight, wide), element));
    sum = sum ? b.binary<AddOp>(sum, read) : read;
    if (!sum)
      return failure();
  }
  Shape first = dimsFrom(0, rank);
  first.pop_back();
  first.insert(first.begin() + 1, rank - 1);
  return give(results, b.transpose(sum, first));
}

// theta [n, d, d+1] times the positions (..., y, x, 1) of an image of a size.
CONVERT(convertAffineGrid) {
  std::optional<Shape> size;
  if (failed(needsFloat(node, b, 2)) ||
      failed(node.integersAt(1, "size", b, size)))
    return failure();
  Value theta = node.in(0);
  int64_t dims = size ? static_cast<int64_t>(size->size()) - 2 : 0;
  if ((dims != 2 && dims != 3) || rankOf(theta) != 3 ||
      shapeOf(theta)[1] != dims || shapeOf(theta)[2] != dims + 1 ||
      !isSaneShape(*size)) {
    b.fail("expected theta [n,2,3] and a size of 4, or [n,3,4] and 5, found " +
           describeType(theta.getType()));
    return failure();
  }
  bool align = node.integer("align_corners", 0);
  Type element = tensorType(theta).getElementType();
  Shape spatial(ArrayRef<int64_t>(*size).drop_front(2));
  SmallVector<Value> parts;
  for (int64_t d = dims - 1; d >= 0; --d) { // x, y, z
    int64_t n = spatial[d];
    SmallVector<float> at;
    for (int64_t i = 0; i < n; ++i)
      at.push_back(align ? (n > 1 ? -1 + 2.0f * float(i) / float(n - 1) : 0)
                         : (2.0f * float(i) + 1) / float(n) - 1);
    Shape shape(dims + 1, 1), wide(spatial);
    shape[d] = n;
    wide.push_back(1);
    Value line = b.constant(DenseElementsAttr::get(
        RankedTensorType::get(shape, b.builder.getF32Type()),
        ArrayRef<float>(at)));
    parts.push_back(b.expand(b.cast(line, element), wide));
  }
  Shape wide(spatial);
  wide.push_back(1);
  parts.push_back(
      b.expand(b.reshape(b.scalar(1, element), Shape(dims + 1, 1)), wide));
  Value points = b.concat(parts, dims);
  StringRef letters = dims == 2 ? "hwk,nck->nhwc" : "dhwk,nck->ndhwc";
  return give(results, b.einsum(letters, points, theta));
}

void merak::addGridConversions(OnnxTable &table) {
  table.add("GridSample", 16, convertGridSample);
  table.add("AffineGrid", 20, convertAffineGrid);
}
