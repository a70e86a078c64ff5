// ONNX ops that move elements. What only computes shapes (Shape, Range,
// ConstantOfShape ...) is folded by the importer; it reaches this table only
// when it depends on data.
#include "onnx/Conversion/Conversion.h"
#include "passes/Graph/HostTensor.h"

#include <algorithm>

using namespace mlir;
using namespace merak;
using namespace merak::train;

CONVERT(convertReshape) {
  std::optional<Shape> target;
  if (failed(needs(node, b, 1)) ||
      failed(node.integersAt(1, "shape", b, target)))
    return failure();
  Value x = node.in(0);
  if (!target) {
    b.fail("expected a shape");
    return failure();
  }
  int64_t known = 1, total = tensorType(x).getNumElements();
  std::optional<size_t> open;
  for (auto [i, dim] : llvm::enumerate(*target)) {
    if (dim == 0 && !node.integer("allowzero", 0) &&
        static_cast<int64_t>(i) < rankOf(x))
      dim = shapeOf(x)[i];
    if (dim < -1 || (dim == -1 && open)) {
      b.fail("expected at most one -1 in a shape, found " +
             describeShape(*target));
      return failure();
    }
    if (dim == -1)
      open = i;
    else if (dim && known > kMaxEvaluated * kMaxEvaluated / dim)
      known = 0;
    else
      known *= dim;
  }
  if (open) {
    if (known == 0 || total % known) {
      b.fail("expected a shape of " + llvm::Twine(total) + " elements for " +
             describeType(x.getType()) + ", found " + describeShape(*target));
      return failure();
    }
    (*target)[*open] = total / known;
  }
  return give(results, b.reshape(x, *target));
}

CONVERT(convertFlatten) {
  if (failed(needs(node, b, 1)))
    return failure();
  Value x = node.in(0);
  int64_t rank = rankOf(x), axis = node.integer("axis", 1);
  if (axis < -rank || axis > rank) {
    b.fail("axis " + llvm::Twine(axis) + " is out of range for " +
           describeType(x.getType()));
    return failure();
  }
  axis += axis < 0 ? rank : 0;
  int64_t rows = 1, columns = 1;
  for (int64_t i = 0; i < rank; ++i)
    (i < axis ? rows : columns) *= shapeOf(x)[i];
  return give(results, b.reshape(x, {rows, columns}));
}

CONVERT(convertSqueeze) {
  std::optional<Shape> axes;
  if (failed(needs(node, b, 1)) || failed(node.integersAt(1, "axes", b, axes)))
    return failure();
  Value x = node.in(0);
  if (axes && failed(wrapAxes(*axes, rankOf(x), b)))
    return failure();
  Shape shape;
  for (auto [i, dim] : llvm::enumerate(shapeOf(x))) {
    bool drop =
        axes ? llvm::is_contained(*axes, static_cast<int64_t>(i)) : dim == 1;
    if (drop && dim != 1) {
      b.fail("expected dimension " + llvm::Twine(i) + " of size 1, found " +
             describeType(x.getType()));
      return failure();
    }
    if (!drop)
      shape.push_back(dim);
  }
  return give(results, b.reshape(x, shape));
}

CONVERT(convertUnsqueeze) {
  std::optional<Shape> axes;
  if (failed(needs(node, b, 1)) || failed(node.integersAt(1, "axes", b, axes)))
    return failure();
  Value x = node.in(0);
  if (!axes) {
    b.fail("expected axes");
    return failure();
  }
  int64_t rank = rankOf(x) + axes->size();
  if (failed(wrapAxes(*axes, rank, b)))
    return failure();
  Shape shape;
  size_t next = 0;
  for (int64_t i = 0; i < rank; ++i) {
    if (llvm::is_contained(*axes, i))
      shape.push_back(1);
    else if (next < shapeOf(x).size())
      shape.push_back(shapeOf(x)[next++]);
  }
  return give(results, b.reshape(x, shape));
}

CONVERT(convertTranspose) {
  if (failed(needs(node, b, 1)))
    return failure();
  Value x = node.in(0);
  std::optional<Shape> perm = node.integers("perm");
  if (!perm) {
    perm = dimsFrom(0, rankOf(x));
    std::reverse(perm->begin(), perm->end());
  }
  return give(results, b.transpose(x, *perm));
}

