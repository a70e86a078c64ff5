// Sharding rules of neural network ops.
#include "dialects/Train/RuleBuilder.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

//===----------------------------------------------------------------------===//
// Softmax, cross entropy
//===----------------------------------------------------------------------===//

// Decomposed: `rounds` all-reduces.
static ShardingRule alongAxisRule(Operation *op, int64_t axis, int rounds) {
  ShardingRule rule;
  std::vector<int> factors;
  for (auto [index, size] : llvm::enumerate(shapeOf(op->getOperand(0))))
    factors.push_back(addFactor(rule, size,
                                static_cast<int64_t>(index) == axis
                                    ? FactorKind::Decompose
                                    : FactorKind::Parallel));
  if (factors[axis] >= 0)
    rule.factors[factors[axis]].rounds = rounds;
  rule.operands.assign(op->getNumOperands(), tensorOf(factors));
  rule.results = {tensorOf(factors)};
  return rule;
}
ShardingRule SoftmaxOp::getShardingRule() {
  return alongAxisRule(getOperation(), getAxis(), 2); // maximum, sum
}
ShardingRule SoftmaxGradOp::getShardingRule() {
  ShardingRule rule = alongAxisRule(getOperation(), getAxis(), 1);
  rule.linear = {{1}};
  return rule;
}

// Ops on rows of columns: `wide` tensors are [rows..., V], others [rows...].
// The column factor, in which labels are looked up, is factor 0.
static ShardingRule columnsRule(Operation *op, Value wide, FactorKind kind) {
  ShardingRule rule;
  ArrayRef<int64_t> shape = shapeOf(wide);
  int column = rule.add(shape.back(), kind);
  rule.factors[column].ranged = true;
  RuleTensor rows = tensorOf(addFactors(rule, shape.drop_back()));
  RuleTensor all = rows;
  all.push_back({column});
  auto tensor = [&](Value value) {
    return shapeOf(value).size() == shape.size() ? all : rows;
  };
  for (Value operand : op->getOperands())
    rule.operands.push_back(tensor(operand));
  for (Value result : op->getResults())
    rule.results.push_back(tensor(result));
  return rule;
}
ShardingRule SoftmaxCrossEntropyOp::getShardingRule() {
  ShardingRule rule =
      columnsRule(getOperation(), getLogits(), FactorKind::Decompose);
  rule.factors[0].rounds = 3; // maximum, sum, picked logit
  return rule;
}
ShardingRule SoftmaxCrossEntropyGradOp::getShardingRule() {
  ShardingRule rule =
      columnsRule(getOperation(), getLogits(), FactorKind::Parallel);
  rule.linear = {{3}};
  return rule;
}
void SoftmaxCrossEntropyGradOp::localize(TypeRange, TypeRange) {}
ShardingRule PickOp::getShardingRule() {
  return columnsRule(getOperation(), getX(), FactorKind::Sum);
}
void PickOp::localize(TypeRange, TypeRange) {}
ShardingRule PickGradOp::getShardingRule() {
  ShardingRule rule =
      columnsRule(getOperation(), getDx(), FactorKind::Parallel);
  rule.linear = {{0}};
  return rule;
}
void PickGradOp::localize(TypeRange, TypeRange) {}

//===----------------------------------------------------------------------===//
// Normalization: leading dimensions are rows, the rest is normalised
//===----------------------------------------------------------------------===//

