// Decides, before anything is emitted, where each value of an action is to be
// written: into the named value it is stored to, into its part of a
// concatenation, or (by default) into a buffer of its own.
#include "passes/Lowering/ActionLowering.h"
#include "passes/Lowering/KernelCalls.h"
#include "passes/Lowering/Pitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

// Ops whose kernels can add to what the output holds.
bool canAccumulate(Operation *op) {
  return op->hasTrait<Pointwise>() || op->hasTrait<AddsInPlace>() ||
         isa<dist::PlaceOp>(op);
}

} // namespace

void ActionLowering::assignDestinations() {
  Block &body = action_.getBody().front();
  for (Operation &op : body) {
    if (auto load = dyn_cast<pipe::LoadOp>(op))
      loaded_.insert(load.getValue());
    else if (auto update = dyn_cast<pipe::UpdateOp>(op)) {
      loaded_.insert(update.getParameter());
      for (Attribute state : update.getStates())
        loaded_.insert(cast<FlatSymbolRefAttr>(state).getValue());
    } else if (auto store = dyn_cast<pipe::StoreOp>(op)) {
      if (!store.getAccumulate() &&
          !overwritten_.insert(store.getValue()).second)
        loaded_.insert(store.getValue()); // stored twice: keep the order
    }
  }
  for (Operation &op : llvm::reverse(body)) {
    if (auto store = dyn_cast<pipe::StoreOp>(op))
      assignStore(store);
    else if (auto concat = dyn_cast<ConcatOp>(op))
      assignConcat(concat);
  }
}

void ActionLowering::assignStore(pipe::StoreOp store) {
  NamedValue *value = stage_.find(store.getValue());
  // A value that the action also reads is written at the store, not before.
  if (!value || !value->buffer || loaded_.contains(store.getValue()))
    return;
  Destination destination;
  destination.view =
      viewIn(value->buffer,
             cast<RankedTensorType>(store.getOperand().getType()).getShape());
  if (store.getAccumulate())
    destination.sum = value;
  if (assign(store.getOperand(), destination))
    stored_.insert(store);
}

void ActionLowering::assignConcat(ConcatOp concat) {
  Value result = concat.getResult();
  auto found = destinations_.find(result);
  View whole;
  if (found != destinations_.end() && !found->second.sum)
    whole = found->second.view;
  else
    whole = newBuffer(result.getType(), concat.getLoc());
  concats_[concat] = whole;
  int64_t axis = concat.getAxis();
  SmallVector<int64_t> starts(whole.shape.size(), 0);
  SmallVector<int64_t> steps(whole.shape.size(), 1);
  for (Value input : concat.getInputs()) {
    auto shape = cast<RankedTensorType>(input.getType()).getShape();
    assign(input, {sliceView(whole, starts, shape, steps)});
    starts[axis] += shape[axis];
  }
}

bool ActionLowering::assign(Value value, const Destination &destination) {
  Operation *op = value.getDefiningOp();
  if (!op || isa<pipe::LoadOp, ConstantOp>(op) || destinations_.contains(value))
    return false;
  if (destination.sum) {
    // Adding in place leaves no value for other users.
    if (!value.hasOneUse())
      return false;
    if (op->hasTrait<ViewLike>()) {
      if (auto reshape = dyn_cast<ReshapeOp>(op)) {
        auto view = reshapeView(
            destination.view,
            cast<RankedTensorType>(reshape.getX().getType()).getShape());
        return view && assign(reshape.getX(), {*view, destination.sum});
      }
      if (auto transpose = dyn_cast<TransposeOp>(op))
        return assign(transpose.getX(),
                      {unpermuteView(destination.view, transpose.getPerm()),
                       destination.sum});
      return false;
    }
    if (!canAccumulate(op))
      return false;
    destinations_[value] = destination;
    return true;
  }
  if (auto reshape = dyn_cast<ReshapeOp>(op)) {
    auto view = reshapeView(
        destination.view,
        cast<RankedTensorType>(reshape.getX().getType()).getShape());
    if (view && assign(reshape.getX(), {*view}))
      return true;
  } else if (auto transpose = dyn_cast<TransposeOp>(op)) {
    if (assign(transpose.getX(),
               {unpermuteView(destination.view, transpose.getPerm())}))
      return true;
  }
  destinations_[value] = destination;
  return true;
}

} // namespace merak::lowering