CONVERT(convertExpand) {
  std::optional<Shape> target;
  if (failed(needs(node, b, 1)) ||
      failed(node.integersAt(1, "shape", b, target)) || !target)
    return failure();
  Value x = node.in(0);
  // Broadcasting goes both ways: a 1 in the target keeps the dimension of x.
  Shape shape = *target;
  ArrayRef<int64_t> from = shapeOf(x);
  if (from.size() > shape.size())
    shape.insert(shape.begin(), from.size() - shape.size(), 1);
  for (size_t i = 0; i < from.size(); ++i) {
    int64_t &dim = shape[shape.size() - from.size() + i];
    if (dim == 1)
      dim = from[i];
  }
  return give(results, b.expand(x, shape));
}

CONVERT(convertTile) {
  std::optional<Shape> repeats;
  if (failed(needs(node, b, 1)) ||
      failed(node.integersAt(1, "repeats", b, repeats)) || !repeats)
    return failure();
  Value x = node.in(0);
  if (static_cast<int64_t>(repeats->size()) != rankOf(x)) {
    b.fail("expected " + llvm::Twine(rankOf(x)) + " repeats, found " +
           llvm::Twine(repeats->size()));
    return failure();
  }
  // [a, b] -> [1, a, 1, b] -> [r, a, s, b] -> [r*a, s*b].
  Shape apart, wide, joined;
  for (auto [dim, repeat] : llvm::zip(shapeOf(x), *repeats)) {
    apart.append({1, dim});
    wide.append({repeat, dim});
    joined.push_back(repeat < 0 || repeat > kMaxEvaluated ? -1 : repeat * dim);
  }
  if (!isSaneShape(joined)) {
    b.fail("expected repeats that are not negative, found " +
           describeShape(*repeats));
    return failure();
  }
  return give(results, b.reshape(b.expand(b.reshape(x, apart), wide), joined));
}

CONVERT(convertConcat) {
  if (failed(needs(node, b, std::max<size_t>(node.inputs.size(), 1))))
    return failure();
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", 1), rankOf(node.in(0)), b);
  if (!axis)
    return failure();
  // Empty inputs, as exporters leave them behind, may have another rank.
  SmallVector<Value> inputs;
  for (Value input : node.inputs)
    if (tensorType(input).getNumElements() || node.inputs.size() == 1)
      inputs.push_back(input);
  return give(results, b.concat(inputs.empty() ? ValueRange(node.inputs)
                                               : ValueRange(inputs),
                                *axis));
}

CONVERT(convertSplit) {
  std::optional<Shape> sizes;
  if (failed(needs(node, b, 1)) ||
      failed(node.integersAt(1, "split", b, sizes)))
    return failure();
  Value x = node.in(0);
  std::optional<int64_t> axis = wrapAxis(node.integer("axis", 0), rankOf(x), b);
  if (!axis)
    return failure();
  int64_t dim = shapeOf(x)[*axis];
  int64_t count = results.size();
  if (!sizes) {
    // Equal parts; the last one is smaller if they do not divide.
    int64_t part = (dim + count - 1) / count;
    sizes.emplace();
    for (int64_t i = 0; i < count; ++i)
      sizes->push_back(std::clamp<int64_t>(dim - i * part, 0, part));
  }
  int64_t total = 0;
  for (int64_t size : *sizes)
    total += size < 0 ? dim + 1 : size;
  if (total != dim || static_cast<int64_t>(sizes->size()) != count) {
    b.fail("expected " + llvm::Twine(count) + " parts of dimension " +
           llvm::Twine(*axis) + " of " + describeType(x.getType()) +
           ", found " + describeShape(*sizes));
    return failure();
  }
  int64_t start = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (node.usedOutputs[i])
      results[i] = b.sliceDim(x, *axis, start, (*sizes)[i]);
    start += (*sizes)[i];
  }
  return success();
}

// Elements in reverse order along one dimension.
static Value flip(GraphBuilder &b, Value x, int64_t dim) {
  SmallVector<int64_t> order;
  for (int64_t i = shapeOf(x)[dim] - 1; i >= 0; --i)
    order.push_back(i);
  auto type = RankedTensorType::get({static_cast<int64_t>(order.size())},
                                    b.builder.getI64Type());
  return b.gather(
      x, b.constant(DenseElementsAttr::get(type, ArrayRef<int64_t>(order))),
      dim);
}

