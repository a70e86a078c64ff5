// einsum(q, k) -> scale, masks -> softmax -> einsum(., v), in any layout the
// equations spell, becomes attention on [b, t, h, d].
#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace merak {
#define GEN_PASS_DEF_RAISEATTENTION
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
// The way from the softmax back to the product of queries and keys.
struct Scores {
  EinsumOp product;
  double scale = 1;
  bool causal = false;
  // What is masked with a bool (true attends) or added, in reverse order.
  SmallVector<Value> masks;
  SmallVector<bool> inverted; // a bool mask where true removes
};
} // namespace

// Large enough to remove a key: exp of it is 0 beside any usual score.
static bool removes(Value value) {
  std::optional<double> number = splatOf(value);
  return number && *number <= -1e4;
}

// Square and lower triangular: j <= i + (columns - rows).
static bool isCausal(DenseElementsAttr value, bool inverted) {
  if (!value || value.isSplat() || value.getNumElements() > kMaxEvaluated)
    return false;
  std::optional<HostTensor> host = toHost(value);
  ArrayRef<int64_t> shape = host ? host->type.getShape() : ArrayRef<int64_t>();
  if (shape.size() < 2)
    return false;
  int64_t rows = shape[shape.size() - 2], columns = shape.back();
  if (rows < 2)
    return false;
  const bool isFloat = host->isFloat();
  int64_t at = 0; // of a row
  for (int64_t last = host->size(); at < last; at += columns) {
    const int64_t row = at / columns % rows;
    for (int64_t column = 0; column < columns; ++column) {
      const bool attends = column <= row + columns - rows;
      bool found;
      if (isFloat) {
        const double real = host->reals[size_t(at + column)];
        if (real != 0 && !(real <= -1e4))
          return false;
        found = real == 0;
      } else {
        found = (host->integers[size_t(at + column)] != 0) != inverted;
      }
      if (found != attends)
        return false;
    }
  }
  return true;
}

// Masks may not change the shape of the scores.
static std::optional<Scores> scoresOf(Value value) {
  Scores scores;
  Type type = value.getType();
  while (value.getType() == type) {
    if (auto product = value.getDefiningOp<EinsumOp>()) {
      scores.product = product;
      return scores;
    }
    if (auto scaled = withNumber<MulOp>(value)) {
      scores.scale *= scaled->second;
      value = scaled->first;
      continue;
    }
    if (auto div = value.getDefiningOp<DivOp>()) {
      std::optional<double> number = splatOf(div.getRhs());
      if (!number)
        return std::nullopt;
      scores.scale /= *number;
      value = div.getLhs();
      continue;
    }
    if (auto add = value.getDefiningOp<AddOp>()) {
      // The operand of the full shape that leads on to a product is the score.
      Value next = add.getLhs(), mask = add.getRhs();
      if (next.getType() != type ||
          (mask.getType() == type && !next.getDefiningOp<EinsumOp>() &&
           mask.getDefiningOp<EinsumOp>()))
        std::swap(next, mask);
      if (scores.scale != 1)
        return std::nullopt;
      scores.masks.push_back(mask);
      scores.inverted.push_back(false);
      value = next;
      continue;
    }
    auto select = value.getDefiningOp<SelectOp>();
    if (!select)
      return std::nullopt;
    bool inverted = removes(select.getLhs());
    if (!inverted && !removes(select.getRhs()))
      return std::nullopt;
    if (scores.scale <= 0)
      return std::nullopt;
    scores.masks.push_back(select.getCondition());
    scores.inverted.push_back(inverted);
    value = inverted ? select.getRhs() : select.getLhs();
  }
  return std::nullopt;
}

// x and n if dimension `dim` of `value` repeats each entry of x n times:
// reshape(expand(reshape(x))) with [.., h, 1, ..] -> [.., h, n, ..].
static Value repeatedFrom(GraphBuilder &b, Value value, int64_t dim,
                          int64_t &n) {
  auto join = value.getDefiningOp<ReshapeOp>();
  auto expand = join ? join.getX().getDefiningOp<ExpandOp>() : nullptr;
  if (!expand || rankOf(expand) != rankOf(value) + 1)
    return {};
  ArrayRef<int64_t> wide = shapeOf(expand), narrow = shapeOf(expand.getX());
  if (wide.size() != narrow.size() || narrow[dim + 1] != 1)
    return {};
  for (size_t i = 0; i < wide.size(); ++i)
    if (static_cast<int64_t>(i) != dim + 1 && wide[i] != narrow[i])
      return {};
  Shape joined(wide);
  joined[dim] *= joined[dim + 1];
  joined.erase(joined.begin() + dim + 1);
  if (shapeOf(value) != ArrayRef<int64_t>(joined))
    return {};
  n = wide[dim + 1];
  Shape base(narrow);
  base.erase(base.begin() + dim + 1);
  return b.reshape(expand.getX(), base);
}

