// ONNX ops that choose elements by index, order them, or walk along an axis.
// Elements are chosen with a gather from the flat tensor, so that gradients and
// sharding are those of `gather` and `scatter_add`.
#include "onnx/Conversion/Conversion.h"
#include "onnx/Conversion/ScatterGrid.h"
#include "passes/Graph/HostTensor.h"
#include "runtime/layout/Strides.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

// first, first + step ... along dimension `dim` of a tensor of rank `rank`.
static Value iota(GraphBuilder &b, int64_t rank, int64_t dim, int64_t count,
                  int64_t step = 1) {
  if (count > kMaxEvaluated)
    return b.fail("dimension of size " + llvm::Twine(count) + " is too large");
  SmallVector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i)
    numbers.push_back(i * step);
  Shape shape(rank, 1);
  shape[dim] = count;
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getI64Type()),
      ArrayRef<int64_t>(numbers)));
}

static Shape stridesOf(ArrayRef<int64_t> shape) {
  return llvm::to_vector(layout::denseStrides(shape));
}

static int64_t productOf(ArrayRef<int64_t> shape) {
  int64_t product = 1;
  for (int64_t dim : shape)
    product *= dim;
  return product;
}

// Integer indices as i64, negative ones counted from the end of `size`.
static Value wrapped(GraphBuilder &b, Value ids, int64_t size) {
  if (!isa<IntegerType>(tensorType(ids).getElementType()))
    return b.fail("expected integer indices, found " +
                  describeType(ids.getType()));
  ids = b.cast(ids, b.builder.getI64Type());
  return b.select(b.compare(ComparePredicate::lt, ids, b.scalarLike(0, ids)),
                  b.binary<AddOp>(ids, b.scalarLike(double(size), ids)), ids);
}

static Value flatten(GraphBuilder &b, Value x) {
  return x ? b.reshape(x, {tensorType(x).getNumElements()}) : x;
}

// Flat positions in a tensor of `shape` of the elements that ScatterElements
// means.
static Value elementPositions(GraphBuilder &b, Value ids,
                              ArrayRef<int64_t> shape, int64_t axis) {
  int64_t rank = static_cast<int64_t>(shape.size());
  if (rankOf(ids) != rank)
    return b.fail("expected indices of rank " + llvm::Twine(rank) + ", found " +
                  describeType(ids.getType()));
  for (int64_t d = 0; d < rank; ++d)
    if (d != axis && shapeOf(ids)[d] > shape[d])
      return b.fail("expected indices inside " + describeShape(shape) +
                    ", found " + describeType(ids.getType()));
  Shape strides = stridesOf(shape), idShape(shapeOf(ids));
  Value at = wrapped(b, ids, shape[axis]);
  at = b.binary<MulOp>(at,
                       b.scalar(double(strides[axis]), b.builder.getI64Type()));
  for (int64_t d = 0; at && d < rank; ++d)
    if (d != axis && idShape[d] > 1)
      at = b.binary<AddOp>(at, iota(b, rank, d, idShape[d], strides[d]));
  return at;
}

// Whether the indices name elements of every place beside the axis.
static bool coversOthers(Value x, Value ids, int64_t axis) {
  bool covers = rankOf(x) == rankOf(ids);
  for (int64_t d = 0; covers && d < rankOf(x); ++d)
    covers = d == axis || shapeOf(x)[d] == shapeOf(ids)[d];
  return covers;
}

// Dimension `from` moved to `to`.
static Value moveDim(GraphBuilder &b, Value x, int64_t from, int64_t to) {
  if (!x)
    return x;
  Shape perm = dimsFrom(0, rankOf(x));
  perm.erase(perm.begin() + from);
  perm.insert(perm.begin() + to, from);
  return b.transpose(x, perm);
}