CONVERT(convertSlice) {
  std::optional<Shape> starts, ends, axes, steps;
  if (failed(needs(node, b, 1)) ||
      failed(node.integersAt(1, "starts", b, starts)) ||
      failed(node.integersAt(2, "ends", b, ends)) ||
      failed(node.integersAt(3, "axes", b, axes)) ||
      failed(node.integersAt(4, "steps", b, steps)))
    return failure();
  Value x = node.in(0);
  if (starts && !axes)
    axes = dimsFrom(0, starts->size());
  if (starts && !steps)
    steps = Shape(starts->size(), 1);
  if (!starts || !ends || starts->size() != ends->size() ||
      axes->size() != starts->size() || steps->size() != starts->size()) {
    b.fail("expected as many starts as ends, axes and steps");
    return failure();
  }
  if (failed(wrapAxes(*axes, rankOf(x), b)))
    return failure();
  Shape first(rankOf(x), 0), size(shapeOf(x)), step(rankOf(x), 1);
  Shape flipped;
  for (size_t i = 0; i < axes->size(); ++i) {
    int64_t axis = (*axes)[i], dim = shapeOf(x)[axis];
    int64_t from = (*starts)[i], to = (*ends)[i], by = (*steps)[i];
    if (by == 0 || by < -kMaxEvaluated) {
      b.fail("expected a step other than 0");
      return failure();
    }
    from += from < 0 ? dim : 0;
    to += to < 0 ? dim : 0;
    if (by > 0) {
      from = std::clamp<int64_t>(from, 0, dim);
      to = std::clamp<int64_t>(to, 0, dim);
      by = std::min(by, std::max<int64_t>(dim, 1));
    } else {
      // Backwards: the mirror image of a forward slice of the flipped tensor.
      from =
          dim - 1 - std::clamp<int64_t>(from, 0, std::max<int64_t>(dim - 1, 0));
      to =
          dim - 1 - std::clamp<int64_t>(to, -1, std::max<int64_t>(dim - 1, -1));
      by = -by;
      flipped.push_back(axis);
    }
    first[axis] = from;
    size[axis] = to > from ? (to - from + by - 1) / by : 0;
    step[axis] = by;
    if (size[axis] == 0)
      first[axis] = 0;
  }
  for (int64_t axis : flipped)
    x = flip(b, x, axis);
  return give(results, b.slice(x, first, size, step));
}

CONVERT(convertGather) {
  if (failed(needsRank(node, b, 2, 1)))
    return failure();
  Value table = node.in(0), ids = node.in(1);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", 0), rankOf(table), b);
  if (!axis)
    return failure();
  int64_t rows = shapeOf(table)[*axis];
  if (std::optional<Shape> known = integersOf(constantOf(ids))) {
    bool negative = false;
    for (int64_t &id : *known) {
      if (id < -rows || id >= rows) {
        b.fail("index " + llvm::Twine(id) + " is out of range for dimension " +
               llvm::Twine(*axis) + " of " + describeType(table.getType()));
        return failure();
      }
      negative |= id < 0;
      id += id < 0 ? rows : 0;
    }
    // One index is a slice; the dimension goes away with a scalar.
    if (known->size() == 1) {
      Shape shape(shapeOf(table).take_front(*axis));
      llvm::append_range(shape, shapeOf(ids));
      llvm::append_range(shape, shapeOf(table).drop_front(*axis + 1));
      return give(
          results,
          b.reshape(b.sliceDim(table, *axis, known->front(), 1), shape));
    }
    if (negative)
      ids = b.constant(DenseElementsAttr::get(
          RankedTensorType::get(shapeOf(ids), b.builder.getI64Type()),
          ArrayRef<int64_t>(*known)));
  } else if (isa<IntegerType>(tensorType(ids).getElementType()) &&
             !table.getDefiningOp<ReadOp>()) {
    // Ids into a weight (an embedding) are checked when data is read; those
    // into data may count from the end.
    ids = b.cast(ids, b.builder.getI64Type());
    ids = b.select(b.compare(ComparePredicate::lt, ids, b.scalarLike(0, ids)),
                   b.binary<AddOp>(ids, b.scalarLike(double(rows), ids)), ids);
  }
  return give(results, b.gather(table, ids, *axis));
}

