// In which operands element-wise ops are linear is said where they are defined.
// One that forgets it costs a reduction in front of it, and one that claims too
// much is wrong: both are found by computing the scalar bodies of the ops of
// the round trip, which the suite `dialects` holds to all definitions.
#include "passes/Lowering/ElementwiseToLinalg.h"
#include "passes/Lowering/ScalarBodies.h"

#include "dialects/Train/TrainDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Parser/Parser.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <set>

using namespace mlir;
using namespace merak::train;
using namespace merak::lowering;

namespace {

using Numbers = std::vector<double>; // by operand
using Groups = std::set<std::vector<int>>;

bool hasBody(Operation *op) {
  Block block;
  for (Value operand : op->getOperands())
    block.addArgument(signlessType(getElementTypeOrSelf(operand)),
                      op->getLoc());
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&block);
  return !!emitScalarBody(builder, op, block.getArguments());
}

// The scalar body of an op on numbers, folded to one; none where the body is
// not made of what folds.
std::optional<double> compute(Operation *op, const Numbers &numbers) {
  Block block;
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&block);
  SmallVector<Value> operands;
  for (auto [operand, number] : llvm::zip(op->getOperands(), numbers)) {
    Type type = signlessType(getElementTypeOrSelf(operand));
    type = isHalf(type) ? builder.getF32Type() : type;
    TypedAttr value = isa<FloatType>(type)
                          ? TypedAttr(builder.getFloatAttr(type, number))
                          : builder.getIntegerAttr(type, number > 0);
    operands.push_back(arith::ConstantOp::create(builder, op->getLoc(), value));
  }
  Value result = emitScalarBody(builder, op, operands);
  llvm::DenseMap<Value, Attribute> known;
  for (Operation &step : block) {
    SmallVector<Attribute> in;
    for (Value operand : step.getOperands())
      in.push_back(known.lookup(operand));
    SmallVector<OpFoldResult> folded;
    if (failed(step.fold(in, folded)) || folded.empty())
      return std::nullopt;
    for (auto [value, fold] : llvm::zip(step.getResults(), folded))
      known[value] = isa<Attribute>(fold) ? cast<Attribute>(fold)
                                          : known.lookup(cast<Value>(fold));
  }
  auto number = dyn_cast_or_null<FloatAttr>(known.lookup(result));
  if (!number)
    return std::nullopt;
  return number.getValueAsDouble();
}

// f(a + b) = f(a) + f(b), where a and b differ in the operands of the group.
// Multiples of an eighth: their sums are exact in 16 bits.
std::optional<bool> isLinear(Operation *op, const std::vector<int> &group) {
  std::mt19937 random(7);
  auto draw = [&] { return (int(random() % 31) - 15) / 8.0; };
  int defined = 0;
  for (int trial = 0; trial < 32; ++trial) {
    Numbers a, b, both;
    for (unsigned i = 0; i < op->getNumOperands(); ++i)
      a.push_back(draw());
    b = both = a;
    for (int i : group) {
      b[i] = draw();
      both[i] = a[i] + b[i];
    }
    auto fa = compute(op, a), fb = compute(op, b), sum = compute(op, both);
    // A logarithm of less than nothing, a division by zero.
    if (!fa || !fb || !sum || !std::isfinite(*fa + *fb + *sum))
      continue;
    ++defined;
    if (std::fabs(*fa + *fb - *sum) >= 1e-4 * (1 + std::fabs(*sum)))
      return false;
  }
  return defined > 3 ? std::optional<bool>(true) : std::nullopt;
}

std::vector<int> floatOperands(Operation *op) {
  std::vector<int> floats;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (isa<FloatType>(getElementTypeOrSelf(operand)))
      floats.push_back(static_cast<int>(i));
  return floats;
}

// The smallest groups in which an op is linear.
std::optional<Groups> linearGroups(Operation *op) {
  const std::vector<int> floats = floatOperands(op);
  Groups found;
  for (unsigned mask = 1; mask < 1u << floats.size(); ++mask) {
    std::vector<int> group;
    for (size_t i = 0; i < floats.size(); ++i)
      if (mask & 1u << i)
        group.push_back(floats[i]);
    std::optional<bool> linear = isLinear(op, group);
    if (!linear)
      return std::nullopt;
    if (*linear)
      found.insert(group);
  }
  return found;
}

TEST(Linearity, PointwiseOpsSayInWhichOperandsTheyAreLinear) {
  MLIRContext context;
  context.loadDialect<TrainDialect, func::FuncDialect, arith::ArithDialect,
                      math::MathDialect>();
  auto module = parseSourceFile<ModuleOp>(
      MERAK_SOURCE_DIR "/test/dialects/train-round-trip.mlir", &context);
  ASSERT_TRUE(module);
  int looked = 0, linear = 0;
  module->walk([&](ShardingRuleOpInterface op) {
    if (!op->hasTrait<Pointwise>() || op->getNumResults() != 1 ||
        !isa<FloatType>(getElementTypeOrSelf(op->getResult(0))) ||
        floatOperands(op).empty() || !hasBody(op))
      return;
    std::optional<Groups> found = linearGroups(op);
    const std::string name = op->getName().getStringRef().str();
    if (!found) {
      ADD_FAILURE() << name << ": its scalar body does not fold";
      return;
    }
    Groups said;
    for (const std::vector<int> &group : op.getShardingRule().linear)
      said.insert(group);
    EXPECT_EQ(said, *found) << name;
    ++looked;
    linear += !found->empty();
  });
  EXPECT_GT(looked, 25);
  EXPECT_GT(linear, 7);
}

} // namespace
