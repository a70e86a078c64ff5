#include "passes/Graph/CanonicalizeGraph.h"

#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace merak {
#define GEN_PASS_DEF_CANONICALIZEGRAPH
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// An op on constants is a constant.
struct FoldConstants : RewritePattern {
  FoldConstants(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 3, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (op->getNumOperands() == 0 || !isa<TrainDialect>(op->getDialect()))
      return failure();
    SmallVector<DenseElementsAttr> operands;
    for (Value operand : op->getOperands()) {
      operands.push_back(constantThrough(operand));
      if (!operands.back())
        return failure();
    }
    // An expand stays: one copy is enough, and its dimension can be split.
    if (isa<ExpandOp>(op) && !operands[0].isSplat())
      return failure();
    DenseElementsAttr value = evaluate(op, operands);
    if (!value)
      return failure();
    rewriter.replaceOp(op,
                       GraphBuilder(rewriter, op->getLoc()).constant(value));
    return success();
  }
};

// x + 0, x - 0, x * 1, x / 1; numbers go to the right.
template <typename OpTy> struct Neutral : OpRewritePattern<OpTy> {
  Neutral(MLIRContext *context, double number, bool commutes)
      : OpRewritePattern<OpTy>(context), number(number), commutes(commutes) {}
  double number;
  bool commutes;

  LogicalResult matchAndRewrite(OpTy op,
                                PatternRewriter &rewriter) const override {
    if (splatOf(op.getRhs()) == number &&
        op.getType() == op.getLhs().getType()) {
      rewriter.replaceOp(op, op.getLhs());
      return success();
    }
    // So do operands that broadcast, as biases, unless a number stands there.
    bool swap = constantOf(op.getLhs())
                    ? !constantOf(op.getRhs())
                    : !constantOf(op.getRhs()) &&
                          op.getLhs().getType() != op.getType() &&
                          op.getRhs().getType() == op.getType();
    if (!commutes || !swap)
      return failure();
    rewriter.replaceOpWithNewOp<OpTy>(op, op.getRhs(), op.getLhs());
    return success();
  }
};

// Powers with small constant exponents; pow itself has no gradient at 0.
struct Power : OpRewritePattern<PowOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(PowOp op,
                                PatternRewriter &rewriter) const override {
    std::optional<double> exponent = splatOf(op.getRhs());
    Value x = op.getLhs();
    if (!exponent || x.getType() != op.getType())
      return failure();
    GraphBuilder b(rewriter, op.getLoc());
    Value result;
    if (*exponent == 1)
      result = x;
    else if (*exponent == 2)
      result = b.binary<MulOp>(x, x);
    else if (*exponent == 3)
      result = b.binary<MulOp>(b.binary<MulOp>(x, x), x);
    else if (*exponent == 0.5)
      result = b.unary<SqrtOp>(x);
    else if (*exponent == -0.5)
      result = b.unary<ReciprocalOp>(b.unary<SqrtOp>(x));
    else if (*exponent == -1)
      result = b.unary<ReciprocalOp>(x);
    else
      return failure();
    rewriter.replaceOp(op, result);
    return success();
  }
};

struct SameCast : OpRewritePattern<CastOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(CastOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getX().getType() != op.getType())
      return failure();
    rewriter.replaceOp(op, op.getX());
    return success();
  }
};

// An op that broadcasts needs no expanded operand, if its result stays as is.
struct DropExpand : RewritePattern {
  DropExpand(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (auto attention = dyn_cast<AttentionOp>(op))
      return dropMask(attention, rewriter);
    if (!op->hasTrait<Broadcasts>())
      return failure();
    for (OpOperand &operand : op->getOpOperands()) {
      auto expand = operand.get().getDefiningOp<ExpandOp>();
      if (!expand)
        continue;
      SmallVector<Value> narrow(op->getOperands());
      narrow[operand.getOperandNumber()] = expand.getX();
      SmallVector<Type> types;
      if (failed(inferBroadcast(std::nullopt, narrow, {}, types)) ||
          cast<RankedTensorType>(types[0]).getShape() !=
              shapeOf(op->getResult(0)))
        continue;
      rewriter.modifyOpInPlace(op, [&] { operand.set(expand.getX()); });
      return success();
    }
    return failure();
  }

  static LogicalResult dropMask(AttentionOp op, PatternRewriter &rewriter) {
    auto expand =
        op.getMask() ? op.getMask().getDefiningOp<ExpandOp>() : ExpandOp();
    if (!expand)
      return failure();
    rewriter.modifyOpInPlace(
        op, [&] { op.getMaskMutable().assign(expand.getX()); });
    return success();
  }
};

// Broadcasting adds leading dimensions by itself.
struct DropLeadingOnes : RewritePattern {
  DropLeadingOnes(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (!op->hasTrait<Broadcasts>() || op->getNumOperands() != 2)
      return failure();
    for (OpOperand &operand : op->getOpOperands()) {
      auto reshape = operand.get().getDefiningOp<ReshapeOp>();
      if (!reshape || rankOf(operand.get()) <= rankOf(reshape.getX()))
        continue;
      ArrayRef<int64_t> wide = shapeOf(operand.get());
      ArrayRef<int64_t> narrow = shapeOf(reshape.getX());
      Value other = op->getOperand(1 - operand.getOperandNumber());
      if (wide.take_back(narrow.size()) != narrow ||
          other.getType() != op->getResult(0).getType())
        continue;
      rewriter.modifyOpInPlace(op, [&] { operand.set(reshape.getX()); });
      return success();
    }
    return failure();
  }
};

struct SameExpand : OpRewritePattern<ExpandOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ExpandOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getX().getType() == op.getType()) {
      rewriter.replaceOp(op, op.getX());
      return success();
    }
    auto inner = op.getX().getDefiningOp<ExpandOp>();
    if (!inner)
      return failure();
    rewriter.replaceOpWithNewOp<ExpandOp>(op, op.getType(), inner.getX());
    return success();
  }
};

// A select whose condition is known everywhere.
struct KnownSelect : OpRewritePattern<SelectOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(SelectOp op,
                                PatternRewriter &rewriter) const override {
    DenseElementsAttr condition = constantThrough(op.getCondition());
    if (!condition || !condition.isSplat())
      return failure();
    Value chosen = condition.getSplatValue<bool>() ? op.getLhs() : op.getRhs();
    if (chosen.getType() != op.getType())
      return failure();
    rewriter.replaceOp(op, chosen);
    return success();
  }
};

struct CanonicalizeGraphPass
    : merak::impl::CanonicalizeGraphBase<CanonicalizeGraphPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    addArithmeticPatterns(patterns);
    addEmptyPatterns(patterns);
    addTransposePatterns(patterns);
    addReshapePatterns(patterns);
    addGatherPatterns(patterns);
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
  }
};
} // namespace

void merak::addArithmeticPatterns(RewritePatternSet &patterns) {
  MLIRContext *context = patterns.getContext();
  patterns.add<FoldConstants, Power, SameCast, DropExpand, DropLeadingOnes,
               SameExpand, KnownSelect>(context);
  patterns.add<Neutral<AddOp>>(context, 0.0, true);
  patterns.add<Neutral<MulOp>>(context, 1.0, true);
  patterns.add<Neutral<SubOp>>(context, 0.0, false);
  patterns.add<Neutral<DivOp>>(context, 1.0, false);
}