// Border elements by position: the edge, a mirror image or the other end.
static Value padWithNeighbours(GraphBuilder &b, Value x, const Shape &low,
                               const Shape &high, StringRef mode) {
  for (int64_t dim = 0; x && dim < rankOf(x); ++dim) {
    int64_t size = shapeOf(x)[dim];
    if (low[dim] == 0 && high[dim] == 0)
      continue;
    if (size < 1 || size + low[dim] + high[dim] > kMaxEvaluated)
      return b.fail("cannot pad dimension " + llvm::Twine(dim) + " of " +
                    describeType(x.getType()) + " with its elements");
    SmallVector<int64_t> from;
    for (int64_t i = -low[dim]; i < size + high[dim]; ++i) {
      if (mode == "edge") {
        from.push_back(std::clamp<int64_t>(i, 0, size - 1));
      } else if (mode == "wrap") {
        from.push_back((i % size + size) % size);
      } else if (mode == "reflect") {
        int64_t period = std::max<int64_t>(2 * (size - 1), 1);
        int64_t at = (i % period + period) % period;
        from.push_back(at < size ? at : period - at);
      } else {
        return b.fail("expected mode constant, edge, reflect or wrap, found '" +
                      mode + "'");
      }
    }
    x = b.gather(x,
                 b.constant(DenseElementsAttr::get(
                     RankedTensorType::get({static_cast<int64_t>(from.size())},
                                           b.builder.getI64Type()),
                     ArrayRef<int64_t>(from))),
                 dim);
  }
  return x;
}

CONVERT(convertPad) {
  std::optional<Shape> pads, axes;
  if (failed(needs(node, b, 1)) ||
      failed(node.integersAt(1, "pads", b, pads)) ||
      failed(node.integersAt(3, "axes", b, axes)))
    return failure();
  Value x = node.in(0);
  if (!axes)
    axes = dimsFrom(0, rankOf(x));
  if (!pads || pads->size() != 2 * axes->size()) {
    b.fail("expected two pads a dimension of " + describeType(x.getType()));
    return failure();
  }
  if (failed(wrapAxes(*axes, rankOf(x), b)))
    return failure();
  double value = node.real("value", 0);
  Value varying;
  if (node.has(2)) {
    DenseElementsAttr attr = constantOf(node.in(2));
    std::optional<HostTensor> host;
    if (attr && attr.getNumElements() == 1)
      host = toHost(attr);
    if (host)
      value = host->real(0);
    else if (tensorType(node.in(2)).getNumElements() == 1)
      varying = b.reshape(node.in(2), {});
    else {
      b.fail("expected one padding value, found " +
             describeType(node.in(2).getType()));
      return failure();
    }
  }
  Shape low(rankOf(x), 0), high(rankOf(x), 0);
  Shape starts(rankOf(x), 0), sizes(shapeOf(x)), steps(rankOf(x), 1);
  bool pad = false;
  for (auto [i, axis] : llvm::enumerate(*axes)) {
    int64_t before = (*pads)[i], after = (*pads)[i + axes->size()];
    low[axis] = std::max<int64_t>(before, 0);
    high[axis] = std::max<int64_t>(after, 0);
    // Negative pads cut elements off.
    starts[axis] = std::max<int64_t>(-before, 0);
    sizes[axis] -= starts[axis] + std::max<int64_t>(-after, 0);
    pad |= before > 0 || after > 0;
    if (std::max(std::abs(before), std::abs(after)) > kMaxEvaluated) {
      b.fail("pads " + describeShape(*pads) + " are too large");
      return failure();
    }
  }
  x = b.slice(x, starts, sizes, steps);
  if (!pad || !x)
    return give(results, x);
  StringRef mode = node.string("mode", "constant");
  if (mode != "constant")
    return give(results, padWithNeighbours(b, x, low, high, mode));
  if (varying) {
    // The value is data: it shows where a padded mask of ones is not.
    Value ones = b.constant(DenseElementsAttr::get(
        RankedTensorType::get(shapeOf(x), b.builder.getI32Type()), 1));
    auto wide = [&](Value t) -> Value {
      return PadOp::create(b.builder, b.loc, t, low, high, Shape(rankOf(x), 0),
                           llvm::APFloat(0.0));
    };
    Value mask = wide(ones);
    return give(results, b.select(b.compare(ComparePredicate::ne, mask,
                                            b.scalarLike(0, mask)),
                                  wide(x), varying));
  }
  return give(results,
              PadOp::create(b.builder, b.loc, x, low, high, Shape(rankOf(x), 0),
                            llvm::APFloat(value)));
}

CONVERT(convertTrilu) {
  std::optional<Shape> k;
  if (failed(needsRank(node, b, 1, 2)) || failed(node.integersAt(1, "k", b, k)))
    return failure();
  Value x = node.in(0);
  int64_t shift = k && !k->empty() ? k->front() : 0;
  bool upper = node.integer("upper", 1);
  int64_t rows = shapeOf(x)[rankOf(x) - 2], columns = shapeOf(x)[rankOf(x) - 1];
  if (rows * columns > kMaxEvaluated) {
    b.fail("triangle of " + describeType(x.getType()) + " is too large");
    return failure();
  }
  SmallVector<bool> keep;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      keep.push_back(upper ? j - i >= shift : j - i <= shift);
  Value mask = b.constant(DenseElementsAttr::get(
      RankedTensorType::get({rows, columns}, b.builder.getI1Type()), keep));
  return give(results, b.select(mask, x, b.scalarLike(0, x)));
}