namespace {
struct Attention : OpRewritePattern<EinsumOp> {
  using OpRewritePattern::OpRewritePattern;

  // Layers share their mask, which is large: each is looked at once.
  mutable llvm::DenseMap<Attribute, bool> causalMasks[2];

  bool isCausalMask(Value mask, bool inverted) const {
    DenseElementsAttr value = constantThrough(mask);
    if (!value)
      return false;
    auto [it, isNew] = causalMasks[inverted].try_emplace(value, false);
    if (isNew)
      it->second = isCausal(value, inverted);
    return it->second;
  }

  // `value` with dimensions named `have`, as the dimensions `want`; letters
  // that are missing become size 1.
  static Value arrange(GraphBuilder &b, Value value, std::string have,
                       StringRef want) {
    Shape perm;
    for (char letter : want)
      if (size_t at = have.find(letter); at != std::string::npos)
        perm.push_back(at);
    if (perm.size() != have.size())
      return {};
    value = b.transpose(value, perm);
    Shape shape;
    size_t next = 0;
    for (char letter : want)
      shape.push_back(
          have.find(letter) == std::string::npos ? 1 : shapeOf(value)[next++]);
    return b.reshape(value, shape);
  }

  LogicalResult matchAndRewrite(EinsumOp op,
                                PatternRewriter &rewriter) const override {
    // Its kernels know f32 alone.
    if (!tensorType(op).getElementType().isF32())
      return failure();
    for (bool swap : {false, true}) {
      Value weights = swap ? op.getRhs() : op.getLhs();
      if (auto softmax = weights.getDefiningOp<SoftmaxOp>())
        if (succeeded(rewrite(op, softmax, swap, rewriter)))
          return success();
    }
    return failure();
  }

