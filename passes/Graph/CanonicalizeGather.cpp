// Gathers whose ids are known, or known to stay inside a sample.
#include "passes/Graph/CanonicalizeGraph.h"

#include "passes/Graph/Matchers.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// Constant ids: rows that follow each other are a slice; ids that repeat along
// leading dimensions are gathered once.
struct KnownGather : OpRewritePattern<GatherOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(GatherOp op,
                                PatternRewriter &rewriter) const override {
    std::optional<SmallVector<int64_t>> ids =
        integersOf(constantThrough(op.getIds()));
    if (!ids || ids->empty() || op.getBatch() != 0)
      return failure();
    Shape shape(shapeOf(op.getIds()));
    int64_t axis = op.getAxis(), repeats = 1;
    size_t period = ids->size();
    Shape narrow = shape;
    for (size_t i = 0; i < shape.size() && period > 1; ++i) {
      size_t part = period / shape[i];
      bool same = shape[i] > 1;
      for (size_t k = part; same && k < period; ++k)
        same = (*ids)[k] == (*ids)[k - part];
      if (!same)
        break;
      narrow[i] = 1;
      repeats *= shape[i];
      period = part;
    }
    int64_t first = ids->front();
    for (size_t i = 0; i < period; ++i)
      if ((*ids)[i] != first + static_cast<int64_t>(i))
        first = -1;
    int64_t rows = shapeOf(op.getTable())[axis];
    int64_t count = static_cast<int64_t>(period);
    bool isSlice = first >= 0 && first + count <= rows;
    if (!isSlice && repeats == 1)
      return failure();

    GraphBuilder b(rewriter, op.getLoc());
    Value result;
    if (isSlice) {
      result = b.sliceDim(op.getTable(), axis, first, count);
    } else {
      ids->resize(period);
      result =
          b.gather(op.getTable(),
                   b.constant(DenseElementsAttr::get(
                       RankedTensorType::get({count}, rewriter.getI64Type()),
                       ArrayRef<int64_t>(*ids))),
                   axis);
    }
    // The gathered dimension back to the dimensions of the ids.
    auto around = [&](ArrayRef<int64_t> middle) {
      Shape full(shapeOf(op.getTable()).take_front(axis));
      llvm::append_range(full, middle);
      llvm::append_range(full, shapeOf(op.getTable()).drop_front(axis + 1));
      return full;
    };
    result = b.expand(b.reshape(result, around(narrow)), around(shape));
    rewriter.replaceOp(op, result);
    return success();
  }
};

// The value is i * step along its first dimension, the same along the others.
bool countsAlongFirst(DenseElementsAttr value, ArrayRef<int64_t> ids,
                      int64_t step) {
  std::optional<SmallVector<int64_t>> numbers = integersOf(value);
  ArrayRef<int64_t> shape =
      numbers ? cast<RankedTensorType>(value.getType()).getShape()
              : ArrayRef<int64_t>();
  if (!numbers || shape.size() != ids.size() || shape[0] != ids[0])
    return false;
  size_t inner = numbers->size() / static_cast<size_t>(shape[0]);
  for (size_t i = 0; i < numbers->size(); ++i)
    if ((*numbers)[i] != static_cast<int64_t>(i / inner) * step)
      return false;
  return true;
}

bool isNumber(Value value, int64_t number) {
  std::optional<SmallVector<int64_t>> numbers = integersOf(constantOf(value));
  return numbers &&
         llvm::all_of(*numbers, [&](int64_t n) { return n == number; });
}

// s of select(s < 0, s + size, s), how indices count from the end.
Value withoutWrap(Value ids, int64_t size) {
  auto select = ids.getDefiningOp<SelectOp>();
  if (!select)
    return ids;
  Value s = select.getRhs();
  auto isNegative = select.getCondition().getDefiningOp<CompareOp>();
  auto fromEnd = select.getLhs().getDefiningOp<AddOp>();
  bool wraps = isNegative && fromEnd && isNegative.getLhs() == s &&
               isNegative.getPredicate() == ComparePredicate::lt &&
               isNumber(isNegative.getRhs(), 0) && fromEnd.getLhs() == s &&
               isNumber(fromEnd.getRhs(), size);
  return wraps ? s : ids;
}

// gather(flat, i * n + ids) -> gather of ids in part i of the flat table: what
// x[arange(B), ids] becomes on its way through ONNX. Parts can be split over
// microbatches and devices. Ids are taken to stay in their part, as they do in
// the indexing that they come from; those of an input are checked when it is
// read.
struct PartsOfFlatTable : OpRewritePattern<GatherOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(GatherOp op,
                                PatternRewriter &rewriter) const override {
    ArrayRef<int64_t> ids = shapeOf(op.getIds());
    ArrayRef<int64_t> table = shapeOf(op.getTable());
    auto sum = table.empty()
                   ? AddOp()
                   : withoutWrap(op.getIds(), table[0]).getDefiningOp<AddOp>();
    if (!sum || op.getBatch() != 0 || op.getAxis() != 0 || ids.empty() ||
        ids[0] < 2 || table[0] % ids[0] != 0)
      return failure();
    int64_t rows = table[0] / ids[0];
    GraphBuilder b(rewriter, op.getLoc());
    for (auto [starts, inner] : {std::pair(sum.getLhs(), sum.getRhs()),
                                 std::pair(sum.getRhs(), sum.getLhs())}) {
      if (!countsAlongFirst(constantThrough(starts), ids, rows))
        continue;
      Shape parts{ids[0], rows};
      llvm::append_range(parts, table.drop_front());
      rewriter.replaceOp(op, b.gather(b.reshape(op.getTable(), parts),
                                      b.expand(inner, ids), 1, 1));
      return success();
    }
    return failure();
  }
};

// A slice of what was put together is a slice of one part.
struct SliceOfConcat : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(SliceOp op,
                                PatternRewriter &rewriter) const override {
    auto concat = op.getX().getDefiningOp<ConcatOp>();
    if (!concat)
      return failure();
    size_t axis = concat.getAxis();
    if (op.getSizes()[axis] < 1)
      return failure();
    Shape starts(op.getStarts());
    int64_t end =
        starts[axis] + (op.getSizes()[axis] - 1) * op.getSteps()[axis];
    for (Value part : concat.getInputs()) {
      int64_t size = shapeOf(part)[axis];
      if (starts[axis] < size && end < size) {
        GraphBuilder b(rewriter, op.getLoc());
        rewriter.replaceOp(op,
                           b.slice(part, starts, op.getSizes(), op.getSteps()));
        return success();
      }
      if (starts[axis] < size)
        return failure();
      starts[axis] -= size;
      end -= size;
    }
    return failure();
  }
};
} // namespace

void merak::addGatherPatterns(RewritePatternSet &patterns) {
  patterns.add<KnownGather, PartsOfFlatTable, SliceOfConcat>(
      patterns.getContext());
}
