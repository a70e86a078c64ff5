#include "onnx/Conversion/ScatterGrid.h"

#include "passes/Graph/HostTensor.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// Indices [n0, n1 ..., depth] as numbers.
struct Indices {
  SmallVector<int64_t> numbers;
  Shape outer; // n0, n1 ...
  int64_t depth;

  int64_t at(int64_t place, int64_t component) const {
    return numbers[place * depth + component];
  }
  int64_t places() const { return numbers.size() / depth; }
  // Places from one step of dimension d to the next.
  int64_t stride(int64_t d) const {
    int64_t stride = 1;
    for (size_t i = d + 1; i < outer.size(); ++i)
      stride *= outer[i];
    return stride;
  }
};
} // namespace

// The dimension of the indices along which the component changes, if there is
// only one and the component follows from it; -1 if it never changes.
static std::optional<int64_t> axisOf(const Indices &ids, int64_t component) {
  int64_t found = -1;
  for (size_t d = 0; d < ids.outer.size() && found < 0; ++d)
    if (ids.outer[d] > 1 &&
        ids.at(ids.stride(d), component) != ids.at(0, component))
      found = d;
  for (int64_t place = 0; place < ids.places(); ++place) {
    int64_t row = found < 0 ? 0
                            : place / ids.stride(found) % ids.outer[found] *
                                  ids.stride(found);
    if (ids.at(place, component) != ids.at(row, component))
      return std::nullopt;
  }
  return found;
}

std::optional<IndexGrid> merak::indexGridOf(DenseElementsAttr value,
                                            ArrayRef<int64_t> shape) {
  auto type = cast<RankedTensorType>(value.getType());
  auto numbers = integersOf(value);
  if (!numbers || numbers->empty())
    return std::nullopt;
  if (value.isSplat())
    numbers->assign(type.getNumElements(), numbers->front());
  Indices ids{*numbers, Shape(type.getShape().drop_back()),
              type.getShape().back()};
  for (size_t i = 0; i < ids.numbers.size(); ++i)
    ids.numbers[i] += ids.numbers[i] < 0 ? shape[i % ids.depth] : 0;
  IndexGrid grid;
  SmallVector<bool> used(ids.outer.size());
  for (int64_t k = 0; k < ids.depth; ++k) {
    std::optional<int64_t> axis = axisOf(ids, k);
    if (!axis || (*axis >= 0 && used[*axis]))
      return std::nullopt;
    int64_t count = *axis < 0 ? 1 : ids.outer[*axis];
    SmallVector<int64_t> rows;
    SmallVector<bool> seen(shape[k]);
    for (int64_t i = 0; i < count; ++i) {
      int64_t row = ids.at(*axis < 0 ? 0 : i * ids.stride(*axis), k);
      if (row < 0 || row >= shape[k] || seen[row])
        return std::nullopt;
      seen[row] = true;
      rows.push_back(row);
    }
    if (*axis >= 0)
      used[*axis] = true;
    grid.rows.push_back(std::move(rows));
    grid.axis.push_back(*axis);
  }
  // A dimension that no component follows would write its places repeatedly.
  for (auto [size, isUsed] : llvm::zip(ids.outer, used))
    if (size > 1 && !isUsed)
      return std::nullopt;
  return grid;
}

// Updates [n0, n1 ..., rest] in the order of the data's dimensions, with one of
// size 1 where a component is always the same.
static Value inOrder(GraphBuilder &b, const IndexGrid &grid, Value updates,
                     int64_t outer) {
  Shape perm, shape;
  for (auto [rows, axis] : llvm::zip(grid.rows, grid.axis)) {
    if (axis >= 0)
      perm.push_back(axis);
    shape.push_back(rows.size());
  }
  for (int64_t d = 0; d < outer; ++d) // of size 1, used by no component
    if (!llvm::is_contained(perm, d))
      perm.push_back(d);
  for (int64_t d = outer; d < rankOf(updates); ++d) {
    perm.push_back(d);
    shape.push_back(shapeOf(updates)[d]);
  }
  return b.reshape(b.transpose(updates, perm), shape);
}

// Dimension d grown to `size`: what is at i goes to rows[i], anything between.
static Value spread(GraphBuilder &b, Value x, int64_t d, ArrayRef<int64_t> rows,
                    int64_t size) {
  int64_t count = rows.size(), step = count > 1 ? rows[1] - rows[0] : 1;
  bool even = step > 0;
  for (int64_t i = 1; i < count; ++i)
    even &= rows[i] - rows[i - 1] == step;
  if (even) {
    Shape low(rankOf(x)), high(rankOf(x)), interior(rankOf(x));
    low[d] = rows.front();
    high[d] = size - rows.back() - 1;
    interior[d] = step - 1;
    return PadOp::create(b.builder, b.loc, x, low, high, interior,
                         llvm::APFloat(0.0));
  }
  SmallVector<int64_t> from(size);
  for (int64_t i = 0; i < count; ++i)
    from[rows[i]] = i;
  Value ids = b.constant(DenseElementsAttr::get(
      RankedTensorType::get({size}, b.builder.getI64Type()),
      ArrayRef<int64_t>(from)));
  return b.gather(x, ids, d);
}

// True at the rows, along dimension d of `rank`.
static Value isRow(GraphBuilder &b, int64_t rank, int64_t d,
                   ArrayRef<int64_t> rows, int64_t size) {
  SmallVector<bool> hit(size);
  for (int64_t row : rows)
    hit[row] = true;
  Shape shape(rank, 1);
  shape[d] = size;
  return b.constant(DenseElementsAttr::get(
      RankedTensorType::get(shape, b.builder.getI1Type()),
      ArrayRef<bool>(hit)));
}

Value merak::scatterGrid(GraphBuilder &b, Value data, const IndexGrid &grid,
                         Value updates,
                         function_ref<Value(Value, Value)> combine) {
  int64_t rank = rankOf(data), depth = grid.rows.size();
  int64_t outer = rankOf(updates) - (rank - depth);
  Value moved = inOrder(b, grid, updates, outer), inside;
  for (int64_t d = 0; moved && d < depth; ++d) {
    int64_t size = shapeOf(data)[d];
    bool whole = static_cast<int64_t>(grid.rows[d].size()) == size &&
                 llvm::is_sorted(grid.rows[d]);
    if (whole)
      continue;
    moved = spread(b, moved, d, grid.rows[d], size);
    Value here = isRow(b, rank, d, grid.rows[d], size);
    inside = inside ? b.binary<AndOp>(inside, here) : here;
  }
  if (!moved)
    return moved;
  Value both = combine(data, moved);
  return inside ? b.select(inside, both, data) : both;
}
