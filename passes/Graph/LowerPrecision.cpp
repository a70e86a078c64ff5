// bf16 for the bulk of the computation, f32 where digits matter.
//
// Every op is one of four kinds:
//   low      what runs on matrix units: operands are converted to bf16
//   follow   computes in the type its operands already have
//   any      takes bf16 operands and has f32 results
//   full     all others (sums, logarithms, powers, ...): operands are
//            converted to f32
// Parameters and constants have no say: they are converted to what the other
// operands are. Parameters stay f32 (the optimizer's copy), and so do the
// statistics of normalizations and their scales.
#include "dialects/Train/Builders.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"
#include "passes/Graph/Passes.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_LOWERPRECISION
#include "passes/Graph/Passes.h.inc"
} // namespace merak

namespace {

enum class Kind { Low, Follow, Any, Full };

Kind kindOf(Operation *op) {
  if (isa<EinsumOp, ConvOp, AttentionOp, GatherOp>(op))
    return Kind::Low;
  if (isa<StopGradientOp, NegOp, AbsOp, TanhOp, ErfOp, SigmoidOp, ReluOp,
          GeluOp, AddOp, SubOp, MulOp, DivOp, MaxOp, MinOp, CompareOp, SelectOp,
          DropoutOp, ReshapeOp, TransposeOp, ExpandOp, SliceOp, PadOp, ConcatOp,
          LayerNormOp, RmsNormOp, RotaryOp, MaxPoolOp, AvgPoolOp>(op))
    return Kind::Follow;
  return isa<SoftmaxCrossEntropyOp>(op) ? Kind::Any : Kind::Full;
}

// Operands that keep their type: scales and biases of normalizations, tables of
// a rotation, the mask of an attention, what a gather reads.
bool keepsType(OpOperand &operand) {
  unsigned first =
      llvm::TypeSwitch<Operation *, unsigned>(operand.getOwner())
          .Case<LayerNormOp, RmsNormOp, RotaryOp>([](Operation *) { return 1; })
          .Case([](AttentionOp) { return 3; })
          .Case([](GatherOp) { return 0; })
          .Default([](Operation *) { return ~0u; });
  return operand.getOperandNumber() >= first;
}

class Lowering {
public:
  explicit Lowering(func::FuncOp model)
      : model(model), module(model->getParentOfType<ModuleOp>()),
        low(BFloat16Type::get(model.getContext())),
        full(Float32Type::get(model.getContext())) {}

  LogicalResult run() {
    if (failed(check()))
      return failure();
    SmallVector<Operation *> ops;
    for (Operation &op : model.getBody().front().without_terminator())
      ops.push_back(&op);
    for (Operation *op : ops)
      visit(op);
    Operation *end = model.getBody().front().getTerminator();
    for (OpOperand &result : end->getOpOperands())
      convert(result, full);
    return success();
  }
  int64_t lowered = 0;

private:
  Type elementOf(Value value) { return getElementTypeOrSelf(value.getType()); }
  bool isFloat(Value value) { return isa<FloatType>(elementOf(value)); }

  // All that is not f32, at once.
  LogicalResult check() {
    LogicalResult result = success();
    auto expect = [&](Location loc, const Twine &what, Type type) {
      Type element = getElementTypeOrSelf(type);
      if (isa<FloatType>(element) && element != full) {
        emitError(loc) << "--precision=bf16 needs a model in f32, but " << what
                       << " is of type " << element;
        result = failure();
      }
    };
    for (auto parameter : module.getOps<ParameterOp>())
      expect(parameter.getLoc(), "'" + parameter.getSymName() + "'",
             parameter.getType());
    for (BlockArgument argument : model.getArguments()) {
      auto name = model.getArgAttrOfType<StringAttr>(argument.getArgNumber(),
                                                     "train.name");
      expect(model.getLoc(),
             "input '" + (name ? name.getValue() : StringRef("?")) + "'",
             argument.getType());
    }
    if (succeeded(result))
      for (Operation &op : model.getBody().front())
        for (Value value : op.getResults())
          expect(op.getLoc(),
                 "a result of '" + op.getName().getStringRef() + "'",
                 value.getType());
    return result;
  }

  // Parameters, constants, and what is made of them alone.
  bool isWeak(Value value) { return weak.contains(value); }

  void convert(OpOperand &operand, Type element) {
    Value value = operand.get();
    if (!isFloat(value) || elementOf(value) == element)
      return;
    Value &made = converted[value];
    if (!made) {
      OpBuilder b(operand.getOwner());
      auto type = cast<RankedTensorType>(value.getType()).clone(element);
      made = CastOp::create(b, value.getLoc(), type, value);
    }
    operand.set(made);
  }

  void setLow(Value result) {
    result.setType(cast<RankedTensorType>(result.getType()).clone(low));
    ++lowered;
  }

  void visit(Operation *op) {
    bool anyLow = false, anyStrong = false, allWeak = true;
    for (OpOperand &operand : op->getOpOperands())
      if (isFloat(operand.get()) && !keepsType(operand)) {
        bool isLow = elementOf(operand.get()) == low;
        anyLow |= isLow;
        anyStrong |= !isLow && !isWeak(operand.get());
        allWeak &= isWeak(operand.get());
      }
    Kind kind = kindOf(op);
    if (isa<ReadOp, ConstantOp>(op) ||
        (kind == Kind::Follow && allWeak &&
         llvm::all_of(op->getOperands(), [&](Value v) { return isWeak(v); }))) {
      weak.insert(op->result_begin(), op->result_end());
      return;
    }
    if (kind == Kind::Any)
      return;
    if (kind == Kind::Follow)
      kind = anyLow && !anyStrong ? Kind::Low : Kind::Full;
    for (OpOperand &operand : op->getOpOperands())
      if (!keepsType(operand))
        convert(operand, kind == Kind::Low ? Type(low) : full);
    if (kind != Kind::Low || !isFloat(op->getResult(0)))
      return;
    Value result = op->getResult(0);
    if (!isa<GatherOp>(op)) {
      setLow(result);
      return;
    }
    // Rows of an activation have its type.
    Value table = op->getOperand(0);
    if (elementOf(table) == low)
      setLow(result);
    if (elementOf(table) == low || !isWeak(table))
      return;
    // Those of a parameter are read in f32 and converted once.
    OpBuilder b(op->getContext());
    b.setInsertionPointAfter(op);
    auto type = cast<RankedTensorType>(result.getType()).clone(low);
    auto cast = CastOp::create(b, op->getLoc(), type, result);
    result.replaceAllUsesExcept(cast.getY(), cast);
    ++lowered;
  }

  func::FuncOp model;
  ModuleOp module;
  Type low, full;
  llvm::DenseSet<Value> weak;
  llvm::DenseMap<Value, Value> converted; // to its other type
};

struct LowerPrecisionPass
    : merak::impl::LowerPrecisionBase<LowerPrecisionPass> {
  void runOnOperation() override {
    auto model = getOperation().lookupSymbol<func::FuncOp>("model");
    if (!model) {
      getOperation().emitError("expected a function @model");
      return signalPassFailure();
    }
    Lowering lowering(model);
    if (failed(lowering.run()))
      return signalPassFailure();
    valuesLowered += lowering.lowered;
  }
};

} // namespace
