// Addresses, loads, stores and values of a kernel under construction.
#include "codegen/Kernels/EmitterState.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace merak::codegen::emitter {

//===----------------------------------------------------------------------===//
// Addresses, loads and stores
//===----------------------------------------------------------------------===//

// Index of a dimension of the run from the index into the run.
Value Emitter::runDimIndex(int dim, Frame &frame) {
  Value &known = frame.index[dim];
  if (known)
    return known;
  int64_t inner = 1;
  unsigned position = 0;
  for (unsigned i = schedule.run.size(); i-- > 0;) {
    if (schedule.run[i] == dim) {
      position = i;
      break;
    }
    inner *= size(schedule.run[i]);
  }
  Value index = frame.runIndex;
  if (inner != 1)
    index = arith::DivUIOp::create(b, loc, index, i64(inner));
  if (position != 0)
    index = arith::RemUIOp::create(b, loc, index, i64(size(dim)));
  return known = index;
}

// The index of `dim` at lane 0; null if it is always 0.
Value Emitter::indexOf(int dim, Frame &frame) {
  if (frame.index[dim])
    return frame.index[dim];
  if (frame.outer && llvm::is_contained(schedule.run, dim))
    return runDimIndex(dim, frame);
  return frame.outer ? frame.outer->index[dim] : Value();
}

// The index of `dim` in every lane: a vector along the dimension of the lanes,
// else a scalar. If the run has several dimensions and the innermost is no
// multiple of the lanes, a vector spans several of its rows.
Value Emitter::laneIndexOf(int dim, Frame &frame) {
  bool inRun = frame.outer && llvm::is_contained(schedule.run, dim);
  if (inRun && crossesLanes()) {
    if (frame.laneIndex.empty()) {
      Value l = addI(ops.splat(frame.runIndex), lanes());
      Type type = l.getType();
      frame.laneIndex.assign(graph.dims.size(), nullptr);
      int64_t inner = 1;
      for (unsigned i = schedule.run.size(); i-- > 0;) {
        int d = schedule.run[i];
        Value index = l;
        if (inner != 1)
          index = arith::DivUIOp::create(b, loc, index,
                                         ops.constantInt(type, inner));
        if (i != 0)
          index = arith::RemUIOp::create(b, loc, index,
                                         ops.constantInt(type, size(d)));
        frame.laneIndex[d] = index;
        inner *= size(d);
      }
    }
    return frame.laneIndex[dim];
  }
  Value index = indexOf(dim, frame);
  if (!index)
    index = i64(0);
  bool alongLanes = schedule.lanesInRun
                        ? frame.outer && dim == schedule.run.back()
                        : dim == schedule.laneDim();
  return alongLanes ? addI(ops.splat(index), lanes()) : index;
}

bool Emitter::isLinearInRun(const Access &access) const {
  for (unsigned i = 0; i + 1 < schedule.run.size(); ++i)
    if (access.strides[schedule.run[i]] !=
        access.strides[schedule.run[i + 1]] * size(schedule.run[i + 1]))
      return false;
  return true;
}

// Elements from one lane to the next; none: not the same for all lanes.
std::optional<int64_t> Emitter::laneStride(const Access &access,
                                           const Frame &frame) {
  if (!schedule.lanesInRun)
    return schedule.kept.empty() ? 0 : access.strides[schedule.kept.back()];
  if (!frame.outer)
    return 0;
  if (isLinearInRun(access) || !crossesLanes())
    return access.strides[schedule.run.back()];
  return std::nullopt;
}

// Address of lane 0 (and of every lane if the access does not vary).
Value Emitter::pointer(unsigned number, Frame &frame) {
  Value &known = frame.pointers[number];
  if (known)
    return known;
  const Access &access = graph.accesses[number];
  Value base = bases[access.operand];
  Value offset;
  auto add = [&](Value index, int64_t stride) {
    offset = plusStrides(offset, index, stride);
  };
  if (frame.outer) {
    base = outside(frame, [&](Frame &outer) { return pointer(number, outer); });
    for (int dim : schedule.outerReduced)
      add(frame.index[dim], access.strides[dim]);
    if (isLinearInRun(access))
      add(frame.runIndex, access.strides[schedule.run.back()]);
    else
      for (int dim : schedule.run)
        if (access.strides[dim] != 0 && !crossesLanes())
          add(runDimIndex(dim, frame), access.strides[dim]);
  } else {
    for (int dim : schedule.kept)
      add(frame.index[dim], access.strides[dim]);
  }
  Value result = advance(base, access, offset);
  return frame.pointers[number] = result;
}

