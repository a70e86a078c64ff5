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

// Whether all operands of which packs are loaded or stored begin at multiples
// of 16 bytes; where rows begin is a matter of the schedule.
void GridEmitter::emitAlignment() {
  if (schedule.pack == 1)
    return;
  Value bits;
  llvm::SmallDenseSet<unsigned> seen;
  for (auto [number, access] : llvm::enumerate(graph.accesses))
    if (isPacked(static_cast<unsigned>(number)) &&
        seen.insert(access.operand).second) {
      Value address = LLVM::PtrToIntOp::create(b, loc, b.getI64Type(),
                                               bases[access.operand]);
      bits =
          bits ? Value(arith::OrIOp::create(b, loc, bits, address)) : address;
    }
  aligned = isZero(arith::AndIOp::create(b, loc, bits, i64(15)));
}

// Two programs, of which a thread runs one: packs loaded and stored whole, and
// element by element in the same order. A choice at each pack would keep loads
// from being under way together.
void GridEmitter::emitBothWays(Value wholePacks,
                               llvm::function_ref<void()> emit) {
  auto branch = scf::IfOp::create(b, loc, wholePacks, /*withElse=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(branch.thenYield());
  inPacks = true;
  emit();
  b.setInsertionPoint(branch.elseYield());
  inPacks = false;
  if (!failed)
    emit();
}

unsigned GridEmitter::packAlignment(Type element) {
  return static_cast<unsigned>(std::min<int64_t>(
      schedule.pack * alignment(ops.memoryType(element)), 16));
}

// The elements of a pack as they lie in memory; of 16 bits two are a word.
VectorType GridEmitter::packType(Type element) {
  if (ScalarOps::isHalf(element))
    return VectorType::get({schedule.pack / 2}, b.getI32Type());
  return VectorType::get({schedule.pack}, ops.memoryType(element));
}

Value GridEmitter::packOf(unsigned number, Place &head) {
  if (Value known = head.packs.lookup(number))
    return known;
  Type element = graph.operands[graph.accesses[number].operand].element;
  return head.packs[number] = LLVM::LoadOp::create(b, loc, packType(element),
                                                   pointer(number, head),
                                                   packAlignment(element));
}

// A result without some of the kept dimensions is written where they are 0, and
// by those who have a place. Null: always.
Value GridEmitter::whereWritten(const Access &access, Place &place) {
  Value condition = place.valid;
  for (int dim : schedule.kept)
    if (Value index = indexOf(dim, place);
        index && access.strides[dim] == 0 && size(dim) > 1)
      condition = both(condition, isZero(index));
  return condition;
}

// Writes a pack of an output that does not accumulate.
void GridEmitter::storePack(unsigned output, llvm::ArrayRef<Value> values,
                            Place &head, Value condition) {
  unsigned number = graph.outputAccess[output];
  const Access &access = graph.accesses[number];
  const KernelOperand &operand = graph.operands[access.operand];
  condition = both(condition, whereWritten(access, head));
  Value address = pointer(number, head);
  Value whole = LLVM::UndefOp::create(b, loc, packType(operand.element));
  const size_t ofWord = ScalarOps::isHalf(operand.element) ? 2 : 1;
  for (size_t i = 0; i < values.size(); i += ofWord) {
    Value part = ofWord == 2
                     ? ops.toWord(values[i], values[i + 1], operand.element)
                     : ops.toMemory(values[i], operand.element);
    whole = LLVM::InsertElementOp::create(
        b, loc, whole, part, i64(static_cast<int64_t>(i / ofWord)));
  }
  OpBuilder::InsertionGuard guard(b);
  if (condition) {
    auto branch = scf::IfOp::create(b, loc, condition, /*withElse=*/false);
    b.setInsertionPoint(branch.thenYield());
  }
  LLVM::StoreOp::create(b, loc, whole, address, packAlignment(operand.element));
}

// Whether it is read from memory that no other point reads.
bool GridEmitter::isStream(unsigned number) const {
  const Access &access = graph.accesses[number];
  bool ofPoint = schedule.points == 1;
  for (int dim : schedule.kept)
    ofPoint |= access.strides[dim] != 0;
  return ofPoint && variesInReduced(access);
}

Value GridEmitter::load(unsigned number, Place &place) {
  if (Value known = place.loads.lookup(number))
    return known;
  const Access &access = graph.accesses[number];
  if (place.outer && !variesInReduced(access))
    return outside(place, [&](Place &outer) { return load(number, outer); });
  Type element = graph.operands[access.operand].element;
  Type memory = ops.memoryType(element);
  if (place.head && isPacked(number)) {
    Value pack = packOf(number, *place.head);
    const bool ofWord = ScalarOps::isHalf(element);
    Value part = LLVM::ExtractElementOp::create(
        b, loc, pack, i64(ofWord ? place.inPack / 2 : place.inPack));
    return place.loads[number] =
               ofWord ? ops.fromWord(part, place.inPack % 2 != 0, element)
                      : ops.fromMemory(part, element);
  }
  if (place.head && place.inPack > 0) // equal for all of the pack
    return place.loads[number] = load(number, *place.head);
  Value loaded = LLVM::LoadOp::create(b, loc, memory, pointer(number, place),
                                      static_cast<unsigned>(alignment(memory)));
  return place.loads[number] = ops.fromMemory(loaded, element);
}

void GridEmitter::store(unsigned output, Value value, Place &place,
                        Value condition) {
  unsigned number = graph.outputAccess[output];
  const Access &access = graph.accesses[number];
  const KernelOperand &operand = graph.operands[access.operand];
  condition = both(condition, whereWritten(access, place));
  Value address = pointer(number, place);
  OpBuilder::InsertionGuard guard(b);
  if (condition) {
    auto branch = scf::IfOp::create(b, loc, condition, /*withElse=*/false);
    b.setInsertionPoint(branch.thenYield());
  }
  Type memory = ops.memoryType(operand.element);
  unsigned align = static_cast<unsigned>(alignment(memory));
  if (operand.accumulate) {
    Value read = LLVM::LoadOp::create(b, loc, memory, address, align);
    Value old = ops.fromMemory(read, operand.element);
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