// The dimensions beside the axis are independent, so they are those of both
// table and ids: they can be split.
static Value gatherElements(GraphBuilder &b, Value x, Value ids, int64_t axis) {
  if (!x || !ids)
    return {};
  int64_t rank = rankOf(x);
  if (rankOf(ids) != rank)
    return b.fail("expected indices of rank " + llvm::Twine(rank) + ", found " +
                  describeType(ids.getType()));
  for (int64_t d = 0; x && d < rank; ++d)
    if (d != axis && shapeOf(ids)[d] < shapeOf(x)[d])
      x = b.sliceDim(x, d, 0, shapeOf(ids)[d]);
    else if (d != axis && shapeOf(ids)[d] > shapeOf(x)[d])
      return b.fail("expected indices inside " + describeShape(shapeOf(x)) +
                    ", found " + describeType(ids.getType()));
  // Indices repeated behind the axis choose whole slices.
  if (auto expand = ids.getDefiningOp<ExpandOp>()) {
    Shape once(shapeOf(expand.getX()));
    if (static_cast<int64_t>(once.size()) == rank &&
        llvm::all_of(ArrayRef(once).drop_front(axis + 1),
                     [](int64_t size) { return size == 1; })) {
      once.resize(axis + 1);
      Shape shape(shapeOf(ids).take_front(axis + 1));
      ids = wrapped(b, b.reshape(expand.getX(), once), shapeOf(x)[axis]);
      return b.gather(x, b.expand(ids, shape), axis, axis);
    }
  }
  ids = moveDim(b, wrapped(b, ids, shapeOf(x)[axis]), axis, rank - 1);
  Value y = b.gather(moveDim(b, x, axis, rank - 1), ids, rank - 1, rank - 1);
  return moveDim(b, y, rank - 1, axis);
}

CONVERT(convertGatherElements) {
  if (failed(needsRank(node, b, 2, 1)))
    return failure();
  Value x = node.in(0), ids = node.in(1);
  std::optional<int64_t> axis = wrapAxis(node.integer("axis", 0), rankOf(x), b);
  if (!axis)
    return failure();
  return give(results, gatherElements(b, x, ids, *axis));
}

// Positions of the slices that the last dimension of `ids` names, flat in the
// indexed dimensions: x is [batch, indexed, slice].
static Value slicePositions(GraphBuilder &b, Value ids, ArrayRef<int64_t> shape,
                            int64_t batch) {
  int64_t depth = shapeOf(ids).back(), rank = rankOf(ids);
  if (batch + depth > static_cast<int64_t>(shape.size()) || batch >= rank ||
      shapeOf(ids).take_front(batch) != shape.take_front(batch))
    return b.fail("expected indices into " + describeShape(shape) + ", found " +
                  describeType(ids.getType()));
  Shape strides = stridesOf(shape.slice(batch, depth));
  Value at;
  Shape outer(shapeOf(ids).drop_back());
  for (int64_t i = 0; i < depth; ++i) {
    Value part = b.reshape(b.sliceDim(ids, rank - 1, i, 1), outer);
    if (!part)
      return {};
    part = wrapped(b, part, shape[batch + i]);
    part = b.binary<MulOp>(
        part, b.scalar(double(strides[i]), b.builder.getI64Type()));
    at = at ? b.binary<AddOp>(at, part) : part;
  }
  return at;
}

// x with `count` dimensions from `first` as one.
static Value joined(GraphBuilder &b, Value x, int64_t first, int64_t count) {
  Shape shape(shapeOf(x).take_front(first));
  shape.push_back(productOf(shapeOf(x).slice(first, count)));
  llvm::append_range(shape, shapeOf(x).drop_front(first + count));
  return b.reshape(x, shape);
}

CONVERT(convertGatherNd) {
  if (failed(needsRank(node, b, 2, 1)))
    return failure();
  Value x = node.in(0), ids = node.in(1);
  int64_t batch = node.integer("batch_dims", 0);
  if (rankOf(ids) < 1 || batch < 0 || shapeOf(ids).back() < 1) {
    b.fail("expected indices with a last dimension, found " +
           describeType(ids.getType()));
    return failure();
  }
  Value at = slicePositions(b, ids, shapeOf(x), batch);
  return give(results, at ? b.gather(joined(b, x, batch, shapeOf(ids).back()),
                                     at, batch, batch)
                          : at);
}

