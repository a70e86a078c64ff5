// ONNX operators of vision models whose windows lie at computed or overlapping
// places: Col2Im, DeformConv and RoiAlign.
#include "onnx/Conversion/Conversion.h"

#include <cmath>

using namespace mlir;
using namespace merak;
using namespace merak::train;

// The numbers of `line`, along dimension `dim` of a tensor of rank `rank`.
static Value numbersAlong(GraphBuilder &b, ArrayRef<float> line, int64_t dim,
                          int64_t rank) {
  Shape shape(rank, 1);
  shape[dim] = static_cast<int64_t>(line.size());
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getF32Type()), line));
}

//===----------------------------------------------------------------------===//
// Col2Im
//===----------------------------------------------------------------------===//

// The adjoint of taking windows apart: that of a convolution whose output
// channel k of each group is element k of the window.
CONVERT(convertCol2Im) {
  std::optional<Shape> image, block;
  if (failed(needsFloat(node, b, 3)) || failed(needsRank(node, b, 3, 3)) ||
      failed(node.integersAt(1, "image_shape", b, image)) ||
      failed(node.integersAt(2, "block_shape", b, block)))
    return failure();
  Value x = node.in(0);
  size_t n = image ? image->size() : 0;
  Shape strides = node.integers("strides").value_or(Shape(n, 1));
  Shape dilations = node.integers("dilations").value_or(Shape(n, 1));
  Shape pads = node.integers("pads").value_or(Shape(2 * n, 0));
  auto refuse = [&]() {
    b.fail("expected columns [n, channels * block, windows] of 1 to 3 "
           "dimensions, found " +
           describeType(x.getType()));
    return failure();
  };
  if (n < 1 || n > 3 || !block || block->size() != n || strides.size() != n ||
      dilations.size() != n || pads.size() != 2 * n || rankOf(x) != 3)
    return refuse();
  Shape columns;
  int64_t windows = 1;
  for (size_t i = 0; i < n; ++i) {
    constexpr int64_t kMost = int64_t(1) << 24;
    for (int64_t size : {(*image)[i], (*block)[i], strides[i], dilations[i]})
      if (size < 1 || size > kMost)
        return refuse();
    if (pads[i] < 0 || pads[i] > kMost || pads[i + n] < 0 ||
        pads[i + n] > kMost)
      return refuse();
    int64_t slack = (*image)[i] + pads[i] + pads[i + n] -
                    dilations[i] * ((*block)[i] - 1) - 1;
    if (slack < 0)
      return refuse();
    columns.push_back(slack / strides[i] + 1);
    windows *= columns.back();
  }
  int64_t size = 1;
  for (int64_t dim : *block)
    if (size > (int64_t(1) << 24) / dim)
      return refuse();
    else
      size *= dim;
  int64_t channels = shapeOf(x)[1] / size;
  if (shapeOf(x)[1] != channels * size || shapeOf(x)[2] != windows ||
      channels < 1 || size * size > (int64_t(1) << 24) / channels)
    return refuse();
  Type element = tensorType(x).getElementType(), f32 = b.builder.getF32Type();
  // One window of ones, repeated for all channels.
  SmallVector<float> ones(size * size, 0);
  for (int64_t k = 0; k < size; ++k)
    ones[k * size + k] = 1;
  Value weight = b.constant(DenseElementsAttr::get(
      RankedTensorType::get({1, size, size}, f32), ArrayRef<float>(ones)));
  Shape shape{channels * size, 1};
  llvm::append_range(shape, *block);
  weight = b.reshape(b.expand(weight, {channels, size, size}), shape);
  Shape grid{shapeOf(x)[0], channels * size};
  llvm::append_range(grid, columns);
  Value dy = b.reshape(b.cast(x, f32), grid);
  if (!dy || !weight)
    return failure();
  Shape whole{shapeOf(x)[0], channels};
  llvm::append_range(whole, *image);
  auto i64s = [&](const Shape &list) {
    return b.builder.getDenseI64ArrayAttr(list);
  };
  Value y = ConvGradInputOp::create(
      b.builder, b.loc, RankedTensorType::get(whole, f32), dy, weight,
      i64s(strides), i64s(pads), i64s(dilations),
      b.builder.getI64IntegerAttr(channels));
  return give(results, b.cast(y, element));
}

//===----------------------------------------------------------------------===//
// Reading between elements
//===----------------------------------------------------------------------===//

namespace {
// Reads images [samples, height, width] that lie flat in the rows of a table
// [samples * height * width, channels].
struct BilinearReader {
  GraphBuilder &b;
  Value rows;
  int64_t height, width;