CONVERT(convertDepthToSpace) {
  if (failed(needsRank(node, b, 1, 4)))
    return failure();
  Value x = node.in(0);
  int64_t s = node.integer("blocksize", 1);
  ArrayRef<int64_t> d = shapeOf(x);
  bool toSpace = node.type == "DepthToSpace";
  if (rankOf(x) != 4 || s < 1 ||
      (toSpace ? d[1] % (s * s) : d[2] % s + d[3] % s)) {
    b.fail("expected dimensions that blocksize " + llvm::Twine(s) +
           " divides, found " + describeType(x.getType()));
    return failure();
  }
  if (!toSpace) {
    Value split = b.reshape(x, {d[0], d[1], d[2] / s, s, d[3] / s, s});
    bool channelFirst = node.string("mode", "DCR") == "CRD";
    return give(
        results,
        b.reshape(b.transpose(split, channelFirst ? Shape{0, 1, 3, 5, 2, 4}
                                                  : Shape{0, 3, 5, 1, 2, 4}),
                  {d[0], d[1] * s * s, d[2] / s, d[3] / s}));
  }
  int64_t c = d[1] / (s * s);
  bool columnRow = node.string("mode", "DCR") == "CRD";
  Value split = columnRow ? b.reshape(x, {d[0], c, s, s, d[2], d[3]})
                          : b.reshape(x, {d[0], s, s, c, d[2], d[3]});
  Value moved = columnRow ? b.transpose(split, {0, 1, 4, 2, 5, 3})
                          : b.transpose(split, {0, 3, 4, 1, 5, 2});
  return give(results, b.reshape(moved, {d[0], c, d[2] * s, d[3] * s}));
}

// Sizes that depend on data cannot be planned ahead of time.
CONVERT(refuseDataDependent) {
  b.fail("expected a shape that follows from the model and its options, found "
         "one that depends on data");
  return failure();
}

// Rows that a constant condition chooses.
CONVERT(convertCompress) {
  if (failed(needsRank(node, b, 2, 1)))
    return failure();
  std::optional<Shape> condition = integersOf(constantOf(node.in(1)));
  if (!condition)
    return refuseDataDependent(node, b, results);
  Value x = node.in(0);
  if (!node.hasAttribute("axis"))
    x = b.reshape(x, {tensorType(x).getNumElements()});
  std::optional<int64_t> axis =
      x ? wrapAxis(node.integer("axis", 0), rankOf(x), b) : std::nullopt;
  if (!axis)
    return failure();
  Shape rows;
  for (auto [i, isChosen] : llvm::enumerate(*condition))
    if (isChosen && static_cast<int64_t>(i) < shapeOf(x)[*axis])
      rows.push_back(static_cast<int64_t>(i));
  if (rows.empty()) {
    b.fail("expected a condition that holds somewhere");
    return failure();
  }
  auto type = RankedTensorType::get({static_cast<int64_t>(rows.size())},
                                    b.builder.getI64Type());
  return give(results, b.gather(x,
                                b.constant(DenseElementsAttr::get(
                                    type, ArrayRef<int64_t>(rows))),
                                *axis));
}

void merak::addShapeConversions(OnnxTable &table) {
  table.add("Reshape", 1, convertReshape);
  table.add("Flatten", 1, convertFlatten);
  table.add("Squeeze", 1, convertSqueeze);
  table.add("Unsqueeze", 1, convertUnsqueeze);
  table.add("Transpose", 1, convertTranspose);
  table.add("Expand", 8, convertExpand);
  table.add("Tile", 6, convertTile);
  table.add("Concat", 4, convertConcat);
  table.add("Split", 2, convertSplit);
  table.add("Slice", 1, convertSlice);
  table.add("Gather", 1, convertGather);
  table.add("Pad", 2, convertPad);
  table.add("Trilu", 14, convertTrilu);
  table.add("DepthToSpace", 1, convertDepthToSpace);
  table.add("SpaceToDepth", 1, convertDepthToSpace);
  table.add("Compress", 9, convertCompress);
  for (const char *type :
       {"NonZero", "Range", "ConstantOfShape", "Unique", "NonMaxSuppression"})
    table.add(type, 1, refuseDataDependent);
}