static ShardingRule normRule(Operation *op, Value x, int64_t axis,
                             FactorKind rowKind, FactorKind normalisedKind) {
  ShardingRule rule;
  ArrayRef<int64_t> shape = shapeOf(x);
  RuleTensor rows = tensorOf(addFactors(rule, shape.take_front(axis), rowKind));
  RuleTensor normalised =
      tensorOf(addFactors(rule, shape.drop_front(axis), normalisedKind));
  RuleTensor all = rows;
  llvm::append_range(all, normalised);
  // x and dy have all dimensions; mean and rstd are results 1.. of the forward
  // op and operands of the gradients; scale and bias are normalised.
  auto isStatistic = [&](Value value) {
    if (auto result = dyn_cast<OpResult>(value);
        result && value.getDefiningOp() == op)
      return isa<LayerNormOp, RmsNormOp>(op) && result.getResultNumber() > 0;
    if (auto grad = dyn_cast<LayerNormGradOp>(op))
      return value == grad.getMean() || value == grad.getRstd();
    if (auto grad = dyn_cast<LayerNormParamGradOp>(op))
      return value == grad.getMean() || value == grad.getRstd();
    if (auto grad = dyn_cast<RmsNormGradOp>(op))
      return value == grad.getRstd();
    if (auto grad = dyn_cast<RmsNormParamGradOp>(op))
      return value == grad.getRstd();
    return false;
  };
  auto isParameter = [&](Value value) {
    if (value.getDefiningOp() == op)
      return isa<LayerNormParamGradOp, RmsNormParamGradOp>(op);
    if (auto norm = dyn_cast<LayerNormOp>(op))
      return value == norm.getScale() || value == norm.getBias();
    if (auto norm = dyn_cast<RmsNormOp>(op))
      return value == norm.getScale();
    if (auto grad = dyn_cast<LayerNormGradOp>(op))
      return value == grad.getScale();
    if (auto grad = dyn_cast<RmsNormGradOp>(op))
      return value == grad.getScale();
    return false;
  };
  auto tensor = [&](Value value) {
    return isStatistic(value) ? rows : isParameter(value) ? normalised : all;
  };
  for (Value operand : op->getOperands())
    rule.operands.push_back(tensor(operand));
  for (Value result : op->getResults())
    rule.results.push_back(tensor(result));
  return rule;
}
ShardingRule LayerNormOp::getShardingRule() {
  return normRule(getOperation(), getX(), getAxis(), FactorKind::Parallel,
                  FactorKind::Whole);
}
ShardingRule RmsNormOp::getShardingRule() {
  return normRule(getOperation(), getX(), getAxis(), FactorKind::Parallel,
                  FactorKind::Whole);
}
ShardingRule LayerNormGradOp::getShardingRule() {
  ShardingRule rule = normRule(getOperation(), getX(), getAxis(),
                               FactorKind::Parallel, FactorKind::Whole);
  rule.linear = {{0}};
  return rule;
}
ShardingRule RmsNormGradOp::getShardingRule() {
  ShardingRule rule = normRule(getOperation(), getX(), getAxis(),
                               FactorKind::Parallel, FactorKind::Whole);
  rule.linear = {{0}};
  return rule;
}
ShardingRule LayerNormParamGradOp::getShardingRule() {
  ShardingRule rule = normRule(getOperation(), getX(), getAxis(),
                               FactorKind::Sum, FactorKind::Parallel);
  rule.linear = {{0}};
  return rule;
}
ShardingRule RmsNormParamGradOp::getShardingRule() {
  ShardingRule rule = normRule(getOperation(), getX(), getAxis(),
                               FactorKind::Sum, FactorKind::Parallel);
  rule.linear = {{0}};
  return rule;
}

//===----------------------------------------------------------------------===//
// Attention: batch, head groups and queries are parallel; queries of one group
// share their key, so a split of the group or of the queries leaves partial key
// gradients
//===----------------------------------------------------------------------===//

namespace {
struct AttentionFactors {
  ShardingRule rule;
  RuleTensor q, k, v, out, lse;
  std::vector<int> scores; // b, h (as one factor or -1), tq, tk
  RuleDim heads;

  AttentionFactors(Value q, Value k, Value v, FactorKind queryKind) {
    ArrayRef<int64_t> qs = shapeOf(q), ks = shapeOf(k), vs = shapeOf(v);
    int kvHead = addFactor(rule, ks[2]);
    int group = addFactor(rule, qs[2] / ks[2], queryKind);
    int batch = addFactor(rule, qs[0]);
    int query = addFactor(rule, qs[1], queryKind);
    if (query >= 0)
      rule.factors[query].ranged = true; // which keys each of them sees
    int key = addFactor(rule, ks[1], FactorKind::Whole);
    int depth = addFactor(rule, qs[3], FactorKind::Whole);
    int valueDepth = addFactor(rule, vs[3], FactorKind::Whole);
    heads = dimOf(kvHead);
    llvm::append_range(heads, dimOf(group));
    this->q = {dimOf(batch), dimOf(query), heads, dimOf(depth)};
    this->k = {dimOf(batch), dimOf(key), dimOf(kvHead), dimOf(depth)};
    this->v = {dimOf(batch), dimOf(key), dimOf(kvHead), dimOf(valueDepth)};
    out = {dimOf(batch), dimOf(query), heads, dimOf(valueDepth)};
    lse = {dimOf(batch), heads, dimOf(query)};
    scores = {batch, -1, query, key};
  }
  RuleTensor mask(Value mask) const {
    RuleTensor dims;
    ArrayRef<int64_t> shape = shapeOf(mask);
    for (size_t i = 0; i < shape.size(); ++i) {
      size_t dim = 4 - shape.size() + i;
      dims.push_back(shape[i] == 1 ? RuleDim{}
                     : dim == 1    ? heads
                                   : dimOf(scores[dim]));
    }
    return dims;
  }
};
} // namespace