// `data` [batch, rows, rest] with `updates` at rows `at` [batch, n]: instead of
// what is there, or added to it, multiplied with it, or the larger or smaller
// of both. `batch`: how many dimensions that is.
static Value scatterRows(const OnnxNode &node, GraphBuilder &b, Value data,
                         Value at, Value updates, int64_t batch = 0) {
  if (!data || !at || !updates)
    return {};
  StringRef reduction = node.string("reduction", "none");
  Type element = tensorType(data).getElementType();
  auto adds = [](Type type) {
    return type.isF32() || type.isF64() || type.isSignlessInteger(32) ||
           type.isSignlessInteger(64);
  };
  auto scatter = [&](Value rows, ArrayRef<int64_t> shape) -> Value {
    return ScatterAddOp::create(
        b.builder, b.loc,
        RankedTensorType::get(shape, tensorType(rows).getElementType()), rows,
        at, b.builder.getI64IntegerAttr(batch), IntegerAttr(), StringAttr(),
        b.builder.getI64IntegerAttr(batch));
  };
  bool isNone = reduction == "none", isAdd = reduction == "add";
  if (!isNone && !isAdd && reduction != "mul" && reduction != "max" &&
      reduction != "min")
    return b.fail("unsupported reduction '" + reduction +
                  "', expected none, add, mul, max or min");
  if (isAdd && adds(element))
    return b.binary<AddOp>(data, scatter(updates, shapeOf(data)));
  // Small types travel as wider ones, which hold them exactly.
  Type wide = adds(element)             ? element
              : isa<FloatType>(element) ? Type(b.builder.getF32Type())
                                        : Type(b.builder.getI64Type());
  Value wideUpdates = b.cast(updates, wide), moved;
  if (isNone || isAdd)
    moved = scatter(wideUpdates, shapeOf(data));
  else
    moved = ScatterReduceOp::create(
        b.builder, b.loc, RankedTensorType::get(shapeOf(data), wide),
        wideUpdates, at, *symbolizeScatterReduction(reduction), batch);
  Value old = b.cast(data, wide);
  if (isAdd)
    return b.cast(b.binary<AddOp>(old, moved), element);
  if (!isNone)
    moved = reduction == "mul"   ? b.binary<MulOp>(old, moved)
            : reduction == "max" ? b.binary<MaxOp>(old, moved)
                                 : b.binary<MinOp>(old, moved);
  moved = b.cast(moved, element);
  Type count = b.builder.getI32Type();
  Value ones = b.expand(b.scalar(1, count), shapeOf(at));
  Shape shape(shapeOf(data).take_front(batch + 1));
  Value hits = scatter(ones, shape);
  shape.resize(rankOf(data), 1);
  Value isHit = b.reshape(
      b.compare(ComparePredicate::gt, hits, b.scalar(0, count)), shape);
  return b.select(isHit, moved, data);
}

CONVERT(convertScatterElements) {
  if (failed(needsRank(node, b, 3, 1)))
    return failure();
  Value x = node.in(0), ids = node.in(1), updates = node.in(2);
  std::optional<int64_t> axis = wrapAxis(node.integer("axis", 0), rankOf(x), b);
  if (!axis)
    return failure();
  if (shapeOf(updates) != shapeOf(ids)) {
    b.fail("expected an update for each index, found " +
           describeType(updates.getType()) + " and " +
           describeType(ids.getType()));
    return failure();
  }
  if (coversOthers(x, ids, *axis)) {
    int64_t last = rankOf(x) - 1;
    Value y =
        scatterRows(node, b, moveDim(b, x, *axis, last),
                    moveDim(b, wrapped(b, ids, shapeOf(x)[*axis]), *axis, last),
                    moveDim(b, updates, *axis, last), last);
    return give(results, moveDim(b, y, last, *axis));
  }
  Value at = elementPositions(b, ids, shapeOf(x), *axis);
  Value y =
      scatterRows(node, b, flatten(b, x), flatten(b, at), flatten(b, updates));
  return give(results, b.reshape(y, shapeOf(x)));
}