// The address of each lane where lanes are not adjacent.
Value Emitter::gatherPointers(unsigned number, Frame &frame) {
  const Access &access = graph.accesses[number];
  Value base = pointer(number, frame);
  Type type = ops.memoryType(graph.operands[access.operand].element);
  Value offsets;
  if (std::optional<int64_t> stride = laneStride(access, frame)) {
    // Constant offsets, 32 bits where they fit: half the gathers.
    bool fits = std::abs(*stride) < (int64_t(1) << 26);
    Type index = fits ? b.getI32Type() : b.getI64Type();
    auto vector = VectorType::get({kLanes}, index);
    SmallVector<Attribute> values;
    for (int64_t i = 0; i < kLanes; ++i)
      values.push_back(b.getIntegerAttr(index, i * *stride));
    offsets = arith::ConstantOp::create(b, loc, vector,
                                        DenseElementsAttr::get(vector, values));
  } else {
    for (int dim : schedule.run) {
      int64_t stride = access.strides[dim];
      if (stride == 0)
        continue;
      Value index = laneIndexOf(dim, frame);
      Value part = arith::MulIOp::create(
          b, loc, index, ops.constantInt(index.getType(), stride));
      offsets = offsets ? addI(offsets, part) : part;
    }
  }
  Type pointers = VectorType::get({kLanes}, base.getType());
  return LLVM::GEPOp::create(b, loc, pointers, type, base,
                             llvm::ArrayRef<LLVM::GEPArg>{offsets});
}

Value Emitter::mask(int64_t active) {
  SmallVector<bool> bits(kLanes);
  for (int64_t i = 0; i < kLanes; ++i)
    bits[i] = i < active;
  auto type = VectorType::get({kLanes}, b.getI1Type());
  return arith::ConstantOp::create(
      b, loc, type, DenseElementsAttr::get(type, llvm::ArrayRef<bool>(bits)));
}

Value Emitter::load(unsigned number, Frame &frame) {
  if (Value known = frame.loads.lookup(number))
    return known;
  const Access &access = graph.accesses[number];
  if (frame.outer && !variesInReduced(access))
    return outside(frame, [&](Frame &outer) { return load(number, outer); });
  Type element = graph.operands[access.operand].element;
  Type memory = ops.memoryType(element);
  auto vector = VectorType::get({kLanes}, memory);
  std::optional<int64_t> stride = laneStride(access, frame);
  int64_t align = alignment(memory);
  Value result;
  auto zeros = [&]() -> Value {
    return ops.constant(vector, b.getZeroAttr(memory));
  };
  if (stride && *stride == 0) {
    result = LLVM::LoadOp::create(b, loc, memory, pointer(number, frame),
                                  static_cast<unsigned>(align));
  } else if (stride && *stride == 1 && frame.active == kLanes) {
    result = LLVM::LoadOp::create(b, loc, vector, pointer(number, frame),
                                  static_cast<unsigned>(align));
  } else if (stride && *stride == 1) {
    result = LLVM::MaskedLoadOp::create(b, loc, vector, pointer(number, frame),
                                        mask(frame.active), zeros(),
                                        static_cast<uint32_t>(align), false);
  } else {
    Value pointers = gatherPointers(number, frame);
    result = LLVM::masked_gather::create(
        b, loc, vector, pointers, mask(frame.active), ValueRange{zeros()},
        static_cast<uint32_t>(align));
  }
  return frame.loads[number] = ops.fromMemory(result, element);
}

// Down a column every step touches another page, where hardware does not
// prefetch: asks for what a later step reads.
void Emitter::prefetchAhead(Frame &frame) {
  constexpr int64_t kAhead = 16; // steps
  if (schedule.runLength < 2 * kAhead)
    return;
  for (unsigned number = 0; number < graph.accesses.size(); ++number) {
    const Access &access = graph.accesses[number];
    int64_t stride = access.strides[schedule.run.back()];
    if (!frame.loads.contains(number) || stride == 0 ||
        access.strides[schedule.kept.back()] != 1)
      continue;
    Value here = pointer(number, frame);
    Type type = ops.memoryType(graph.operands[access.operand].element);
    Value there =
        LLVM::GEPOp::create(b, loc, here.getType(), type, here,
                            llvm::ArrayRef<LLVM::GEPArg>{i64(stride * kAhead)});
    LLVM::Prefetch::create(b, loc, there, /*rw=*/0, /*hint=*/3, /*cache=*/1);
  }
}

