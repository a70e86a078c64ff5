// Every op that a step can hold is computed somehow: an op that nobody lowers
// would be noticed by the first model that has it. The ops are those of the
// round trip, which the suite `dialects` holds to all definitions.
#include "passes/Lowering/ElementwiseToLinalg.h"
#include "passes/Lowering/LibraryCalls.h"
#include "passes/Lowering/ScalarBodies.h"

#include "dialects/Train/TrainDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/Parser/Parser.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

using namespace mlir;
using namespace merak::train;
using namespace merak::lowering;

namespace {

// Ops with a sharding rule that need neither kernel nor view, and why.
const std::map<StringRef, StringRef> kElsewhere = {
    {"train.batch_mean", "lower-batch-statistics takes it apart"},
    {"train.concat", "parts are written in place or copied"},
    {"train.constant", "an immediate value, or a buffer of the plan"},
    {"train.pad", "fill and copy"},
    {"train.read", "becomes pipe.load"},
    {"train.stop_gradient", "gone after differentiate"},
    {"train.track", "lower-batch-statistics takes it apart"},
    {"train.update", "becomes pipe.update"},
};

class Computed : public testing::Test {
protected:
  Computed() {
    context
        .loadDialect<TrainDialect, merak::plan::PlanDialect, func::FuncDialect,
                     arith::ArithDialect, math::MathDialect>();
    module = parseSourceFile<ModuleOp>(
        MERAK_SOURCE_DIR "/test/dialects/train-round-trip.mlir", &context);
  }
  void forEachOp(llvm::function_ref<void(Operation *)> look) {
    ASSERT_TRUE(module);
    module->walk([&](ShardingRuleOpInterface op) { look(op); });
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

// What a body sees of an operand: signless, 16 bits widened.
Type scalarOf(Value tensor) {
  Type type = signlessType(getElementTypeOrSelf(tensor));
  return isHalf(type) ? Float32Type::get(type.getContext()) : type;
}

// The type that the scalar body of an op yields; none without a body.
Type yielded(Operation *op) {
  Block block;
  for (Value operand : op->getOperands())
    block.addArgument(scalarOf(operand), op->getLoc());
  OpBuilder builder(op->getContext());
  builder.setInsertionPointToEnd(&block);
  Value value = emitScalarBody(builder, op, block.getArguments());
  return value ? value.getType() : Type();
}

bool isViewOrCall(Operation *op) {
  return op->hasTrait<ViewLike>() || isFusable(op) || libraryCallOf(op);
}

TEST_F(Computed, RoundTripHoldsEveryOp) {
  std::set<std::string> seen;
  forEachOp(
      [&](Operation *op) { seen.insert(op->getName().getStringRef().str()); });
  for (RegisteredOperationName name :
       context.getRegisteredOperationsByDialect("train")) {
    std::string op = name.getStringRef().str();
    if (name.hasInterface<ShardingRuleOpInterface>()) {
      EXPECT_TRUE(seen.count(op)) << op;
    }
  }
}

TEST_F(Computed, EveryPointwiseOpHasAScalarBody) {
  int looked = 0;
  forEachOp([&](Operation *op) {
    StringRef name = op->getName().getStringRef();
    if (!op->hasTrait<Pointwise>() || kElsewhere.count(name))
      return;
    ++looked;
    EXPECT_TRUE(yielded(op) ==
                signlessType(getElementTypeOrSelf(op->getResult(0))))
        << name.str() << " has no body of its type in ScalarBodies.cpp";
  });
  EXPECT_GT(looked, 40);
}

TEST_F(Computed, EveryOtherOpHasAKernelOrIsAView) {
  forEachOp([&](Operation *op) {
    StringRef name = op->getName().getStringRef();
    if (op->hasTrait<Pointwise>())
      return;
    EXPECT_EQ(isViewOrCall(op), !kElsewhere.count(name))
        << name.str() << ": expected a kernel or a reason to need none";
  });
}

} // namespace