CONVERT(convertScatterNd) {
  if (failed(needsRank(node, b, 3, 1)))
    return failure();
  Value x = node.in(0), ids = node.in(1), updates = node.in(2);
  if (rankOf(ids) < 1 || shapeOf(ids).back() < 1) {
    b.fail("expected indices with a last dimension, found " +
           describeType(ids.getType()));
    return failure();
  }
  int64_t depth = shapeOf(ids).back();
  Value at = slicePositions(b, ids, shapeOf(x), 0);
  if (!at)
    return failure();
  Shape expected(shapeOf(ids).drop_back());
  llvm::append_range(expected, shapeOf(x).drop_front(depth));
  if (shapeOf(updates) != ArrayRef<int64_t>(expected)) {
    b.fail("expected updates of shape " + describeShape(expected) + ", found " +
           describeType(updates.getType()));
    return failure();
  }
  StringRef reduction = node.string("reduction", "none");
  DenseElementsAttr known = constantOf(ids);
  if (known && (reduction == "none" || reduction == "add"))
    if (auto grid = indexGridOf(known, shapeOf(x)))
      return give(
          results,
          scatterGrid(b, x, *grid, updates, [&](Value old, Value update) {
            return reduction == "none" ? update : b.binary<AddOp>(old, update);
          }));
  Value y = scatterRows(node, b, joined(b, x, 0, depth), flatten(b, at),
                        joined(b, updates, 0, rankOf(ids) - 1));
  return give(results, b.reshape(y, shapeOf(x)));
}

// Rows write[n] ... of a cache become those of an update, sample by sample.
CONVERT(convertTensorScatter) {
  if (failed(needsRank(node, b, 2, 2)))
    return failure();
  Value cache = node.in(0), update = node.in(1), write = node.in(2);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", -2), rankOf(cache), b);
  if (!axis)
    return failure();
  Shape fits(shapeOf(cache));
  if (rankOf(update) == rankOf(cache))
    fits[*axis] = shapeOf(update)[*axis];
  int64_t samples = shapeOf(cache)[0], length = shapeOf(cache)[*axis];
  if (*axis == 0 || shapeOf(update) != ArrayRef<int64_t>(fits) ||
      fits[*axis] > length || fits[*axis] < 1 ||
      (write && shapeOf(write) != ArrayRef<int64_t>(samples))) {
    b.fail("expected an update of at most the cache's length along one axis "
           "behind the first, found " +
           describeType(cache.getType()) + " and " +
           describeType(update.getType()));
    return failure();
  }
  // The row of the update that belongs at each place of the cache.
  int64_t rank = rankOf(cache);
  Value at = iota(b, rank, *axis, length);
  Shape each(rank, 1);
  each[0] = samples;
  if (write)
    at = b.binary<SubOp>(
        at, b.reshape(b.cast(write, b.builder.getI64Type()), each));
  if (!at)
    return failure();
  Value zero = b.scalarLike(0, at), size = b.scalarLike(double(length), at);
  if (node.string("mode", "linear") == "circular")
    at = b.select(b.compare(ComparePredicate::lt, at, zero),
                  b.binary<AddOp>(at, size), at);
  Value isNew =
      b.binary<AndOp>(b.compare(ComparePredicate::ge, at, zero),
                      b.compare(ComparePredicate::lt, at,
                                b.scalarLike(double(fits[*axis]), at)));
  Value row = b.expand(b.select(isNew, at, zero), shapeOf(cache));
  Value moved = gatherElements(b, update, row, *axis);
  return give(results, b.select(isNew, moved, cache));
}

//===----------------------------------------------------------------------===//
// Order
//===----------------------------------------------------------------------===//

CONVERT(convertTopK) {
  std::optional<Shape> k;
  if (failed(needsRank(node, b, 1, 1)) || failed(node.integersAt(1, "k", b, k)))
    return failure();
  if (!k && node.hasAttribute("k"))
    k = Shape{node.integer("k", 0)};
  Value x = node.in(0);
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", -1), rankOf(x), b);
  if (!axis)
    return failure();
  if (!k || k->size() != 1 || k->front() < 0 ||
      k->front() > shapeOf(x)[*axis]) {
    b.fail("expected k from 0 to " + llvm::Twine(shapeOf(x)[*axis]) + " of " +
           describeType(x.getType()));
    return failure();
  }
  Type element = tensorType(x).getElementType();
  bool narrow = !element.isF32() && !element.isF64() &&
                !element.isSignlessInteger(32) &&
                !element.isSignlessInteger(64);
  Type wide = !narrow                   ? element
              : isa<FloatType>(element) ? Type(b.builder.getF32Type())
                                        : Type(b.builder.getI64Type());
  int64_t last = rankOf(x) - 1;
  Value rows = moveDim(b, b.cast(x, wide), *axis, last);
  Shape shape(shapeOf(rows));
  shape[last] = k->front();
  auto op = TopKOp::create(
      b.builder, b.loc,
      TypeRange{RankedTensorType::get(shape, wide),
                RankedTensorType::get(shape, b.builder.getI64Type())},
      rows, node.integer("largest", 1) ? UnitAttr() : b.builder.getUnitAttr());
  if (results.size() > 1)
    results[1] = moveDim(b, op.getIndices(), last, *axis);
  return give(results,
              b.cast(moveDim(b, op.getValues(), last, *axis), element));
}

