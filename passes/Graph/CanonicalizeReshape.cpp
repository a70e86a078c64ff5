// A reshape that joins leading dimensions ([b,t,c] to [b*t,c], as exporters
// write before a Gemm) moves behind the ops that do not look at them, until it
// meets the reshape that undoes it.
#include "passes/Graph/CanonicalizeGraph.h"
#include "passes/Graph/GraphBuilder.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// [d0 .. dk, rest] -> [d0 * .. * dk, rest].
struct Joined {
  Value x;    // before
  Shape dims; // d0 .. dk
};

std::optional<Joined> joinedOf(Value value) {
  auto reshape = value.getDefiningOp<ReshapeOp>();
  if (!reshape)
    return std::nullopt;
  ArrayRef<int64_t> from = shapeOf(reshape.getX()), to = shapeOf(value);
  if (to.empty() || from.size() <= to.size())
    return std::nullopt;
  size_t rest = to.size() - 1;
  if (from.take_back(rest) != to.take_back(rest))
    return std::nullopt;
  return Joined{reshape.getX(), Shape(from.drop_back(rest))};
}

// `shape` with its first dimension written as `dims`.
Shape split(ArrayRef<int64_t> shape, ArrayRef<int64_t> dims) {
  Shape result(dims);
  llvm::append_range(result, shape.drop_front());
  return result;
}

// einsum(join(x), w) -> join(einsum(x, w)).
struct EinsumOfJoined : OpRewritePattern<EinsumOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(EinsumOp op,
                                PatternRewriter &rewriter) const override {
    std::optional<Joined> joined = joinedOf(op.getLhs());
    EinsumOp::Letters letters = op.getLetters();
    if (!joined || op.getRounds() || letters.out.empty() ||
        letters.out[0] != letters.lhs[0] ||
        letters.rhs.find(letters.lhs[0]) != std::string::npos)
      return failure();
    std::string fresh;
    std::string used = letters.lhs + letters.rhs + letters.out;
    for (char c = 'A'; fresh.size() < joined->dims.size() && c <= 'Z'; ++c)
      if (used.find(c) == std::string::npos)
        fresh += c;
    if (fresh.size() < joined->dims.size())
      return failure();
    GraphBuilder b(rewriter, op.getLoc());
    Value wide = b.einsum(fresh + letters.lhs.substr(1) + "," + letters.rhs +
                              "->" + fresh + letters.out.substr(1),
                          joined->x, op.getRhs());
    rewriter.replaceOp(op, b.reshape(wide, shapeOf(op)));
    return success();
  }
};

// A number, or an operand that does not reach the joined dimension: as it is
// to be used beside the unjoined tensor. Null if there is none.
Value beside(GraphBuilder &b, Value other, int64_t rank) {
  if (rankOf(other) < rank)
    return other;
  if (shapeOf(other)[0] != 1)
    return {};
  return b.reshape(other, shapeOf(other).drop_front());
}

struct ElementwiseOfJoined : RewritePattern {
  ElementwiseOfJoined(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (!op->hasTrait<Pointwise>() && !isa<DropoutOp>(op))
      return failure();
    GraphBuilder b(rewriter, op->getLoc());
    Value result = op->getResult(0);
    SmallVector<Value> operands;
    std::optional<Joined> joined;
    for (Value operand : op->getOperands())
      if (!joined && operand.getType() && shapeOf(operand) == shapeOf(result))
        joined = joinedOf(operand);
    if (!joined)
      return failure();
    for (Value operand : op->getOperands()) {
      std::optional<Joined> own = joinedOf(operand);
      if (own && shapeOf(operand) == shapeOf(result) &&
          own->dims == joined->dims)
        operands.push_back(own->x);
      else if (Value other = beside(b, operand, rankOf(result)))
        operands.push_back(other);
      else
        return failure();
    }
    Operation *wide = rewriter.clone(*op);
    rewriter.modifyOpInPlace(wide, [&] {
      wide->setOperands(operands);
      wide->getResult(0).setType(
          RankedTensorType::get(split(shapeOf(result), joined->dims),
                                tensorType(result).getElementType()));
    });
    rewriter.replaceOp(op, b.reshape(wide->getResult(0), shapeOf(result)));
    return success();
  }
};

