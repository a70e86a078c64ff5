// Sharding rules of element-wise, shape, reduction and contraction ops.
#include "dialects/Train/RuleBuilder.h"
#include "mlir/IR/TypeUtilities.h"
#include <numeric>

using namespace mlir;
using namespace merak;
using namespace merak::train;

static bool isZero(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  auto dense = constant ? dyn_cast<DenseElementsAttr>(constant.getValue())
                        : DenseElementsAttr();
  return dense && dense.isSplat() && isa<FloatType>(dense.getElementType()) &&
         dense.getSplatValue<APFloat>().isZero();
}

ShardingRule
merak::train::elementwiseRule(Operation *op,
                              std::vector<std::vector<int>> linear) {
  std::vector<Shape> operands;
  for (Value operand : op->getOperands())
    operands.push_back(shapeOf(operand));
  return merak::elementwiseRule(operands, shapeOf(op->getResult(0)),
                                std::move(linear));
}

ShardingRule SelectOp::getShardingRule() {
  std::vector<std::vector<int>> linear = {{1, 2}};
  // Zero is the sum of zeros.
  for (int i : {1, 2})
    if (isZero(getOperand(3 - i)))
      linear.push_back({i});
  return elementwiseRule(getOperation(), std::move(linear));
}

// Between floats; sums of integers are none of their roundings.
ShardingRule CastOp::getShardingRule() {
  const bool floats = isa<FloatType>(getElementTypeOrSelf(getX())) &&
                      isa<FloatType>(getElementTypeOrSelf(getY()));
  return elementwiseRule(getOperation(),
                         floats ? std::vector<std::vector<int>>{{0}}
                                : std::vector<std::vector<int>>{});
}

ShardingRule LossScaleOp::getShardingRule() {
  return elementwiseRule(getOperation(), {{0}});
}

// The same mask on every summand, so sums may stay partial.
ShardingRule DropoutOp::getShardingRule() {
  return elementwiseRule(getOperation(), {{0}});
}
// Ten rounds of two products and four xors for four elements, and the choice.
double DropoutOp::getFlops() {
  return 20.0 * cast<RankedTensorType>(getY().getType()).getNumElements();
}

// An op without operands: every dimension is free.
static ShardingRule leafRule(Value value) {
  ShardingRule rule;
  rule.results.push_back(tensorOf(addFactors(rule, shapeOf(value))));
  return rule;
}
ShardingRule ReadOp::getShardingRule() { return leafRule(getResult()); }
ShardingRule ConstantOp::getShardingRule() { return leafRule(getResult()); }
//===----------------------------------------------------------------------===//
// Shape
//===----------------------------------------------------------------------===//

ShardingRule ReshapeOp::getShardingRule() {
  return reshapeRule(shapeOf(getX()), shapeOf(getY()));
}

ShardingRule TransposeOp::getShardingRule() {
  return transposeRule(shapeOf(getX()), getPerm());
}

ShardingRule ExpandOp::getShardingRule() {
  return elementwiseRule(getOperation(), {{0}});
}

// A dimension n = (n/g whole) x (g parallel), where g divides every boundary:
// a cut of 192 into three 64s keeps the 64 splittable.
static RuleDim gridDim(ShardingRule &rule, int64_t size, int64_t grain,
                       int factor) {
  RuleDim dim;
  if (size / grain > 1)
    dim.push_back(rule.add(size / grain, FactorKind::Whole));
  if (grain > 1)
    dim.push_back(factor);
  return dim;
}
static int64_t scaled(int64_t position, int64_t local, int64_t global) {
  return global == 0 ? position : position * local / global;
}

ShardingRule SliceOp::getShardingRule() {
  ShardingRule rule;
  RuleTensor in, out;
  ArrayRef<int64_t> shape = shapeOf(getX());
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t start = getStarts()[i], size = getSizes()[i];
    if (size == shape[i] && getSteps()[i] == 1) {
      int factor = addFactor(rule, size);
      in.push_back(dimOf(factor));
      out.push_back(dimOf(factor));
      continue;
    }
    int64_t grain =
        getSteps()[i] != 1 ? 1 : std::gcd(std::gcd(start, size), shape[i]);
    int factor = grain > 1 ? rule.add(grain) : -1;
    in.push_back(gridDim(rule, shape[i], grain, factor));
    out.push_back(gridDim(rule, size, grain, factor));
  }
  rule.operands = {in};
  rule.results = {out};
  rule.linear = {{0}};
  return rule;
}
void SliceOp::localize(TypeRange globalOperands, TypeRange) {
  ArrayRef<int64_t> local = shapeOf(getX());
  auto global = cast<RankedTensorType>(globalOperands[0]);
  SmallVector<int64_t> starts(getStarts()), sizes(getSizes());
  for (size_t i = 0; i < local.size(); ++i) {
    starts[i] = scaled(starts[i], local[i], global.getDimSize(i));
    sizes[i] = scaled(sizes[i], local[i], global.getDimSize(i));
  }
  setStarts(starts);
  setSizes(sizes);
}