// Position of the first (or last) largest element along `axis`, kept.
static Value argMax(GraphBuilder &b, Value x, int64_t axis, bool last) {
  int64_t count = shapeOf(x)[axis];
  if (count == 0)
    return b.fail("expected at least one element to choose from");
  Value max = b.reduce<ReduceMaxOp>(x, {axis}, true);
  Value isMax = b.compare(ComparePredicate::eq, x, max);
  Value at = iota(b, rankOf(x), axis, count);
  if (last)
    return b.reduce<ReduceMaxOp>(b.select(isMax, at, b.scalarLike(0, at)),
                                 {axis}, true);
  // The smallest position is the largest distance from the end.
  Value back = b.binary<SubOp>(b.scalarLike(double(count), at), at);
  Value best = b.reduce<ReduceMaxOp>(
      b.select(isMax, back, b.scalarLike(0, back)), {axis}, true);
  return b.binary<SubOp>(b.scalarLike(double(count), best), best);
}

CONVERT(convertArg) {
  if (failed(needsRank(node, b, 1, 1)))
    return failure();
  Value x = node.in(0);
  std::optional<int64_t> axis = wrapAxis(node.integer("axis", 0), rankOf(x), b);
  if (!axis)
    return failure();
  if (node.type == "ArgMin")
    x = isFloat(x) ? b.unary<NegOp>(x)
                   : b.binary<SubOp>(b.scalarLike(-1, x), x); // ~x
  Value at = argMax(b, x, *axis, node.integer("select_last_index", 0));
  if (!at)
    return failure();
  if (!node.integer("keepdims", 1)) {
    Shape shape(shapeOf(at));
    shape.erase(shape.begin() + *axis);
    at = b.reshape(at, shape);
  }
  return give(results, at);
}

CONVERT(convertHardmax) {
  if (failed(needsFloat(node, b)) || failed(needsRank(node, b, 1, 1)))
    return failure();
  Value x = node.in(0);
  Shape shape(shapeOf(x));
  bool flattens = node.opset < 13;
  std::optional<int64_t> axis =
      wrapAxis(node.integer("axis", flattens ? 1 : -1), rankOf(x), b);
  if (!axis)
    return failure();
  if (flattens) {
    x = b.reshape(x, {productOf(ArrayRef<int64_t>(shape).take_front(*axis)),
                      productOf(ArrayRef<int64_t>(shape).drop_front(*axis))});
    axis = 1;
  }
  Value at = argMax(b, x, *axis, false);
  if (!at)
    return failure();
  Value hit = b.compare(ComparePredicate::eq, at,
                        iota(b, rankOf(x), *axis, shapeOf(x)[*axis]));
  return give(results,
              b.reshape(b.cast(hit, tensorType(x).getElementType()), shape));
}

//===----------------------------------------------------------------------===//
// Along an axis
//===----------------------------------------------------------------------===//

// x moved along `axis` by `by` places, filled with `fill`.
static Value shifted(GraphBuilder &b, Value x, int64_t axis, int64_t by,
                     double fill, bool back) {
  int64_t length = shapeOf(x)[axis];
  Value part = b.sliceDim(x, axis, back ? by : 0, length - by);
  Shape low(rankOf(x), 0), high(rankOf(x), 0);
  (back ? high : low)[axis] = by;
  return PadOp::create(b.builder, b.loc, part, low, high, Shape(rankOf(x), 0),
                       llvm::APFloat(fill));
}

