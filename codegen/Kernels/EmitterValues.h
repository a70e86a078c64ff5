// How a kernel computes values, whatever a place of it is: a point with lanes
// (EmitterState.h) or one thread's point of a grid (GridState.h). A place has
// an outer one, or none; `values` that are known there; and `before`, the loop
// under construction inside of it.
#pragma once

#include "codegen/Kernels/EmitterBase.h"

namespace merak::codegen::emitter {

template <typename Place> class ValueEmitter : protected EmitterBase {
protected:
  using EmitterBase::EmitterBase;
  ~ValueEmitter() = default;

  // The element that an access reads at a place.
  virtual Value load(unsigned access, Place &place) = 0;
  // The index of a dimension as bodies read it.
  virtual Value bodyIndex(int dim, Place &place) = 0;
  // The value of an op at a place that nothing outside of it has: computed, or
  // kept from an earlier pass.
  virtual Value produce(Value value, Place &place) {
    return compute(value, place);
  }

  // What `emit` makes at the place around `place`, in front of its loop.
  template <typename Emit> Value outside(Place &place, Emit emit) {
    OpBuilder::InsertionGuard guard(b);
    if (place.outer->before)
      b.setInsertionPoint(place.outer->before);
    return emit(*place.outer);
  }

  Value valueOf(Value value, Place &place) {
    if (Value known = place.values.lookup(value))
      return known;
    if (!isa<RankedTensorType>(value.getType()))
      return entryValue(value);
    if (auto fill = value.getDefiningOp<linalg::FillOp>())
      return entryValue(fill.getInputs()[0]);
    if (!value.getDefiningOp<linalg::GenericOp>())
      return entryValue(value);
    if (place.outer && !graph.variesInReduction(value))
      return outside(place,
                     [&](Place &outer) { return valueOf(value, outer); });
    Value produced = produce(value, place);
    return place.values[value] = produced;
  }

  Value compute(Value value, Place &place) {
    auto generic = value.getDefiningOp<linalg::GenericOp>();
    auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
    unsigned number = cast<OpResult>(value).getResultNumber();
    return bodyValue(generic, yield.getOperand(number), place);
  }

  Value operandOf(OpOperand &operand, Place &place) {
    auto access = graph.readAccess.find(&operand);
    if (access != graph.readAccess.end())
      return load(access->second, place);
    return valueOf(operand.get(), place);
  }

  Value bodyValue(linalg::GenericOp generic, Value value, Place &place) {
    if (Value known = place.values.lookup(value))
      return known;
    if (auto arg = dyn_cast<BlockArgument>(value)) {
      if (arg.getOwner() != generic.getBody())
        return entryValue(value);
      return operandOf(generic->getOpOperand(arg.getArgNumber()), place);
    }
    Operation *op = value.getDefiningOp();
    if (op->getBlock() != generic.getBody())
      return entryValue(value);
    Value result;
    if (auto index = dyn_cast<linalg::IndexOp>(op)) {
      int dim = graph.loops.find(generic)->second[index.getDim()];
      result = dim < 0 ? i64(0) : bodyIndex(dim, place);
    } else {
      SmallVector<Value> operands;
      for (Value operand : op->getOperands())
        operands.push_back(bodyValue(generic, operand, place));
      if (!failed)
        result = ops.emit(op, operands);
      if (!result) {
        failed = true;
        return value; // the caller stops before it is used
      }
    }
    return place.values[value] = result;
  }
};

} // namespace merak::codegen::emitter