ShardingRule AttentionOp::getShardingRule() {
  AttentionFactors f(getQ(), getK(), getV(), FactorKind::Parallel);
  f.rule.operands = {f.q, f.k, f.v};
  if (getMask())
    f.rule.operands.push_back(f.mask(getMask()));
  f.rule.results = {f.out, f.lse};
  return f.rule;
}
ShardingRule AttentionGradOp::getShardingRule() {
  AttentionFactors f(getQ(), getK(), getV(), FactorKind::Sum);
  f.rule.operands = {f.q, f.k, f.v, f.out, f.lse, f.out};
  if (getMask())
    f.rule.operands.push_back(f.mask(getMask()));
  f.rule.results = {f.q, f.k, f.v};
  f.rule.linear = {{5}};
  return f.rule;
}
static double attentionFlops(Value q, Value k, Value v) {
  ArrayRef<int64_t> qs = shapeOf(q), ks = shapeOf(k), vs = shapeOf(v);
  return 2.0 * qs[0] * qs[1] * qs[2] * ks[1] * (qs[3] + vs[3]);
}
double AttentionOp::getFlops() {
  return attentionFlops(getQ(), getK(), getV());
}
double AttentionGradOp::getFlops() {
  return 2.5 * attentionFlops(getQ(), getK(), getV());
}

ShardingRule RotaryOp::getShardingRule() {
  ShardingRule rule;
  ArrayRef<int64_t> x = shapeOf(getX());
  int b = addFactor(rule, x[0]), t = addFactor(rule, x[1]);
  int h = addFactor(rule, x[2]);
  int d = addFactor(rule, x[3], FactorKind::Whole);
  int half = addFactor(rule, shapeOf(getCos())[3], FactorKind::Whole);
  RuleTensor all = {dimOf(b), dimOf(t), dimOf(h), dimOf(d)};
  rule.operands = {all, broadcastOf(shapeOf(getCos()), {b, t, -1, half}),
                   broadcastOf(shapeOf(getSin()), {b, t, -1, half})};
  rule.results = {all};
  rule.linear = {{0}};
  return rule;
}

//===----------------------------------------------------------------------===//
// Windows: N parallel, channels parallel or contracted, space whole
//===----------------------------------------------------------------------===//

namespace {
// Factors of x [N, G*C, S], w [G*O, C, K], y [N, G*O, S'].
struct ConvFactors {
  ShardingRule rule;
  RuleTensor x, w, y;

  ConvFactors(Value xv, Value wv, Value yv, int64_t groups, FactorKind batch,
              FactorKind in, FactorKind out) {
    ArrayRef<int64_t> xs = shapeOf(xv), ws = shapeOf(wv), ys = shapeOf(yv);
    int n = addFactor(rule, xs[0], batch), g = addFactor(rule, groups);
    int c = addFactor(rule, ws[1], in),
        o = addFactor(rule, ws[0] / groups, out);
    RuleDim inDim = dimOf(g), outDim = dimOf(g);
    llvm::append_range(inDim, dimOf(c));
    llvm::append_range(outDim, dimOf(o));
    x = {dimOf(n), inDim};
    w = {outDim, dimOf(c)};
    y = {dimOf(n), outDim};
    auto space = [&](RuleTensor &tensor, ArrayRef<int64_t> shape) {
      llvm::append_range(tensor, tensorOf(addFactors(rule, shape.drop_front(2),
                                                     FactorKind::Whole)));
    };
    space(x, xs);
    space(w, ws);
    space(y, ys);
    rule.linear = {{0}, {1}};
  }
};
} // namespace