// Running sums and products: log2(n) steps, each adding what lies twice as far.
CONVERT(convertCumulative) {
  std::optional<Shape> given;
  if (failed(needsRank(node, b, 2, 1)) ||
      failed(node.integersAt(1, "axis", b, given)))
    return failure();
  Value x = node.in(0);
  bool isSum = node.type == "CumSum", back = node.integer("reverse", 0);
  if (!given || given->size() != 1) {
    b.fail("expected one constant axis");
    return failure();
  }
  std::optional<int64_t> axis = wrapAxis(given->front(), rankOf(x), b);
  if (!axis)
    return failure();
  int64_t length = shapeOf(x)[*axis];
  double neutral = isSum ? 0 : 1;
  if (node.integer("exclusive", 0) && length > 0)
    x = shifted(b, x, *axis, 1, neutral, back);
  for (int64_t by = 1; x && by < length; by *= 2) {
    Value moved = shifted(b, x, *axis, by, neutral, back);
    x = isSum ? b.binary<AddOp>(x, moved) : b.binary<MulOp>(x, moved);
  }
  return give(results, x);
}

// The first sequence_lens[i] elements of sample i backwards.
CONVERT(convertReverseSequence) {
  if (failed(needsRank(node, b, 2, 2)))
    return failure();
  Value x = node.in(0), lengths = node.in(1);
  int64_t time = node.integer("time_axis", 0);
  int64_t batch = node.integer("batch_axis", 1);
  if (time + batch != 1 || (time != 0 && time != 1) || rankOf(lengths) != 1 ||
      shapeOf(lengths)[0] != shapeOf(x)[batch]) {
    b.fail("expected time and batch as the first two axes and a length a "
           "sample");
    return failure();
  }
  int64_t steps = shapeOf(x)[time], samples = shapeOf(x)[batch];
  Value t = iota(b, 2, 1, steps);
  Value length =
      b.reshape(b.cast(lengths, b.builder.getI64Type()), {samples, 1});
  Value mirrored =
      b.binary<SubOp>(b.binary<SubOp>(length, b.scalarLike(1, length)), t);
  Value from =
      b.select(b.compare(ComparePredicate::lt, t, length), mirrored, t);
  Value y = b.gather(moveDim(b, x, batch, 0), from, 1, 1);
  return give(results, moveDim(b, y, 0, batch));
}

CONVERT(convertEyeLike) {
  if (failed(needsRank(node, b, 1, 2)))
    return failure();
  Value x = node.in(0);
  int64_t rows = shapeOf(x)[0], columns = shapeOf(x)[1];
  int64_t k = node.integer("k", 0);
  Type element =
      node.hasAttribute("dtype")
          ? onnxElement(node.integer("dtype", 0), b.builder.getContext())
          : tensorType(x).getElementType();
  if (!element || rankOf(x) != 2) {
    b.fail("expected a matrix of a supported type, found " +
           describeType(x.getType()));
    return failure();
  }
  Value row = iota(b, 2, 0, rows), column = iota(b, 2, 1, columns);
  Value hit = b.compare(
      ComparePredicate::eq,
      b.binary<AddOp>(row, b.scalar(double(k), b.builder.getI64Type())),
      column);
  return give(results, b.cast(hit, element));
}

void merak::addIndexConversions(OnnxTable &table) {
  table.add("GatherElements", 11, convertGatherElements);
  table.add("GatherND", 11, convertGatherNd);
  table.add("ScatterElements", 11, convertScatterElements);
  table.add("Scatter", 9, convertScatterElements, 10);
  table.add("ScatterND", 11, convertScatterNd);
  table.add("TensorScatter", 24, convertTensorScatter);
  table.add("TopK", 1, convertTopK);
  table.add("ArgMax", 1, convertArg);
  table.add("ArgMin", 1, convertArg);
  table.add("Hardmax", 1, convertHardmax);
  table.add("CumSum", 11, convertCumulative);
  table.add("CumProd", 26, convertCumulative);
  table.add("ReverseSequence", 10, convertReverseSequence);
  table.add("EyeLike", 9, convertEyeLike);
}
