// s = x - max(x);  pick(s - log(sum(exp(s))), labels)  ->  -cross entropy.
#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace merak {
#define GEN_PASS_DEF_RAISECROSSENTROPY
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

// x and the axis of a log-softmax.
static std::optional<std::pair<Value, int64_t>> logSoftmaxOf(Value value) {
  auto outer = value.getDefiningOp<SubOp>();
  auto log = outer ? outer.getRhs().getDefiningOp<LogOp>() : nullptr;
  auto sum = log ? log.getX().getDefiningOp<ReduceSumOp>() : nullptr;
  auto exp = sum ? sum.getX().getDefiningOp<ExpOp>() : nullptr;
  if (!exp || !sum.getKeepdims() || sum.getAxes().size() != 1)
    return std::nullopt;
  Value shifted = outer.getLhs();
  if (exp.getX() != shifted)
    return std::nullopt;
  int64_t axis = sum.getAxes()[0];
  // With or without the shift by the maximum.
  auto inner = shifted.getDefiningOp<SubOp>();
  auto max = inner ? inner.getRhs().getDefiningOp<ReduceMaxOp>() : nullptr;
  if (max && max.getKeepdims() && max.getX() == inner.getLhs() &&
      max.getAxes() == sum.getAxes())
    return std::pair(inner.getLhs(), axis);
  return std::pair(shifted, axis);
}

namespace {
struct PickedLogSoftmax : OpRewritePattern<PickOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(PickOp op,
                                PatternRewriter &rewriter) const override {
    Value scores = op.getX();
    auto transpose = scores.getDefiningOp<TransposeOp>();
    auto match = logSoftmaxOf(transpose ? transpose.getX() : scores);
    if (!match)
      return failure();
    auto [x, axis] = *match;
    int64_t last = rankOf(scores) - 1;
    if ((transpose ? transpose.getPerm()[last] : last) != axis)
      return failure();
    GraphBuilder b(rewriter, op.getLoc());
    if (transpose)
      x = b.transpose(x, transpose.getPerm());
    Type row = op.getType();
    auto loss = SoftmaxCrossEntropyOp::create(
        rewriter, op.getLoc(), TypeRange{row, row}, x, op.getLabels(),
        op.getIgnoreIndexAttr());
    rewriter.replaceOp(op, b.unary<NegOp>(loss.getLoss()));
    return success();
  }
};

struct DoubleNegation : OpRewritePattern<NegOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(NegOp op,
                                PatternRewriter &rewriter) const override {
    auto inner = op.getX().getDefiningOp<NegOp>();
    if (!inner)
      return failure();
    rewriter.replaceOp(op, inner.getX());
    return success();
  }
};

struct RaiseCrossEntropyPass
    : merak::impl::RaiseCrossEntropyBase<RaiseCrossEntropyPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<PickedLogSoftmax, DoubleNegation>(&getContext());
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
  }
};
} // namespace