struct SoftmaxOfJoined : OpRewritePattern<SoftmaxOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(SoftmaxOp op,
                                PatternRewriter &rewriter) const override {
    std::optional<Joined> joined = joinedOf(op.getX());
    if (!joined || op.getAxis() == 0)
      return failure();
    GraphBuilder b(rewriter, op.getLoc());
    Value wide = SoftmaxOp::create(
        rewriter, op.getLoc(), joined->x.getType(), joined->x,
        static_cast<int64_t>(op.getAxis() + joined->dims.size() - 1));
    rewriter.replaceOp(op, b.reshape(wide, shapeOf(op)));
    return success();
  }
};

// Replaces `op` by a clone that `adapt` gives operands of the split shape; the
// results are joined again.
template <typename AdaptFn>
void replaceBySplit(PatternRewriter &rewriter, Operation *op,
                    ArrayRef<int64_t> dims, AdaptFn adapt) {
  Operation *wide = rewriter.clone(*op);
  rewriter.modifyOpInPlace(wide, [&] {
    adapt(wide);
    for (Value result : wide->getResults())
      result.setType(RankedTensorType::get(
          split(shapeOf(result), dims), tensorType(result).getElementType()));
  });
  GraphBuilder b(rewriter, op->getLoc());
  SmallVector<Value> results;
  for (auto [result, old] : llvm::zip(wide->getResults(), op->getResults()))
    results.push_back(b.reshape(result, shapeOf(old)));
  rewriter.replaceOp(op, results);
}

// Norms over the dimensions from an axis behind the joined one.
template <typename NormTy> struct NormOfJoined : OpRewritePattern<NormTy> {
  using OpRewritePattern<NormTy>::OpRewritePattern;

  LogicalResult matchAndRewrite(NormTy op,
                                PatternRewriter &rewriter) const override {
    std::optional<Joined> joined = joinedOf(op.getX());
    if (!joined || op.getAxis() == 0)
      return failure();
    replaceBySplit(rewriter, op, joined->dims, [&](Operation *wide) {
      wide->setOperand(0, joined->x);
      cast<NormTy>(wide).setAxis(op.getAxis() + joined->dims.size() - 1);
    });
    return success();
  }
};

// Rows of scores: cross entropy and pick.
struct RowsOfJoined : RewritePattern {
  RowsOfJoined(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (!isa<SoftmaxCrossEntropyOp, PickOp>(op))
      return failure();
    std::optional<Joined> joined = joinedOf(op->getOperand(0));
    if (!joined || rankOf(op->getOperand(0)) < 2)
      return failure();
    GraphBuilder b(rewriter, op->getLoc());
    Value labels = b.reshape(op->getOperand(1),
                             split(shapeOf(op->getOperand(1)), joined->dims));
    replaceBySplit(rewriter, op, joined->dims, [&](Operation *wide) {
      wide->setOperands({joined->x, labels});
    });
    return success();
  }
};

// The sum of all elements does not depend on the shape.
struct SumOfReshape : OpRewritePattern<ReduceSumOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReduceSumOp op,
                                PatternRewriter &rewriter) const override {
    auto reshape = op.getX().getDefiningOp<ReshapeOp>();
    if (!reshape ||
        static_cast<int64_t>(op.getAxes().size()) != rankOf(reshape) ||
        rankOf(reshape.getX()) == 0)
      return failure();
    Shape axes;
    for (int64_t i = 0; i < rankOf(reshape.getX()); ++i)
      axes.push_back(i);
    GraphBuilder b(rewriter, op.getLoc());
    Value sum = b.reduce<ReduceSumOp>(reshape.getX(), axes, false);
    rewriter.replaceOp(op, b.reshape(sum, shapeOf(op)));
    return success();
  }
};
} // namespace

void merak::addReshapePatterns(RewritePatternSet &patterns) {
  patterns.add<EinsumOfJoined, ElementwiseOfJoined, SoftmaxOfJoined,
               NormOfJoined<LayerNormOp>, NormOfJoined<RmsNormOp>, RowsOfJoined,
               SumOfReshape>(patterns.getContext());
}