ShardingRule ConvOp::getShardingRule() {
  ConvFactors f(getX(), getW(), getY(), getGroup(), FactorKind::Parallel,
                FactorKind::Sum, FactorKind::Parallel);
  f.rule.operands = {f.x, f.w};
  f.rule.results = {f.y};
  return f.rule;
}
ShardingRule ConvGradInputOp::getShardingRule() {
  ConvFactors f(getDx(), getW(), getDy(), getGroup(), FactorKind::Parallel,
                FactorKind::Parallel, FactorKind::Sum);
  f.rule.operands = {f.y, f.w};
  f.rule.results = {f.x};
  return f.rule;
}
ShardingRule ConvGradWeightOp::getShardingRule() {
  ConvFactors f(getX(), getDw(), getDy(), getGroup(), FactorKind::Sum,
                FactorKind::Parallel, FactorKind::Parallel);
  f.rule.operands = {f.x, f.y};
  f.rule.results = {f.w};
  return f.rule;
}

// The local number of groups: local channels of x over those of one filter.
void ConvOp::localize(TypeRange, TypeRange) {
  setGroup(shapeOf(getX())[1] / shapeOf(getW())[1]);
}
void ConvGradInputOp::localize(TypeRange, TypeRange) {
  setGroup(shapeOf(getDx())[1] / shapeOf(getW())[1]);
}
void ConvGradWeightOp::localize(TypeRange, TypeRange) {
  setGroup(shapeOf(getX())[1] / shapeOf(getDw())[1]);
}

static double convFlops(Value y, Value w) {
  double flops = 2;
  for (int64_t size : shapeOf(y))
    flops *= static_cast<double>(size);
  for (int64_t size : shapeOf(w).drop_front())
    flops *= static_cast<double>(size);
  return flops;
}
double ConvOp::getFlops() { return convFlops(getY(), getW()); }
double ConvGradInputOp::getFlops() { return convFlops(getDy(), getW()); }
double ConvGradWeightOp::getFlops() { return convFlops(getDy(), getDw()); }

static ShardingRule poolRule(Operation *op, bool linear) {
  ShardingRule rule;
  ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  int n = addFactor(rule, shape[0]), c = addFactor(rule, shape[1]);
  auto tensor = [&](Value value) {
    RuleTensor dims = {dimOf(n), dimOf(c)};
    llvm::append_range(dims,
                       tensorOf(addFactors(rule, shapeOf(value).drop_front(2),
                                           FactorKind::Whole)));
    return dims;
  };
  for (Value operand : op->getOperands())
    rule.operands.push_back(tensor(operand));
  for (Value result : op->getResults())
    rule.results.push_back(tensor(result));
  if (linear)
    rule.linear = {{0}};
  return rule;
}
ShardingRule MaxPoolOp::getShardingRule() {
  return poolRule(getOperation(), false);
}
ShardingRule MaxPoolGradOp::getShardingRule() {
  return poolRule(getOperation(), true);
}
ShardingRule AvgPoolOp::getShardingRule() {
  return poolRule(getOperation(), true);
}
ShardingRule AvgPoolGradOp::getShardingRule() {
  return poolRule(getOperation(), true);
}

//===----------------------------------------------------------------------===//
// Batch statistics
//===----------------------------------------------------------------------===//

// Factors of a statistic: its first dimension is the samples.
static std::vector<int> statisticFactors(ShardingRule &rule, Value statistic) {
  ArrayRef<int64_t> shape = shapeOf(statistic);
  std::vector<int> factors = {addFactor(rule, shape[0], FactorKind::Samples)};
  llvm::append_range(factors, addFactors(rule, shape.drop_front()));
  return factors;
}
ShardingRule BatchMeanOp::getShardingRule() {
  ShardingRule rule;
  rule.operands = rule.results = {tensorOf(statisticFactors(rule, getX()))};
  rule.linear = {{0}};
  return rule;
}
ShardingRule TrackOp::getShardingRule() {
  ShardingRule rule;
  std::vector<int> factors = statisticFactors(rule, getStatistic());
  RuleTensor whole = tensorOf(factors);
  RuleTensor running(whole.begin() + 1, whole.end());
  rule.operands = {whole, running};
  rule.results = {running};
  return rule;
}

//===----------------------------------------------------------------------===//
// The update
//===----------------------------------------------------------------------===//

ShardingRule SquareSumOp::getShardingRule() {
  ShardingRule rule;
  rule.operands = {
      tensorOf(addFactors(rule, shapeOf(getX()), FactorKind::Sum))};
  rule.results = {RuleTensor(shapeOf(getY()).size())};
  return rule;
}
ShardingRule ClipFactorOp::getShardingRule() {
  ShardingRule rule;
  rule.operands = {
      tensorOf(addFactors(rule, shapeOf(getSquares()), FactorKind::Whole))};
  rule.results = {{}, {}};
  return rule;
}
