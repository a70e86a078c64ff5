// Addresses, loads, stores and values of a grid kernel under construction.
#include "codegen/Kernels/GridState.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

namespace merak::codegen::emitter {

// Null if it is always 0.
Value GridEmitter::indexOf(int dim, Place &place) {
  if (place.index[dim])
    return place.index[dim];
  if (!place.outer)
    return nullptr;
  if (!llvm::is_contained(schedule.reduced, dim))
    return place.outer->index[dim];
  // The step counts through the reduced dimensions, the last fastest.
  Value rest = place.step;
  for (unsigned i = schedule.reduced.size(); i-- > 0;) {
    int d = schedule.reduced[i];
    bool isOutermost = i == 0;
    if (d == dim)
      return place.index[dim] =
                 asIndex(isOutermost ? rest : modulo(rest, size(d)));
    rest = dividedBy(rest, size(d));
  }
  return nullptr;
}

Value GridEmitter::pointer(unsigned number, Place &place) {
  Value &known = place.pointers[number];
  if (known)
    return known;
  const Access &access = graph.accesses[number];
  Value base = bases[access.operand];
  if (place.outer)
    base = outside(place, [&](Place &outer) { return pointer(number, outer); });
  Value offset;
  for (int dim : place.outer ? schedule.reduced : schedule.kept)
    if (access.strides[dim] != 0)
      offset = plusStrides(offset, indexOf(dim, place), access.strides[dim]);
  Value result = advance(base, access, offset);
  return place.pointers[number] = result;
}

Value GridEmitter::load(unsigned number, Place &place) {
  if (Value known = place.loads.lookup(number))
    return known;
  const Access &access = graph.accesses[number];
  if (place.outer && !variesInReduced(access))
    return outside(place, [&](Place &outer) { return load(number, outer); });
  Type element = graph.operands[access.operand].element;
  Type memory = ops.memoryType(element);
  Value loaded = LLVM::LoadOp::create(b, loc, memory, pointer(number, place),
                                      static_cast<unsigned>(alignment(memory)));
  return place.loads[number] = ops.fromMemory(loaded, element);
}

void GridEmitter::store(unsigned output, Value value, Place &place,
                        Value condition) {
  unsigned number = graph.outputAccess[output];
  const Access &access = graph.accesses[number];
  const KernelOperand &operand = graph.operands[access.operand];
  condition = both(condition, place.valid);
  // A result without some of the kept dimensions is written where they are 0.
  for (int dim : schedule.kept)
    if (Value index = indexOf(dim, place);
        index && access.strides[dim] == 0 && size(dim) > 1)
      condition = both(condition, isZero(index));
  Value address = pointer(number, place);
  OpBuilder::InsertionGuard guard(b);
  if (condition) {
    auto branch = scf::IfOp::create(b, loc, condition, /*withElse=*/false);
    b.setInsertionPoint(branch.thenYield());
  }
  Type memory = ops.memoryType(operand.element);
  unsigned align = static_cast<unsigned>(alignment(memory));
  if (operand.accumulate) {
    Value old = ops.fromMemory(
        LLVM::LoadOp::create(b, loc, memory, address, align), operand.element);
    value = added(old, value, operand);
  }
  LLVM::StoreOp::create(b, loc, ops.toMemory(value, operand.element), address,
                        align);
}

Value GridEmitter::bodyIndex(int dim, Place &place) {
  Value index = indexOf(dim, place);
  return index ? index : i64(0);
}

} // namespace merak::codegen::emitter