ShardingRule PadOp::getShardingRule() {
  ShardingRule rule;
  RuleTensor in, out;
  ArrayRef<int64_t> shape = shapeOf(getX()), result = shapeOf(getY());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == result[i]) {
      int factor = addFactor(rule, shape[i]);
      in.push_back(dimOf(factor));
      out.push_back(dimOf(factor));
      continue;
    }
    int64_t grain =
        getInterior()[i] != 0
            ? 1
            : std::gcd(std::gcd(getLow()[i], getHigh()[i]), shape[i]);
    int factor = grain > 1 ? rule.add(grain) : -1;
    in.push_back(gridDim(rule, shape[i], grain, factor));
    out.push_back(gridDim(rule, result[i], grain, factor));
  }
  rule.operands = {in};
  rule.results = {out};
  if (getValue().isZero())
    rule.linear = {{0}};
  return rule;
}
void PadOp::localize(TypeRange globalOperands, TypeRange) {
  ArrayRef<int64_t> local = shapeOf(getX());
  auto global = cast<RankedTensorType>(globalOperands[0]);
  SmallVector<int64_t> low(getLow()), high(getHigh());
  for (size_t i = 0; i < local.size(); ++i) {
    low[i] = scaled(low[i], local[i], global.getDimSize(i));
    high[i] = scaled(high[i], local[i], global.getDimSize(i));
  }
  setLow(low);
  setHigh(high);
}

ShardingRule ConcatOp::getShardingRule() {
  ShardingRule rule;
  ArrayRef<int64_t> result = shapeOf(getY());
  int64_t grain = 0;
  for (Value input : getInputs())
    grain = std::gcd(grain, shapeOf(input)[getAxis()]);
  grain = std::max<int64_t>(grain, 1);
  int grainFactor = grain > 1 ? rule.add(grain) : -1;
  std::vector<int> others;
  for (size_t i = 0; i < result.size(); ++i)
    others.push_back(i == getAxis() ? -1 : addFactor(rule, result[i]));
  auto tensor = [&](ArrayRef<int64_t> shape) {
    RuleTensor dims = tensorOf(others);
    dims[getAxis()] = gridDim(rule, shape[getAxis()], grain, grainFactor);
    return dims;
  };
  std::vector<int> all;
  for (auto [index, input] : llvm::enumerate(getInputs())) {
    rule.operands.push_back(tensor(shapeOf(input)));
    all.push_back(static_cast<int>(index));
  }
  rule.results = {tensor(result)};
  rule.linear = {all};
  return rule;
}

//===----------------------------------------------------------------------===//
// Tables. The indexed factor (rows, columns) is factor 0: when it is split the
// partitioner sets `split_axis`.
//===----------------------------------------------------------------------===//

struct TableDims {
  RuleTensor table, ids, rows; // rows: what is gathered or scattered
};

static TableDims addTableDims(ShardingRule &rule, int row, Value table,
                              Value ids, int64_t axis, int64_t batch,
                              FactorKind idKind) {
  ArrayRef<int64_t> shape = shapeOf(table);
  std::vector<int> before = addFactors(rule, shape.take_front(axis));
  std::vector<int> id =
      addFactors(rule, shapeOf(ids).drop_front(batch), idKind);
  std::vector<int> after = addFactors(rule, shape.drop_front(axis + 1));
  TableDims dims;
  dims.table = dims.rows = tensorOf(before);
  dims.ids.assign(dims.table.begin(), dims.table.begin() + batch);
  dims.table.push_back({row});
  llvm::append_range(dims.ids, tensorOf(id));
  llvm::append_range(dims.rows, tensorOf(id));
  for (RuleTensor *tensor : {&dims.table, &dims.rows})
    llvm::append_range(*tensor, tensorOf(after));
  return dims;
}

// Element by element, and not on partial sums: the gradient is reduced before.
// Of a row-sparse one every rank has all rows and takes those that it holds.
ShardingRule UpdateOp::getShardingRule() {
  ShardingRule rule;
  if (Value ids = getIds()) {
    int row = rule.add(shapeOf(getParameterValue()).front());
    rule.factors[row].ranged = true;
    TableDims dims = addTableDims(rule, row, getParameterValue(), ids,
                                  /*axis=*/0, /*batch=*/0, FactorKind::Whole);
    rule.operands = {dims.table, dims.rows, dims.ids};
    return rule;
  }
  RuleTensor tensor = tensorOf(addFactors(rule, shapeOf(getGradient())));
  rule.operands = {tensor, tensor};
  return rule;
}

