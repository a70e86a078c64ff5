// Transposes go into einsum equations; what cannot absorb one lets it pass.
#include "passes/Graph/CanonicalizeGraph.h"
#include "passes/Graph/GraphBuilder.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
std::string equationOf(const EinsumOp::Letters &letters) {
  return letters.lhs + "," + letters.rhs + "->" + letters.out;
}

// einsum(transpose(x), y): the letters of x before the transpose.
struct EinsumOfTranspose : OpRewritePattern<EinsumOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(EinsumOp op,
                                PatternRewriter &rewriter) const override {
    EinsumOp::Letters letters = op.getLetters();
    Value lhs = op.getLhs(), rhs = op.getRhs();
    bool changed = absorb(lhs, letters.lhs);
    changed |= absorb(rhs, letters.rhs);
    if (!changed)
      return failure();
    rewriter.replaceOpWithNewOp<EinsumOp>(op, equationOf(letters), lhs, rhs,
                                          op.getRoundsAttr());
    return success();
  }

  static bool absorb(Value &operand, std::string &letters) {
    auto transpose = operand.getDefiningOp<TransposeOp>();
    if (!transpose)
      return false;
    std::string before = letters;
    for (auto [i, dim] : llvm::enumerate(transpose.getPerm()))
      before[dim] = letters[i];
    letters = before;
    operand = transpose.getX();
    return true;
  }
};

// transpose(einsum): the result letters in another order.
struct TransposeOfEinsum : OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(TransposeOp op,
                                PatternRewriter &rewriter) const override {
    auto einsum = op.getX().getDefiningOp<EinsumOp>();
    if (!einsum || !einsum->hasOneUse())
      return failure();
    EinsumOp::Letters letters = einsum.getLetters();
    std::string out;
    for (int64_t dim : op.getPerm())
      out += letters.out[dim];
    letters.out = out;
    rewriter.replaceOpWithNewOp<EinsumOp>(op, equationOf(letters),
                                          einsum.getLhs(), einsum.getRhs(),
                                          einsum.getRoundsAttr());
    return success();
  }
};

// Letters in the order in which they appear, so that equal products look equal.
struct RenameLetters : OpRewritePattern<EinsumOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(EinsumOp op,
                                PatternRewriter &rewriter) const override {
    std::string renamed;
    llvm::SmallDenseMap<char, char> names;
    for (char c : op.getEquation()) {
      if (isalpha(c))
        c = names.try_emplace(c, static_cast<char>('a' + names.size()))
                .first->second;
      renamed += c;
    }
    if (renamed == op.getEquation() || names.size() > 26)
      return failure();
    rewriter.modifyOpInPlace(op, [&] { op.setEquation(renamed); });
    return success();
  }
};

// slice(transpose(x)) -> transpose(slice(x)).
struct SliceOfTranspose : OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(SliceOp op,
                                PatternRewriter &rewriter) const override {
    auto transpose = op.getX().getDefiningOp<TransposeOp>();
    if (!transpose)
      return failure();
    size_t rank = op.getStarts().size();
    Shape starts(rank), sizes(rank), steps(rank);
    for (auto [i, dim] : llvm::enumerate(transpose.getPerm())) {
      starts[dim] = op.getStarts()[i];
      sizes[dim] = op.getSizes()[i];
      steps[dim] = op.getSteps()[i];
    }
    GraphBuilder b(rewriter, op.getLoc());
    rewriter.replaceOp(
        op, b.transpose(b.slice(transpose.getX(), starts, sizes, steps),
                        transpose.getPerm()));
    return success();
  }
};

// reshape(transpose(x)) that only drops dimensions of size 1.
struct SqueezeOfTranspose : OpRewritePattern<ReshapeOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ReshapeOp op,
                                PatternRewriter &rewriter) const override {
    auto transpose = op.getX().getDefiningOp<TransposeOp>();
    if (!transpose || rankOf(op) >= rankOf(transpose))
      return failure();
    // Greedy match of the kept dimensions.
    ArrayRef<int64_t> from = shapeOf(transpose), to = shapeOf(op);
    Shape kept;
    size_t next = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      if (next < to.size() && from[i] == to[next] &&
          (from[i] != 1 || from.size() - i <= to.size() - next)) {
        kept.push_back(transpose.getPerm()[i]);
        ++next;
      } else if (from[i] != 1) {
        return failure();
      }
    }
    if (next != to.size())
      return failure();
    // Kept dimensions of x in their own order, and where they go.
    Shape sorted(kept), shape, perm;
    llvm::sort(sorted);
    for (int64_t dim : sorted)
      shape.push_back(shapeOf(transpose.getX())[dim]);
    for (int64_t dim : kept)
      perm.push_back(llvm::find(sorted, dim) - sorted.begin());
    GraphBuilder b(rewriter, op.getLoc());
    rewriter.replaceOp(op,
                       b.transpose(b.reshape(transpose.getX(), shape), perm));
    return success();
  }
};

// Element-wise ops with at most numbers beside them let a transpose pass.
struct ElementwiseOfTranspose : RewritePattern {
  ElementwiseOfTranspose(MLIRContext *context)
      : RewritePattern(MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op,
                                PatternRewriter &rewriter) const override {
    if (!isa<MulOp, DivOp, NegOp, CastOp>(op))
      return failure();
    auto transpose = op->getOperand(0).getDefiningOp<TransposeOp>();
    if (!transpose || !transpose->hasOneUse() ||
        (op->getNumOperands() == 2 &&
         (rankOf(op->getOperand(1)) != 0 || !constantOf(op->getOperand(1)))))
      return failure();
    GraphBuilder b(rewriter, op->getLoc());
    Operation *inner = rewriter.clone(*op);
    rewriter.modifyOpInPlace(inner, [&] {
      inner->setOperand(0, transpose.getX());
      inner->getResult(0).setType(
          RankedTensorType::get(shapeOf(transpose.getX()),
                                tensorType(op->getResult(0)).getElementType()));
    });
    rewriter.replaceOp(op,
                       b.transpose(inner->getResult(0), transpose.getPerm()));
    return success();
  }
};
// concat(transpose(x), transpose(y)) -> transpose(concat(x, y)).
struct ConcatOfTransposes : OpRewritePattern<ConcatOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(ConcatOp op,
                                PatternRewriter &rewriter) const override {
    SmallVector<Value> inputs;
    auto first = op.getInputs()[0].getDefiningOp<TransposeOp>();
    for (Value input : op.getInputs()) {
      auto transpose = input.getDefiningOp<TransposeOp>();
      if (!transpose || transpose.getPerm() != first.getPerm())
        return failure();
      inputs.push_back(transpose.getX());
    }
    GraphBuilder b(rewriter, op.getLoc());
    rewriter.replaceOp(
        op, b.transpose(b.concat(inputs, first.getPerm()[op.getAxis()]),
                        first.getPerm()));
    return success();
  }
};
} // namespace

void merak::addTransposePatterns(RewritePatternSet &patterns) {
  patterns.add<EinsumOfTranspose, TransposeOfEinsum, RenameLetters,
               SliceOfTranspose, SqueezeOfTranspose, ConcatOfTransposes,
               ElementwiseOfTranspose>(patterns.getContext());
}
