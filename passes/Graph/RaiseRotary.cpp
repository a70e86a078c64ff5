// x * cos + concat(-x[d/2:], x[:d/2]) * sin, where both tables repeat their
// first half, is the rotary embedding of x.
#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace merak {
#define GEN_PASS_DEF_RAISEROTARY
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

// x of concat(-x[..., d/2:], x[..., :d/2]).
static Value rotatedHalf(Value value) {
  auto concat = value.getDefiningOp<ConcatOp>();
  if (!concat || concat.getInputs().size() != 2)
    return {};
  auto neg = concat.getInputs()[0].getDefiningOp<NegOp>();
  auto high = neg ? neg.getX().getDefiningOp<SliceOp>() : nullptr;
  auto low = concat.getInputs()[1].getDefiningOp<SliceOp>();
  if (!high || !low || high.getX() != low.getX())
    return {};
  Value x = low.getX();
  int64_t last = rankOf(x) - 1, half = shapeOf(x)[last] / 2;
  Shape starts(last + 1, 0), sizes(shapeOf(x));
  sizes[last] = half;
  bool fits = static_cast<int64_t>(concat.getAxis()) == last &&
              shapeOf(x)[last] == 2 * half &&
              low.getStarts() == ArrayRef(starts) &&
              low.getSizes() == ArrayRef(sizes);
  starts[last] = half;
  fits &= high.getStarts() == ArrayRef(starts) &&
          high.getSizes() == ArrayRef(sizes);
  return fits ? x : Value();
}

// The first half of the last dimension, if the second half repeats it. Looks
// through what keeps that: the tables are often computed in the graph.
static Value firstHalf(GraphBuilder &b, Value table, int depth = 0) {
  if (rankOf(table) == 0 || depth > 12)
    return {};
  int64_t last = rankOf(table) - 1, width = shapeOf(table)[last];
  if (width % 2)
    return {};
  Operation *op = table.getDefiningOp();
  if (DenseElementsAttr value = constantThrough(table)) {
    std::optional<HostTensor> host =
        value.getNumElements() <= kMaxEvaluated ? toHost(value) : std::nullopt;
    if (!host || !host->isFloat())
      return {};
    for (int64_t i = 0; i < host->size(); ++i)
      if (i % width < width / 2 && host->real(i) != host->real(i + width / 2))
        return {};
    return b.sliceDim(table, last, 0, width / 2);
  }
  if (!op)
    return {};
  if (auto concat = dyn_cast<ConcatOp>(op))
    return concat.getInputs().size() == 2 &&
                   static_cast<int64_t>(concat.getAxis()) == last &&
                   concat.getInputs()[0] == concat.getInputs()[1]
               ? concat.getInputs()[0]
               : Value();
  if (isa<CosOp, SinOp, CastOp>(op)) {
    Value half = firstHalf(b, op->getOperand(0), depth + 1);
    if (!half)
      return {};
    IRMapping map;
    map.map(op->getOperand(0), half);
    Operation *narrow = b.builder.clone(*op, map);
    narrow->getResult(0).setType(RankedTensorType::get(
        shapeOf(half), tensorType(table).getElementType()));
    return narrow->getResult(0);
  }
  if (auto reshape = dyn_cast<ReshapeOp>(op)) {
    if (rankOf(reshape.getX()) == 0 || shapeOf(reshape.getX()).back() != width)
      return {};
    Value half = firstHalf(b, reshape.getX(), depth + 1);
    Shape shape(shapeOf(table));
    shape[last] = width / 2;
    return b.reshape(half, shape);
  }
  if (auto gather = dyn_cast<GatherOp>(op)) {
    if (static_cast<int64_t>(gather.getAxis()) >= rankOf(gather.getTable()) - 1)
      return {};
    Value half = firstHalf(b, gather.getTable(), depth + 1);
    return b.gather(half, gather.getIds(), gather.getAxis(), gather.getBatch());
  }
  if (auto slice = dyn_cast<SliceOp>(op)) {
    if (slice.getSizes()[last] != shapeOf(slice.getX())[last])
      return {};
    Value half = firstHalf(b, slice.getX(), depth + 1);
    if (!half)
      return {};
    Shape sizes(slice.getSizes());
    sizes[last] = width / 2;
    return b.slice(half, slice.getStarts(), sizes, slice.getSteps());
  }
  return {};
}

namespace {
struct Rotary : OpRewritePattern<AddOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(AddOp op,
                                PatternRewriter &rewriter) const override {
    auto left = op.getLhs().getDefiningOp<MulOp>();
    auto right = op.getRhs().getDefiningOp<MulOp>();
    if (!left || !right || rankOf(op) != 4)
      return failure();
    for (bool swap : {false, true})
      for (bool first : {false, true}) {
        MulOp sines = swap ? left : right, cosines = swap ? right : left;
        Value turned = first ? sines.getLhs() : sines.getRhs();
        Value sin = first ? sines.getRhs() : sines.getLhs();
        // Both may be transposed alike on their way here.
        auto moved = turned.getDefiningOp<TransposeOp>();
        Value base = rotatedHalf(moved ? moved.getX() : turned);
        Value x, cos;
        for (Value side : {cosines.getLhs(), cosines.getRhs()}) {
          auto same = side.getDefiningOp<TransposeOp>();
          bool isBase = moved ? same && same.getX() == base &&
                                    same.getPerm() == moved.getPerm()
                              : side == base;
          if (base && isBase) {
            x = side;
            cos =
                side == cosines.getLhs() ? cosines.getRhs() : cosines.getLhs();
          }
        }
        if (!x || x.getType() != op.getType())
          continue;
        if (cos && succeeded(rewrite(op, x, cos, sin, rewriter)))
          return success();
      }
    return failure();
  }

  static LogicalResult rewrite(AddOp op, Value x, Value cos, Value sin,
                               PatternRewriter &rewriter) {
    GraphBuilder b(rewriter, op.getLoc());
    // Tables as [1|b, 1, t, d] (heads outside) or [1|b, t, 1, d].
    auto shape = [&](Value table) {
      Shape full(4 - std::min<int64_t>(rankOf(table), 4), 1);
      llvm::append_range(full, shapeOf(table));
      return full;
    };
    Shape table = shape(cos);
    ArrayRef<int64_t> dims = shapeOf(x);
    if (table != shape(sin) || table.size() != 4 || table[3] != dims[3] ||
        (table[0] != 1 && table[0] != dims[0]))
      return failure();
    bool headsOutside = table[1] == 1 && table[2] == dims[2];
    bool headsInside = table[2] == 1 && table[1] == dims[1];
    if (!headsOutside && !headsInside)
      return failure();
    int64_t length = headsOutside ? dims[2] : dims[1];
    Shape halved{table[0], length, 1, dims[3] / 2};
    Value cosHalf = firstHalf(b, cos), sinHalf = firstHalf(b, sin);
    if (!cosHalf || !sinHalf)
      return failure();
    Value inner = headsOutside ? b.transpose(x, {0, 2, 1, 3}) : x;
    Value result = RotaryOp::create(rewriter, op.getLoc(), inner.getType(),
                                    inner, b.reshape(cosHalf, halved),
                                    b.reshape(sinHalf, halved), false, false);
    rewriter.replaceOp(op, headsOutside ? b.transpose(result, {0, 2, 1, 3})
                                        : result);
    return success();
  }
};

struct RaiseRotaryPass : merak::impl::RaiseRotaryBase<RaiseRotaryPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<Rotary>(&getContext());
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
  }
};
} // namespace
