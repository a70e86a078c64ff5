// Layer norm and RMS norm written out.
//
//   d = x - mean(x);  y = d / sqrt(mean(d * d) + epsilon)     -> layer_norm
//   y = x * (1 / sqrt(mean(x * x) + epsilon))                 -> rms_norm
//   y * scale (+ bias)                                        -> into the op
#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace merak {
#define GEN_PASS_DEF_RAISENORMS
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

// The axis from which on all dimensions are reduced.
static std::optional<int64_t> trailingFrom(ArrayRef<int64_t> axes,
                                           int64_t rank) {
  Shape sorted(axes);
  llvm::sort(sorted);
  int64_t first = rank - static_cast<int64_t>(axes.size());
  for (auto [i, axis] : llvm::enumerate(sorted))
    if (axis != first + static_cast<int64_t>(i))
      return std::nullopt;
  return axes.empty() ? std::nullopt : std::optional(first);
}

// x of x * x.
static Value squareOf(Value value) {
  auto mul = value.getDefiningOp<MulOp>();
  return mul && mul.getLhs() == mul.getRhs() ? mul.getLhs() : Value();
}

static RankedTensorType rowsOf(Value x, int64_t axis, OpBuilder &b) {
  return RankedTensorType::get(shapeOf(x).take_front(axis), b.getF32Type());
}

namespace {
struct WrittenOutNorm : RewritePattern {
  WrittenOutNorm(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    for (const InverseRoot &root : inverseRootsOf(op)) {
      std::optional<Mean> power = meanOf(root.m);
      Value square = power ? squareOf(power->x) : Value();
      if (!square || square != root.x ||
          op->getResult(0).getType() != root.x.getType())
        continue;
      int64_t rank = rankOf(root.x);
      std::optional<int64_t> axis = trailingFrom(power->axes, rank);
      if (!axis)
        continue;
      Value centred = centreOf(root.x, power->axes);
      Value x = centred ? centred : root.x;
      RankedTensorType rows = rowsOf(x, *axis, rewriter);
      if (centred)
        rewriter.replaceOp(
            op, LayerNormOp::create(
                    rewriter, op->getLoc(), TypeRange{x.getType(), rows, rows},
                    x, Value(), Value(), *axis, llvm::APFloat(root.epsilon))
                    .getY());
      else
        rewriter.replaceOp(op, RmsNormOp::create(rewriter, op->getLoc(),
                                                 TypeRange{x.getType(), rows},
                                                 x, Value(), *axis,
                                                 llvm::APFloat(root.epsilon))
                                   .getY());
      return success();
    }
    return failure();
  }

  // x of x - mean(x) over the same axes.
  static Value centreOf(Value value, ArrayRef<int64_t> axes) {
    auto sub = value.getDefiningOp<SubOp>();
    std::optional<Mean> mean = sub ? meanOf(sub.getRhs()) : std::nullopt;
    return mean && mean->x == sub.getLhs() && ArrayRef(mean->axes) == axes
               ? sub.getLhs()
               : Value();
  }
};

// `vector` as the normalised shape, or null if it is something else.
Value asNormalised(Value vector, Value x, int64_t axis, PatternRewriter &b,
                   Location loc) {
  ArrayRef<int64_t> wanted = shapeOf(x).drop_front(axis);
  ArrayRef<int64_t> shape = shapeOf(vector);
  while (shape.size() > wanted.size() && shape.front() == 1)
    shape = shape.drop_front();
  if (shape != wanted)
    return {};
  return GraphBuilder(b, loc).reshape(vector, wanted);
}

// The other operand of `op` if one is `y`.
template <typename OpTy> Value otherThan(OpTy op, Value y) {
  if (op.getLhs() == y && op.getRhs() != y)
    return op.getRhs();
  return op.getRhs() == y && op.getLhs() != y ? op.getLhs() : Value();
}

template <typename NormTy> struct Scale : OpRewritePattern<MulOp> {
  using OpRewritePattern<MulOp>::OpRewritePattern;

  LogicalResult matchAndRewrite(MulOp op,
                                PatternRewriter &rewriter) const override {
    for (Value y : {op.getLhs(), op.getRhs()}) {
      auto norm = y.getDefiningOp<NormTy>();
      Value other = otherThan(op, y);
      if (!norm || norm.getY() != y || !other || !y.hasOneUse() ||
          norm.getScale() || hasBias(norm) || op.getType() != y.getType())
        continue;
      Value scale = asNormalised(other, norm.getX(), norm.getAxis(), rewriter,
                                 op.getLoc());
      if (!scale)
        continue;
      rewriter.setInsertionPoint(op);
      Operation *scaled = rewriter.clone(*norm);
      rewriter.modifyOpInPlace(scaled, [&] {
        cast<NormTy>(scaled).getScaleMutable().assign(scale);
      });
      rewriter.replaceOp(op, scaled->getResult(0));
      return success();
    }
    return failure();
  }
  static bool hasBias(LayerNormOp op) {
    return static_cast<bool>(op.getBias());
  }
  static bool hasBias(RmsNormOp) { return false; }
};

struct Bias : OpRewritePattern<AddOp> {
  using OpRewritePattern<AddOp>::OpRewritePattern;

  LogicalResult matchAndRewrite(AddOp op,
                                PatternRewriter &rewriter) const override {
    for (Value y : {op.getLhs(), op.getRhs()}) {
      auto norm = y.getDefiningOp<LayerNormOp>();
      Value other = otherThan(op, y);
      // Without a scale the sum may be a residual of the same shape.
      if (!norm || norm.getY() != y || !other || !y.hasOneUse() ||
          !norm.getScale() || norm.getBias() || op.getType() != y.getType())
        continue;
      Value bias = asNormalised(other, norm.getX(), norm.getAxis(), rewriter,
                                op.getLoc());
      if (!bias)
        continue;
      rewriter.setInsertionPoint(op);
      Operation *shifted = rewriter.clone(*norm);
      rewriter.modifyOpInPlace(shifted, [&] {
        cast<LayerNormOp>(shifted).getBiasMutable().assign(bias);
      });
      rewriter.replaceOp(op, shifted->getResult(0));
      return success();
    }
    return failure();
  }
};

struct RaiseNormsPass : merak::impl::RaiseNormsBase<RaiseNormsPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<WrittenOutNorm, Scale<LayerNormOp>, Scale<RmsNormOp>, Bias>(
        &getContext());
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
  }
};
} // namespace