  Value within(Value x, double low, double high) {
    return b.binary<AndOp>(
        b.compare(ComparePredicate::ge, x, b.scalarLike(low, x)),
        b.compare(ComparePredicate::le, x, b.scalarLike(high, x)));
  }
  Value clamped(Value x, int64_t length) {
    return b.binary<MinOp>(b.binary<MaxOp>(x, 0.0), double(length - 1));
  }

  // At the four neighbours of (y, x), f32 of one shape, of the image that
  // begins at row `start` (i64, broadcast): their values and weights, [..., 1].
  // A neighbour outside counts as zero, or, if `clamps`, as the border.
  void read(Value start, Value y, Value x, bool clamps,
            SmallVectorImpl<std::pair<Value, Value>> &parts) {
    Value y0 = b.unary<FloorOp>(y), x0 = b.unary<FloorOp>(x);
    Value dy = b.binary<SubOp>(y, y0), dx = b.binary<SubOp>(x, x0);
    Type i64 = b.builder.getI64Type();
    for (int corner = 0; corner < 4 && y0 && x0; ++corner) {
      bool low = corner & 2, right = corner & 1;
      auto side = [&](bool far, Value part) {
        return far ? part : b.binary<SubOp>(b.scalarLike(1, part), part);
      };
      Value v = low ? b.binary<AddOp>(y0, 1.0) : y0;
      Value u = right ? b.binary<AddOp>(x0, 1.0) : x0;
      Value weight = b.binary<MulOp>(side(low, dy), side(right, dx));
      if (!clamps)
        weight = b.select(b.binary<AndOp>(within(v, 0, double(height - 1)),
                                          within(u, 0, double(width - 1))),
                          weight, b.scalarLike(0, weight));
      Value row = b.cast(clamped(v, height), i64);
      Value at = b.binary<AddOp>(
          b.binary<MulOp>(row, b.scalarLike(double(width), row)),
          b.cast(clamped(u, width), i64));
      Value value = b.gather(rows, b.binary<AddOp>(at, start), 0);
      if (!value || !weight)
        return;
      Shape wide(shapeOf(weight));
      wide.push_back(1);
      parts.push_back({value, b.reshape(weight, wide)});
    }
  }
};
} // namespace

// [n, c, h, w] as [n * h * w, c].
static Value channelsLast(GraphBuilder &b, Value x) {
  ArrayRef<int64_t> shape = shapeOf(x);
  return b.reshape(b.transpose(x, {0, 2, 3, 1}),
                   {shape[0] * shape[2] * shape[3], shape[1]});
}

//===----------------------------------------------------------------------===//
// DeformConv
//===----------------------------------------------------------------------===//