void Emitter::store(unsigned output, Value value, Frame &frame) {
  unsigned number = graph.outputAccess[output];
  const Access &access = graph.accesses[number];
  const KernelOperand &operand = graph.operands[access.operand];
  Type memory = ops.memoryType(operand.element);
  std::optional<int64_t> stride = laneStride(access, frame);
  bool perLane = !stride || *stride != 0;
  int64_t align = alignment(memory);

  // A result without some of the kept dimensions is written where they are 0.
  Value condition;
  for (int dim : schedule.kept) {
    Value index = indexOf(dim, frame);
    if (access.strides[dim] != 0 || size(dim) <= 1 || !index)
      continue;
    condition =
        both(condition, arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq,
                                              index, i64(0)));
  }
  OpBuilder::InsertionGuard guard(b);
  if (condition) {
    auto branch = scf::IfOp::create(b, loc, condition, /*withElse=*/false);
    b.setInsertionPoint(branch.thenYield());
  }
  if (!perLane && isa<VectorType>(value.getType()))
    value = vector::ExtractOp::create(b, loc, value, int64_t(0));
  if (perLane)
    value = ops.splat(value);
  // Addresses and old values are for this place alone if it is conditional.
  Frame local;
  Frame &place = condition ? (local = frame, local) : frame;
  if (operand.accumulate) {
    place.loads.erase(number);
    Value old = load(number, place);
    if (perLane)
      old = ops.splat(old);
    value = added(old, value, operand);
  }
  value = ops.toMemory(value, operand.element);
  if (!perLane || (stride && *stride == 1 && frame.active == kLanes))
    LLVM::StoreOp::create(b, loc, value, pointer(number, place),
                          static_cast<unsigned>(align));
  else if (stride && *stride == 1 && frame.active == 1)
    // LLVM 22 makes a store of the register's width of a masked one whose
    // elements are narrower: 4 bytes of a bf16.
    LLVM::StoreOp::create(b, loc,
                          vector::ExtractOp::create(b, loc, value, int64_t(0)),
                          pointer(number, place), static_cast<unsigned>(align));
  else if (stride && *stride == 1)
    LLVM::MaskedStoreOp::create(b, loc, value, pointer(number, place),
                                mask(frame.active),
                                static_cast<uint32_t>(align));
  else
    LLVM::masked_scatter::create(b, loc, value, gatherPointers(number, place),
                                 mask(frame.active),
                                 static_cast<uint32_t>(align));
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

// Of a reduction's pass that a later one reads again: in a buffer of one run.
Value Emitter::produce(Value value, Frame &frame) {
  auto kept = scratchPass.find(value);
  if (kept == scratchPass.end() || !frame.outer)
    return compute(value, frame);
  Type element = cast<RankedTensorType>(value.getType()).getElementType();
  Type type = ops.scalarType(element);
  if (type.isInteger(1))
    type = b.getI8Type();
  Value slot = LLVM::GEPOp::create(
      b, loc, scratch[value].getType(), type, scratch[value],
      llvm::ArrayRef<LLVM::GEPArg>{frame.runIndex});
  if (kept->second < pass) {
    Type vector = VectorType::get({kLanes}, type);
    Value loaded = LLVM::LoadOp::create(b, loc, vector, slot,
                                        static_cast<unsigned>(alignment(type)));
    return element.isInteger(1) ? ops.fromMemory(loaded, b.getI1Type())
                                : loaded;
  }
  Value result = compute(value, frame);
  if (failed)
    return result;
  Value stored = ops.splat(result);
  if (getElementTypeOrSelf(stored.getType()).isInteger(1))
    stored = ops.toMemory(stored, b.getI1Type());
  LLVM::StoreOp::create(
      b, loc, stored, slot,
      static_cast<unsigned>(alignment(getElementTypeOrSelf(stored.getType()))));
  return result;
}

} // namespace merak::codegen::emitter
