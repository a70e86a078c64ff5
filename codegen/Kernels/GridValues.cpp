// Addresses, loads, stores and values of a grid kernel under construction.
#include "codegen/Kernels/GridState.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

namespace merak::codegen::emitter {

bool GridEmitter::variesInReduced(const Access &access) const {
  for (auto [stride, dim] : llvm::zip(access.strides, graph.dims))
    if (dim.reduced && stride != 0)
      return true;
  return false;
}

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
  if (place.outer) {
    OpBuilder::InsertionGuard guard(b);
    if (place.outer->before)
      b.setInsertionPoint(place.outer->before);
    base = pointer(number, *place.outer);
  }
  Value offset;
  for (int dim : place.outer ? schedule.reduced : schedule.kept) {
    Value index = access.strides[dim] ? indexOf(dim, place) : Value();
    if (!index)
      continue;
    Value part = mulI(index, access.strides[dim]);
    offset = offset ? addI(offset, part) : part;
  }
  if (!offset)
    return place.pointers[number] = base;
  Type type = ops.memoryType(graph.operands[access.operand].element);
  Value result = LLVM::GEPOp::create(b, loc, base.getType(), type, base,
                                     llvm::ArrayRef<LLVM::GEPArg>{offset});
  return place.pointers[number] = result;
}

Value GridEmitter::load(unsigned number, Place &place) {
  if (Value known = place.loads.lookup(number))
    return known;
  const Access &access = graph.accesses[number];
  if (place.outer && !variesInReduced(access)) {
    OpBuilder::InsertionGuard guard(b);
    if (place.outer->before)
      b.setInsertionPoint(place.outer->before);
    return load(number, *place.outer);
  }
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
    OperationState state(loc, isa<FloatType>(operand.element) ? "arith.addf"
                              : operand.element.isInteger(1)  ? "arith.ori"
                                                              : "arith.addi");
    state.addOperands({old, value});
    state.addTypes(value.getType());
    value = b.create(state)->getResult(0);
    if (operand.element.isBF16())
      value = ops.roundToBf16(value);
  }
  LLVM::StoreOp::create(b, loc, ops.toMemory(value, operand.element), address,
                        align);
}

Value GridEmitter::bodyValue(linalg::GenericOp generic, Value value,
                             Place &place) {
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
    result = dim < 0 ? Value() : indexOf(dim, place);
    if (!result)
      result = i64(0);
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

Value GridEmitter::operandOf(OpOperand &operand, Place &place) {
  auto access = graph.readAccess.find(&operand);
  if (access != graph.readAccess.end())
    return load(access->second, place);
  return valueOf(operand.get(), place);
}

Value GridEmitter::valueOf(Value value, Place &place) {
  if (Value known = place.values.lookup(value))
    return known;
  if (!isa<RankedTensorType>(value.getType()))
    return entryValue(value);
  if (auto fill = value.getDefiningOp<linalg::FillOp>())
    return entryValue(fill.getInputs()[0]);
  auto generic = value.getDefiningOp<linalg::GenericOp>();
  if (!generic)
    return entryValue(value);
  if (place.outer && !graph.variesInReduction(value)) {
    OpBuilder::InsertionGuard guard(b);
    if (place.outer->before)
      b.setInsertionPoint(place.outer->before);
    return valueOf(value, *place.outer);
  }
  auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
  unsigned number = cast<OpResult>(value).getResultNumber();
  return place.values[value] =
             bodyValue(generic, yield.getOperand(number), place);
}

} // namespace merak::codegen::emitter