// Which slices are added depends on data. The places of the sums are no
// samples.
ShardingRule CoalesceOp::getShardingRule() {
  ShardingRule rule;
  ArrayRef<int64_t> ids = shapeOf(getIds());
  std::vector<int> from = addFactors(rule, ids, FactorKind::Whole),
                   to = addFactors(rule, ids, FactorKind::Whole),
                   columns = addFactors(
                       rule, shapeOf(getDy()).drop_front(ids.size()));
  RuleTensor dy = tensorOf(from), rows = tensorOf(to);
  llvm::append_range(dy, tensorOf(columns));
  llvm::append_range(rows, tensorOf(columns));
  rule.operands = {dy, tensorOf(from)};
  rule.results = {rows, tensorOf(to)};
  return rule;
}

ShardingRule SplitIdsOp::getShardingRule() {
  ShardingRule rule;
  RuleTensor ids = tensorOf(addFactors(rule, shapeOf(getIds())));
  rule.operands = {
      ids, tensorOf(addFactors(rule, shapeOf(getNamed()), FactorKind::Whole))};
  rule.results = {ids, ids};
  return rule;
}

ShardingRule GatherOp::getShardingRule() {
  ShardingRule rule;
  int row = rule.add(shapeOf(getTable())[getAxis()], FactorKind::Sum);
  rule.factors[row].ranged = true;
  TableDims dims = addTableDims(rule, row, getTable(), getIds(), getAxis(),
                                getBatch(), FactorKind::Parallel);
  rule.operands = {dims.table, dims.ids};
  rule.results = {dims.rows};
  return rule;
}
void GatherOp::localize(TypeRange globalOperands, TypeRange) {
  if (!getRows())
    setRows(cast<RankedTensorType>(globalOperands[0]).getDimSize(getAxis()));
}

ShardingRule ScatterAddOp::getShardingRule() {
  ShardingRule rule;
  int row = rule.add(shapeOf(getTable())[getAxis()]);
  rule.factors[row].ranged = true;
  TableDims dims = addTableDims(rule, row, getTable(), getIds(), getAxis(),
                                getBatch(), FactorKind::Sum);
  rule.operands = {dims.rows, dims.ids};
  rule.results = {dims.table};
  rule.linear = {{0}};
  return rule;
}
void ScatterAddOp::localize(TypeRange, TypeRange globalResults) {
  if (!getRows())
    setRows(cast<RankedTensorType>(globalResults[0]).getDimSize(getAxis()));
}

// Columns are independent; which rows an update changes depends on data.
ShardingRule ScatterReduceOp::getShardingRule() {
  ShardingRule rule;
  int row = rule.add(shapeOf(getTable())[getBatch()], FactorKind::Whole);
  TableDims dims = addTableDims(rule, row, getTable(), getIds(), getBatch(),
                                getBatch(), FactorKind::Whole);
  rule.operands = {dims.rows, dims.ids};
  rule.results = {dims.table};
  return rule;
}

// Rows are independent; the whole row is needed to order it.
ShardingRule TopKOp::getShardingRule() {
  ShardingRule rule;
  ArrayRef<int64_t> shape = shapeOf(getX());
  std::vector<int> rows = addFactors(rule, shape.drop_back());
  RuleTensor in = tensorOf(rows), out = tensorOf(rows);
  in.push_back(dimOf(addFactor(rule, shape.back(), FactorKind::Whole)));
  out.push_back(
      dimOf(addFactor(rule, shapeOf(getValues()).back(), FactorKind::Whole)));
  rule.operands = {in};
  rule.results = {out, out};
  return rule;
}

//===----------------------------------------------------------------------===//
// Reductions and contractions
//===----------------------------------------------------------------------===//

ShardingRule ReduceSumOp::getShardingRule() {
  return reduceRule(shapeOf(getX()), getAxes(), getKeepdims(), FactorKind::Sum);
}
ShardingRule ReduceMaxOp::getShardingRule() {
  return reduceRule(shapeOf(getX()), getAxes(), getKeepdims(), FactorKind::Max);
}

ShardingRule EinsumOp::getShardingRule() {
  return einsumRule(getEquation(), {shapeOf(getLhs()), shapeOf(getRhs())},
                    shapeOf(getResult()));
}
double EinsumOp::getFlops() {
  Letters letters = getLetters();
  std::map<char, int64_t> sizes;
  for (auto [index, letter] : llvm::enumerate(letters.lhs))
    sizes[letter] = shapeOf(getLhs())[index];
  for (auto [index, letter] : llvm::enumerate(letters.rhs))
    sizes[letter] = shapeOf(getRhs())[index];
  double flops = 2;
  for (auto [letter, size] : sizes)
    flops *= static_cast<double>(size);
  return flops;
}