  LogicalResult rewrite(EinsumOp op, SoftmaxOp softmax, bool swap,
                        PatternRewriter &rewriter) const {
    std::optional<Scores> scores = scoresOf(softmax.getX());
    // A learned mask has a gradient, which attention does not give.
    if (!scores || llvm::any_of(scores->masks, dependsOnTrained))
      return failure();
    EinsumOp::Letters outer = op.getLetters();
    EinsumOp::Letters inner = scores->product.getLetters();
    std::string p = swap ? outer.rhs : outer.lhs;
    std::string v = swap ? outer.lhs : outer.rhs, out = outer.out;
    // One alphabet: the letters of the scores, the rest of v in capitals.
    std::string scoreLetters = inner.out;
    int64_t rank = scoreLetters.size();
    if (rank < 3 || rank > 4 ||
        static_cast<int64_t>(softmax.getAxis()) != rank - 1)
      return failure();
    auto rename = [&](std::string &text) {
      for (char &c : text) {
        size_t at = p.find(c);
        c = at != std::string::npos ? scoreLetters[at]
                                    : static_cast<char>(toupper(c));
      }
    };
    rename(v);
    rename(out);
    // Batch and heads, then queries, then keys.
    char s = scoreLetters[rank - 1], t = scoreLetters[rank - 2];
    char batch = scoreLetters[0], head = rank == 4 ? scoreLetters[1] : '#';
    std::string q = inner.lhs, k = inner.rhs;
    Value qValue = scores->product.getLhs(), kValue = scores->product.getRhs();
    if (q.find(t) == std::string::npos) {
      std::swap(q, k);
      std::swap(qValue, kValue);
    }
    auto has = [](const std::string &text, char c) {
      return c == '#' || text.find(c) != std::string::npos;
    };
    char d = 0, e = 0;
    for (char c : q)
      if (!has(scoreLetters, c))
        d = d ? '!' : c;
    for (char c : v)
      if (!has(scoreLetters, c))
        e = e ? '!' : c;
    if (!d || !e || d == '!' || e == '!' || !has(k, d) || has(q, s) ||
        has(k, t) || has(v, t) || !has(k, s) || !has(v, s) || has(out, s) ||
        !has(out, t) || !has(out, e))
      return failure();
    for (char c : {batch, head})
      if (!has(q, c) || !has(k, c) || !has(v, c) || !has(out, c))
        return failure();
    size_t letters = rank == 4 ? 4 : 3;
    if (q.size() != letters || k.size() != letters || v.size() != letters ||
        out.size() != letters)
      return failure();

    GraphBuilder b(rewriter, op.getLoc());
    Value vValue = swap ? op.getLhs() : op.getRhs();
    if (shapeOf(qValue)[q.find(d)] != shapeOf(vValue)[v.find(e)])
      return failure();
    // Grouped queries: keys and values that repeat each head.
    if (rank == 4) {
      int64_t nk = 1, nv = 1;
      Value kBase = repeatedFrom(b, kValue, k.find(head), nk);
      Value vBase = repeatedFrom(b, vValue, v.find(head), nv);
      if (kBase && vBase && nk == nv) {
        kValue = kBase;
        vValue = vBase;
      }
    }
    auto order = [&](char time, char width) {
      return std::string{batch, time, head, width};
    };
    qValue = arrange(b, qValue, q, order(t, d));
    kValue = arrange(b, kValue, k, order(s, d));
    vValue = arrange(b, vValue, v, order(s, e));
    if (!qValue || !kValue || !vValue)
      return failure();
    // Numbers that were multiplied into the operands.
    double scale = scores->scale;
    for (Value *operand : {&qValue, &kValue})
      while (auto scaled = withNumber<MulOp>(*operand)) {
        scale *= scaled->second;
        *operand = scaled->first;
      }
    if (auto div = qValue.getDefiningOp<DivOp>())
      if (std::optional<double> number = splatOf(div.getRhs())) {
        scale /= *number;
        qValue = div.getLhs();
      }

    Value mask;
    bool causal = false;
    combineMasks(b, *scores, softmax, rank, mask, causal);
    ArrayRef<int64_t> dims = shapeOf(qValue);
    auto lse = RankedTensorType::get({dims[0], dims[2], dims[1]},
                                     rewriter.getF32Type());
    auto attention = AttentionOp::create(
        rewriter, op.getLoc(), TypeRange{qValue.getType(), lse}, qValue, kValue,
        vValue, mask, rewriter.getF64FloatAttr(scale),
        causal ? rewriter.getUnitAttr() : UnitAttr(), IntegerAttr(),
        StringAttr());
    // [b, t, h, e] back to the order of the equation.
    Value result = attention.getOut();
    std::string have = order(t, e);
    if (rank == 3) {
      result = b.reshape(result, {dims[0], dims[1], dims[3]});
      have.erase(2, 1);
    }
    rewriter.replaceOp(op, arrange(b, result, have, out));
    return success();
  }

  // One mask operand out of all masks, causal ones as the flag.
  void combineMasks(GraphBuilder &b, Scores &scores, SoftmaxOp softmax,
                    int64_t rank, Value &mask, bool &causal) const {
    Shape full(shapeOf(softmax.getX()));
    bool square = full[rank - 1] == full[rank - 2];
    for (auto [part, inverted] : llvm::zip(scores.masks, scores.inverted)) {
      bool isBool = tensorType(part).getElementType().isInteger(1);
      ArrayRef<int64_t> shape = shapeOf(part);
      bool covers = shape.size() >= 2 && shape.back() == full[rank - 1] &&
                    shape[shape.size() - 2] == full[rank - 2];
      if (covers && square && isCausalMask(part, inverted)) {
        causal = true;
        continue;
      }
      if (rank == 3) {
        // Scores of rank 3 have no dimension for heads.
        Shape wide(3 - shape.size(), 1);
        llvm::append_range(wide, shape);
        wide.insert(wide.begin() + 1, 1);
        part = b.reshape(part, wide);
      }
      Value next = isBool && inverted ? b.unary<NotOp>(part) : part;
      if (!mask) {
        mask = next;
        continue;
      }
      bool maskIsBool = tensorType(mask).getElementType().isInteger(1);
      if (isBool && maskIsBool) {
        mask = b.binary<AndOp>(mask, next);
        continue;
      }
      mask = b.binary<AddOp>(additive(b, mask), additive(b, next));
    }
  }

  static Value additive(GraphBuilder &b, Value mask) {
    if (!tensorType(mask).getElementType().isInteger(1))
      return mask;
    Type real = b.builder.getF32Type();
    return b.select(mask, b.scalar(0, real), b.scalar(-1e30, real));
  }
};

struct RaiseAttentionPass
    : merak::impl::RaiseAttentionBase<RaiseAttentionPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<Attention>(&getContext());
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
  }
};
} // namespace
