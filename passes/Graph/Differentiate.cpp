// Reverse-mode differentiation of the model into the training step.
//
//   func @model(inputs) -> loss      becomes      func @step(inputs) -> loss
//
// with forward ops, gradients (in reverse order of the forward ops) and one
// train.update per trained parameter. Each op gets a role: an op that some
// gradient of an activation needs is `backward_input`; the rest of the backward
// pass only feeds gradients of parameters and is `backward_weight`, so that a
// schedule may delay it.
#include "dialects/Train/Builders.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"
#include "passes/Graph/Passes.h"
#include "passes/Graph/ReverseMode.h"

using namespace mlir;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_DIFFERENTIATE
#include "passes/Graph/Passes.h.inc"
} // namespace merak

namespace {

class Differentiator {
public:
  Differentiator(func::FuncOp step, SymbolTable &symbols)
      : step(step), block(step.getBody().front()), symbols(symbols) {}

  LogicalResult run(Value loss, bool scaled) {
    for (Operation &op : block.without_terminator()) {
      op.setAttr(kIdAttr,
                 IntegerAttr::get(IntegerType::get(op.getContext(), 64),
                                  forward.size()));
      forward.push_back(&op);
    }
    markNeeded();
    if (!needed.contains(loss))
      return step.emitError(
          "the loss does not depend on any trained parameter");
    OpBuilder b(block.getTerminator());
    if (failed(reverse.run(b, forward, loss, scaled)))
      return failure();
    buildUpdates(b);
    assignRoles();
    return success();
  }

private:
  // Values that depend on a trained parameter, and whether on data as well.
  void markNeeded() {
    for (BlockArgument argument : block.getArguments())
      dataDependent.insert(argument);
    for (Operation *op : forward) {
      bool fromParameter = false, fromData = false;
      if (auto read = dyn_cast<ReadOp>(op))
        fromParameter =
            symbols.lookup<ParameterOp>(read.getParameter()).getTrainable();
      for (Value operand : op->getOperands()) {
        fromParameter |= needed.contains(operand);
        fromData |= dataDependent.contains(operand);
      }
      for (Value result : op->getResults()) {
        if (fromParameter && merak::isFloatTensor(result) &&
            !isa<StopGradientOp>(op))
          needed.insert(result);
        if (fromData)
          dataDependent.insert(result);
      }
    }
  }

  // One update per parameter; contributions are summed in the order of use.
  void buildUpdates(OpBuilder &b) {
    llvm::MapVector<StringAttr, SmallVector<ReadOp>> reads;
    for (Operation *op : forward)
      if (auto read = dyn_cast<ReadOp>(op))
        if (gradient.lookup(read.getResult()))
          reads[read.getParameterAttr().getAttr()].push_back(read);
    for (auto &[name, uses] : reads) {
      Value sum;
      for (ReadOp use : uses) {
        Value contribution = gradient.lookup(use.getResult());
        if (!sum) {
          sum = contribution;
          continue;
        }
        sum = AddOp::create(b, use.getLoc(), sum, contribution);
        updates.insert(sum.getDefiningOp());
      }
      updates.insert(UpdateOp::create(
          b, uses.front().getLoc(), uses.front().getResult(), sum,
          /*ids=*/Value(), uses.front().getParameterAttr()));
    }
  }

  void assignRoles() {
    // Gradients of activations: of values that depend on data.
    llvm::DenseSet<Operation *> critical;
    SmallVector<Operation *> work;
    llvm::DenseSet<Operation *> isForward(forward.begin(), forward.end());
    for (auto [value, grad] : gradient)
      if (dataDependent.contains(value))
        if (Operation *op = grad.getDefiningOp())
          work.push_back(op);
    while (!work.empty()) {
      Operation *op = work.pop_back_val();
      if (isForward.contains(op) || !critical.insert(op).second)
        continue;
      for (Value operand : op->getOperands())
        if (Operation *producer = operand.getDefiningOp())
          work.push_back(producer);
    }
    auto *context = step.getContext();
    for (Operation &op : block.without_terminator()) {
      StringRef role = isForward.contains(&op)  ? kForward
                       : updates.contains(&op)  ? kUpdate
                       : critical.contains(&op) ? kBackwardInput
                                                : kBackwardWeight;
      op.setAttr(kRoleAttr, StringAttr::get(context, role));
    }
  }

  func::FuncOp step;
  Block &block;
  SymbolTable &symbols;
  SmallVector<Operation *> forward;
  llvm::DenseSet<Value> needed, dataDependent;
  merak::ReverseMode reverse{needed};
  llvm::MapVector<Value, Value> &gradient = reverse.gradient;
  llvm::DenseSet<Operation *> updates;
};

struct DifferentiatePass : merak::impl::DifferentiateBase<DifferentiatePass> {
  using DifferentiateBase::DifferentiateBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto model = module.lookupSymbol<func::FuncOp>("model");
    if (!model) {
      module.emitError("expected a function @model");
      return signalPassFailure();
    }
    model.setName("step");
    SymbolTable symbols(module);
    if (!train) {
      removeStops(model);
      model.walk([&](Operation *op) {
        if (op->getNumResults())
          op->setAttr(kRoleAttr, StringAttr::get(&getContext(), kForward));
      });
      return;
    }
    Operation *terminator = model.getBody().front().getTerminator();
    Value loss = terminator->getOperand(0);
    const bool scaled = ConfigAttr::of(module).scalesLoss();
    if (failed(Differentiator(model, symbols).run(loss, scaled)))
      return signalPassFailure();
    removeStops(model);
    removeDeadOps(model);
  }

  // They have done what they are for.
  void removeStops(func::FuncOp step) {
    step.walk([](StopGradientOp stop) {
      stop.replaceAllUsesWith(stop.getOperand());
      stop.erase();
    });
  }

  // Gradients of operands nobody asked for (a saved mean, say).
  void removeDeadOps(func::FuncOp step) {
    SmallVector<Operation *> ops;
    step.walk([&](Operation *op) { ops.push_back(op); });
    for (Operation *op : llvm::reverse(ops))
      if (isOpTriviallyDead(op)) {
        op->erase();
        ++opsRemoved;
      }
  }
};

} // namespace