// The elements of each window are read at their places plus offsets, then
// multiplied as those of a convolution.
CONVERT(convertDeformConv) {
  if (failed(needsFloat(node, b, 3)) || failed(needsRank(node, b, 3, 4)))
    return failure();
  Value x = node.in(0), weight = node.in(1), offset = node.in(2);
  Value bias = node.in(3), mask = node.in(4);
  int64_t group = node.integer("group", 1);
  int64_t parts = node.integer("offset_group", 1);
  Shape strides = node.integers("strides").value_or(Shape(2, 1));
  Shape dilations = node.integers("dilations").value_or(Shape(2, 1));
  Shape pads = node.integers("pads").value_or(Shape(4, 0));
  auto refuse = [&]() {
    b.fail("expected images [n,c,h,w] of f32, weights and offsets that fit, "
           "found " +
           describeType(x.getType()) + ", " + describeType(weight.getType()) +
           " and " + describeType(offset.getType()));
    return failure();
  };
  if (rankOf(x) != 4 || rankOf(weight) != 4 || rankOf(offset) != 4 ||
      strides.size() != 2 || dilations.size() != 2 || pads.size() != 4 ||
      group < 1 || parts < 1 || !tensorType(x).getElementType().isF32())
    return refuse();
  int64_t n = shapeOf(x)[0], c = shapeOf(x)[1], h = shapeOf(x)[2],
          w = shapeOf(x)[3], outs = shapeOf(weight)[0];
  int64_t kh = shapeOf(weight)[2], kw = shapeOf(weight)[3], taps = kh * kw;
  Shape out;
  for (int i : {0, 1}) {
    int64_t reach = dilations[i] * (shapeOf(weight)[i + 2] - 1) + 1;
    int64_t slack = shapeOf(x)[i + 2] + pads[i] + pads[i + 2] - reach;
    if (strides[i] < 1 || dilations[i] < 1 || slack < 0)
      return refuse();
    out.push_back(slack / strides[i] + 1);
  }
  int64_t oh = out[0], ow = out[1], each = c / parts, inner = c / group;
  if (taps < 1 || c % parts || c % group || outs % group ||
      shapeOf(weight)[1] != inner ||
      shapeOf(offset) != ArrayRef<int64_t>({n, parts * taps * 2, oh, ow}) ||
      (mask && shapeOf(mask) != ArrayRef<int64_t>({n, parts * taps, oh, ow})))
    return refuse();
  // Where the window's elements lie without offsets, [taps, oh, ow].
  auto places = [&](int d) {
    SmallVector<float> at;
    for (int64_t k = 0; k < taps; ++k) {
      int64_t tap = d ? k % kw : k / kw;
      for (int64_t i = 0; i < oh * ow; ++i) {
        int64_t place = d ? i % ow : i / ow;
        at.push_back(float(place * strides[d] - pads[d] + tap * dilations[d]));
      }
    }
    return b.constant(DenseElementsAttr::get(
        RankedTensorType::get({taps, oh, ow}, b.builder.getF32Type()),
        ArrayRef<float>(at)));
  };
  SmallVector<int64_t> begins;
  for (int64_t i = 0; i < n; ++i)
    begins.push_back(i * h * w);
  Value start = b.constant(DenseElementsAttr::get(
      RankedTensorType::get({n, 1, 1, 1}, b.builder.getI64Type()),
      ArrayRef<int64_t>(begins)));
  Value moved = b.reshape(offset, {n, parts, taps, 2, oh, ow});
  SmallVector<Value> read;
  for (int64_t p = 0; p < parts; ++p) {
    auto coordinate = [&](int64_t d) {
      Value one = b.sliceDim(b.sliceDim(moved, 1, p, 1), 3, d, 1);
      return b.binary<AddOp>(b.reshape(one, {n, taps, oh, ow}), places(d));
    };
    BilinearReader reader{b, channelsLast(b, b.sliceDim(x, 1, p * each, each)),
                          h, w};
    SmallVector<std::pair<Value, Value>> corners;
    reader.read(start, coordinate(0), coordinate(1), false, corners);
    Value sum; // [n, taps, oh, ow, each]
    for (auto &[value, part] : corners) {
      Value term = b.binary<MulOp>(value, part);
      sum = sum ? b.binary<AddOp>(sum, term) : term;
    }
    if (mask && sum)
      sum = b.binary<MulOp>(sum, b.reshape(b.sliceDim(mask, 1, p * taps, taps),
                                           {n, taps, oh, ow, 1}));
    if (!sum)
      return failure();
    read.push_back(sum);
  }
  Value windows = b.concat(read, 4); // [n, taps, oh, ow, c]
  SmallVector<Value> groups;
  for (int64_t g = 0; windows && g < group; ++g) {
    Value one = b.sliceDim(windows, 4, g * inner, inner);
    Value filter =
        b.reshape(b.sliceDim(weight, 0, g * (outs / group), outs / group),
                  {outs / group, inner, taps});
    groups.push_back(b.einsum("nthwc,oct->nohw", one, filter));
  }
  Value y = b.concat(groups, 1);
  if (y && bias)
    y = b.binary<AddOp>(y, b.reshape(bias, {outs, 1, 1}));
  return give(results, y);
}

//===----------------------------------------------------------------------===//
// RoiAlign
//===----------------------------------------------------------------------===//

