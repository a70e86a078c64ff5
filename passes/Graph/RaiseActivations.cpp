// GELU, in whatever order the exporter multiplied:
//
//   0.5 * x * (1 + erf(x / sqrt(2)))                              -> gelu
//   0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))       -> gelu tanh
#include "passes/Graph/Matchers.h"
#include "passes/Graph/Passes.h"

#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace merak {
#define GEN_PASS_DEF_RAISEACTIVATIONS
#include "passes/Graph/Passes.h.inc"
} // namespace merak

using namespace mlir;
using namespace merak;
using namespace merak::train;

static bool isPower(const Product &product, double factor, Value x,
                    size_t exponent) {
  return nearly(product.factor, factor, 1e-4) &&
         product.values.size() == exponent &&
         llvm::all_of(product.values, [&](Value v) { return v == x; });
}

// x if `u` is sqrt(2/pi) * (x + 0.044715 x^3).
static Value tanhArgument(Value u) {
  constexpr double kRoot = 0.7978845608, kCubic = 0.044715;
  // The sum is a factor of its own; x may be one too.
  for (Value factor : productOf(u).values) {
    auto sum = factor.getDefiningOp<AddOp>();
    if (!sum)
      continue;
    Product outer = productOf(u, factor);
    for (bool swap : {false, true}) {
      Value a = swap ? sum.getRhs() : sum.getLhs();
      Value b = swap ? sum.getLhs() : sum.getRhs();
      if (outer.values.size() == 1 && nearly(outer.factor, kRoot, 1e-4) &&
          isPower(productOf(b, a), kCubic, a, 3))
        return a;
      // x * (1 + 0.044715 x^2)
      if (splatOf(a) != 1.0 || outer.values.size() != 2)
        continue;
      Value x = outer.values[outer.values[0] == factor ? 1 : 0];
      if (nearly(outer.factor, kRoot, 1e-4) &&
          isPower(productOf(b, x), kCubic, x, 2))
        return x;
    }
  }
  return {};
}

// x if `u` is x / sqrt(2).
static Value erfArgument(Value u) {
  if (auto scaled = withNumber<MulOp>(u))
    return nearly(scaled->second, 0.7071067812, 1e-4) ? scaled->first : Value();
  auto div = u.getDefiningOp<DivOp>();
  std::optional<double> number = div ? splatOf(div.getRhs()) : std::nullopt;
  return number && nearly(*number, 1.4142135624, 1e-4) ? div.getLhs() : Value();
}

namespace {
struct Gelu : OpRewritePattern<MulOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(MulOp op,
                                PatternRewriter &rewriter) const override {
    for (Value factor : productOf(op).values) {
      auto shifted = withNumber<AddOp>(factor);
      if (!shifted || shifted->second != 1.0)
        continue;
      Value x;
      bool isTanh = false;
      if (auto tanh = shifted->first.getDefiningOp<TanhOp>()) {
        x = tanhArgument(tanh.getX());
        isTanh = true;
      } else if (auto erf = shifted->first.getDefiningOp<ErfOp>()) {
        x = erfArgument(erf.getX());
      }
      if (!x || x.getType() != op.getType())
        continue;
      Product whole = productOf(op, x);
      if (whole.factor != 0.5 || whole.values.size() != 2 ||
          !llvm::is_contained(whole.values, x) ||
          !llvm::is_contained(whole.values, factor))
        continue;
      rewriter.replaceOpWithNewOp<GeluOp>(op, x.getType(), x, isTanh);
      return success();
    }
    return failure();
  }
};

struct RaiseActivationsPass
    : merak::impl::RaiseActivationsBase<RaiseActivationsPass> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<Gelu>(&getContext());
    (void)applyPatternsGreedily(getOperation(), std::move(patterns));
  }
};
} // namespace