// Each bin of a region is the mean (or largest) of samples between elements.
CONVERT(convertRoiAlign) {
  if (failed(needsFloat(node, b, 3)) || failed(needsRank(node, b, 3, 4)))
    return failure();
  Value x = node.in(0), rois = node.in(1), batch = node.in(2);
  int64_t oh = node.integer("output_height", 1);
  int64_t ow = node.integer("output_width", 1);
  int64_t samples = node.integer("sampling_ratio", 0);
  double scale = node.real("spatial_scale", 1);
  bool isMax = node.string("mode", "avg") == "max";
  // Before opset 16 there was no shift.
  bool shifts = node.string("coordinate_transformation_mode",
                            node.opset < 16 ? "output_half_pixel"
                                            : "half_pixel") == "half_pixel";
  if (samples < 1) {
    b.fail("expected a sampling_ratio above 0, found one for which the number "
           "of samples depends on data");
    return failure();
  }
  if (rankOf(x) != 4 || rankOf(rois) != 2 || shapeOf(rois)[1] != 4 ||
      rankOf(batch) != 1 || shapeOf(batch)[0] != shapeOf(rois)[0] || oh < 1 ||
      ow < 1 || std::max({oh, ow, samples}) > 4096 ||
      !tensorType(x).getElementType().isF32()) {
    b.fail("expected images [n,c,h,w] of f32 and regions [r,4], found " +
           describeType(x.getType()) + " and " + describeType(rois.getType()));
    return failure();
  }
  int64_t count = shapeOf(rois)[0], channels = shapeOf(x)[1];
  int64_t h = shapeOf(x)[2], w = shapeOf(x)[3];
  // Positions of all samples along a dimension, [r, bins * samples].
  auto along = [&](int64_t first, int64_t bins) {
    auto edge = [&](int64_t k) {
      Value at = b.cast(b.sliceDim(rois, 1, k, 1), b.builder.getF32Type());
      at = b.binary<MulOp>(at, scale);
      return shifts ? b.binary<SubOp>(at, 0.5) : at;
    };
    Value low = edge(first);
    Value size = b.binary<SubOp>(edge(first + 2), low);
    if (!shifts)
      size = b.binary<MaxOp>(size, 1.0);
    SmallVector<float> parts;
    for (int64_t i = 0; i < bins * samples; ++i)
      parts.push_back((float(i) + 0.5f) / float(bins * samples));
    return b.binary<AddOp>(low,
                           b.binary<MulOp>(size, numbersAlong(b, parts, 1, 2)));
  };
  int64_t rows = oh * samples, columns = ow * samples;
  Value y = along(1, oh), u = along(0, ow);
  if (!y || !u)
    return failure();
  BilinearReader reader{b, channelsLast(b, x), h, w};
  // More than one element outside: zero; up to one: the border.
  Value inside = b.binary<AndOp>(
      b.reshape(reader.within(y, -1, double(h)), {count, rows, 1}),
      b.reshape(reader.within(u, -1, double(w)), {count, 1, columns}));
  Shape grid{count, rows, columns};
  y = b.expand(b.reshape(reader.clamped(y, h), {count, rows, 1}), grid);
  u = b.expand(b.reshape(reader.clamped(u, w), {count, 1, columns}), grid);
  Value start = b.reshape(b.cast(batch, b.builder.getI64Type()), {count, 1, 1});
  start = b.binary<MulOp>(start, b.scalarLike(double(h * w), start));
  SmallVector<std::pair<Value, Value>> corners;
  reader.read(start, y, u, true, corners);
  Value best; // [r, rows, columns, c]
  for (auto &[value, weight] : corners) {
    Value term = b.binary<MulOp>(value, weight);
    best = !best   ? term
           : isMax ? b.binary<MaxOp>(best, term)
                   : b.binary<AddOp>(best, term);
  }
  if (!best)
    return failure();
  best = b.select(b.reshape(inside, {count, rows, columns, 1}), best,
                  b.scalarLike(0, best));
  best = b.reshape(best, {count, oh, samples, ow, samples, channels});
  best = isMax ? b.reduce<ReduceMaxOp>(best, {2, 4}, false)
               : b.mean(best, {2, 4}, false);
  return give(results, b.transpose(best, {0, 3, 1, 2}));
}

//===----------------------------------------------------------------------===//
// Det
//===----------------------------------------------------------------------===//

// The determinant of the rows from `row` on in the given columns.
static Value minorOf(GraphBuilder &b, Value x, int64_t row,
                     ArrayRef<int64_t> columns) {
  auto entry = [&](int64_t column) {
    int64_t rank = rankOf(x);
    Value one =
        b.sliceDim(b.sliceDim(x, rank - 2, row, 1), rank - 1, column, 1);
    return b.reshape(one, shapeOf(x).drop_back(2));
  };
  if (columns.size() == 1)
    return entry(columns[0]);
  Value sum;
  for (size_t k = 0; k < columns.size(); ++k) {
    SmallVector<int64_t> rest(columns);
    rest.erase(rest.begin() + k);
    Value term =
        b.binary<MulOp>(entry(columns[k]), minorOf(b, x, row + 1, rest));
    sum = !sum    ? term
          : k % 2 ? b.binary<SubOp>(sum, term)
                  : b.binary<AddOp>(sum, term);
  }
  return sum;
}

// Of small matrices, written out by the first row (Laplace).
CONVERT(convertDet) {
  constexpr int64_t kMost = 5;
  if (failed(needsFloat(node, b)) || failed(needsRank(node, b, 1, 2)))
    return failure();
  Value x = node.in(0);
  int64_t size = shapeOf(x).back();
  if (shapeOf(x)[rankOf(x) - 2] != size || size < 1 || size > kMost) {
    b.fail("expected square matrices of at most " + llvm::Twine(kMost) +
           " rows, found " + describeType(x.getType()));
    return failure();
  }
  return give(results, minorOf(b, x, 0, dimsFrom(0, size)));
}

void merak::addVisionConversions(OnnxTable &table) {
  table.add("Col2Im", 18, convertCol2Im);
  table.add("DeformConv", 19, convertDeformConv);
  table.add("RoiAlign", 10, convertRoiAlign);
  table.add("Det", 11, convertDet);
}
