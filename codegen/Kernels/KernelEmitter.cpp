#include "codegen/Kernels/KernelEmitter.h"

#include "codegen/Kernels/ScalarOps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace merak::codegen {

namespace {

// What is known at one place of the loop nest. Values that do not depend on
// the inner place are computed at the outer one.
struct Frame {
  Frame *outer = nullptr; // of a place inside a pass: the point around it
  llvm::DenseMap<Value, Value> values;
  llvm::DenseMap<unsigned, Value> loads, pointers;
  llvm::SmallVector<Value> index;     // by dimension; null: 0 or not set here
  Value runIndex;                     // inside a pass: index into the run
  llvm::SmallVector<Value> laneIndex; // run dims as vectors, see runLaneIndex
  int64_t active = kLanes;            // lanes that exist
  Operation *before = nullptr; // the loop under construction inside this place
};

// A reduction that a pass computes.
struct Reduction {
  OpResult result;
  Operation *combiner;
  Value contribution; // inside the body of the generic
  Type element;
};

class Emitter {
public:
  Emitter(ModuleOp module, const KernelGraph &graph,
          const KernelSchedule &schedule, const KernelTarget &target)
      : module(module), b(module.getContext()), loc(b.getUnknownLoc()),
        ops(b, target), graph(graph), schedule(schedule),
        kernel(graph.function) {}
  LogicalResult emit(llvm::StringRef symbol);

private:
  // Constants and integer arithmetic on i64.
  Value i64(int64_t value) { return ops.constantInt(b.getI64Type(), value); }
  Value addI(Value a, Value c) { return arith::AddIOp::create(b, loc, a, c); }
  Value mulI(Value a, int64_t c) {
    return c == 1 ? a : Value(arith::MulIOp::create(b, loc, a, i64(c)));
  }
  int64_t size(int dim) const { return graph.dims[dim].size; }

  // Loops.
  void emitEntry(func::FuncOp function);
  void emitItem(Value item);
  void emitKept(unsigned level, Value blockBegin, Value blockEnd);
  void emitLanes(Value begin, Value end);
  void emitPoint(llvm::ArrayRef<std::pair<Value, int64_t>> groups);
  void emitPass(int pass, llvm::MutableArrayRef<Frame> points);
  SmallVector<Value> emitOuterReduced(unsigned level, ValueRange sums);
  SmallVector<Value> emitRun(ValueRange sums);
  SmallVector<Value> emitStep(Value l, int64_t active, ValueRange sums);
  SmallVector<Value>
  emitFor(Value begin, Value end, int64_t step, ValueRange carried,
          llvm::function_ref<SmallVector<Value>(Value, ValueRange)> body);
  SmallVector<Value> combineAll(ValueRange a, ValueRange c);
  Value reduceLanes(const Reduction &reduction, Value sum);
  Reduction describe(OpResult result);
  void planScratch();

  // Values.
  Value valueOf(Value value, Frame &frame);
  Value operandOf(OpOperand &operand, Frame &frame);
  Value bodyValue(linalg::GenericOp generic, Value value, Frame &frame);
  Value entryValue(Value value);
  Value load(unsigned access, Frame &frame);
  void store(unsigned output, Value value, Frame &frame);
  Value pointer(unsigned access, Frame &frame);
  Value gatherPointers(unsigned access, Frame &frame);
  Value indexOf(int dim, Frame &frame);
  Value laneIndexOf(int dim, Frame &frame);
  Value runDimIndex(int dim, Frame &frame);
  bool isLinearInRun(const Access &access) const;
  std::optional<int64_t> laneStride(const Access &access, const Frame &frame);
  Value mask(int64_t active);
  Value lanes() { // 0, 1, ..., 15
    SmallVector<int64_t> steps(kLanes);
    for (int64_t i = 0; i < kLanes; ++i)
      steps[i] = i;
    auto type = VectorType::get({kLanes}, b.getI64Type());
    return arith::ConstantOp::create(
        b, loc, type,
        DenseElementsAttr::get(type, llvm::ArrayRef<int64_t>(steps)));
  }
  bool variesInReduced(const Access &access) const {
    for (auto [stride, dim] : llvm::zip(access.strides, graph.dims))
      if (dim.reduced && stride != 0)
        return true;
    return false;
  }
  bool crossesLanes() const { // see runLaneIndex
    return schedule.lanesInRun && schedule.run.size() > 1 &&
           size(schedule.run.back()) % kLanes != 0;
  }
  int64_t alignment(Type element) const {
    return std::max<int64_t>(1, element.getIntOrFloatBitWidth() / 8);
  }

  ModuleOp module;
  OpBuilder b;
  Location loc;
  ScalarOps ops;
  const KernelGraph &graph;
  const KernelSchedule &schedule;
  func::FuncOp kernel;
  bool failed = false;

  llvm::DenseMap<Value, Value> entry; // scalars
  SmallVector<Value> bases;           // by operand
  SmallVector<Value> keptIndex;       // by dimension, while nesting
  llvm::MutableArrayRef<Frame> points;
  SmallVector<Reduction> current; // of the pass under construction
  SmallVector<Value> reducedIndex;
  int pass = 0;
  // Values kept in a buffer of one run instead of being computed again.
  llvm::DenseMap<Value, int> scratchPass; // the pass that fills it
  llvm::DenseMap<Value, Value> scratch;
};

} // namespace

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
  auto advance = [&](Value index, int64_t stride) {
    if (!index || stride == 0)
      return;
    Value part = mulI(index, stride);
    offset = offset ? addI(offset, part) : part;
  };
  if (frame.outer) {
    {
      OpBuilder::InsertionGuard guard(b);
      if (frame.outer->before)
        b.setInsertionPoint(frame.outer->before);
      base = pointer(number, *frame.outer);
    }
    for (int dim : schedule.outerReduced)
      advance(frame.index[dim], access.strides[dim]);
    if (isLinearInRun(access))
      advance(frame.runIndex, access.strides[schedule.run.back()]);
    else
      for (int dim : schedule.run)
        if (access.strides[dim] != 0 && !crossesLanes())
          advance(runDimIndex(dim, frame), access.strides[dim]);
  } else {
    for (int dim : schedule.kept)
      advance(frame.index[dim], access.strides[dim]);
  }
  if (!offset)
    return frame.pointers[number] = base;
  Type type = ops.memoryType(graph.operands[access.operand].element);
  Value result = LLVM::GEPOp::create(b, loc, base.getType(), type, base,
                                     llvm::ArrayRef<LLVM::GEPArg>{offset});
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
  if (frame.outer && !variesInReduced(access)) {
    OpBuilder::InsertionGuard guard(b);
    if (frame.outer->before)
      b.setInsertionPoint(frame.outer->before);
    return load(number, *frame.outer);
  }
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
    Value isFirst =
        arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, index, i64(0));
    condition =
        condition
            ? arith::AndIOp::create(b, loc, condition, isFirst).getResult()
            : isFirst;
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
    OperationState state(loc, isa<FloatType>(operand.element) ? "arith.addf"
                              : operand.element.isInteger(1)  ? "arith.ori"
                                                              : "arith.addi");
    state.addOperands({old, value});
    state.addTypes(value.getType());
    value = b.create(state)->getResult(0);
    if (operand.element.isBF16())
      value = ops.roundToBf16(value);
  }
  value = ops.toMemory(value, operand.element);
  if (!perLane || (stride && *stride == 1 && frame.active == kLanes))
    LLVM::StoreOp::create(b, loc, value, pointer(number, place),
                          static_cast<unsigned>(align));
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

Value Emitter::entryValue(Value value) {
  if (Value known = entry.lookup(value))
    return known;
  kernel.emitError()
      << "a kernel op captures a value that is no scalar of the kernel";
  failed = true;
  return entry[value] = i64(0);
}

Value Emitter::bodyValue(linalg::GenericOp generic, Value value, Frame &frame) {
  if (Value known = frame.values.lookup(value))
    return known;
  if (auto arg = dyn_cast<BlockArgument>(value)) {
    if (arg.getOwner() != generic.getBody())
      return entryValue(value);
    return operandOf(generic->getOpOperand(arg.getArgNumber()), frame);
  }
  Operation *op = value.getDefiningOp();
  if (op->getBlock() != generic.getBody())
    return entryValue(value);
  Value result;
  if (auto index = dyn_cast<linalg::IndexOp>(op)) {
    int dim = graph.loops.find(generic)->second[index.getDim()];
    result = dim < 0 ? i64(0) : laneIndexOf(dim, frame);
  } else {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      operands.push_back(bodyValue(generic, operand, frame));
    if (!failed)
      result = ops.emit(op, operands);
    if (!result) {
      failed = true;
      return value; // the caller stops before it is used
    }
  }
  return frame.values[value] = result;
}

Value Emitter::operandOf(OpOperand &operand, Frame &frame) {
  auto access = graph.readAccess.find(&operand);
  if (access != graph.readAccess.end())
    return load(access->second, frame);
  return valueOf(operand.get(), frame);
}

Value Emitter::valueOf(Value value, Frame &frame) {
  if (Value known = frame.values.lookup(value))
    return known;
  if (!isa<RankedTensorType>(value.getType()))
    return entryValue(value);
  if (auto fill = value.getDefiningOp<linalg::FillOp>())
    return entryValue(fill.getInputs()[0]);
  auto generic = value.getDefiningOp<linalg::GenericOp>();
  if (!generic)
    return entryValue(value);
  if (frame.outer && !graph.variesInReduction(value)) {
    OpBuilder::InsertionGuard guard(b);
    if (frame.outer->before)
      b.setInsertionPoint(frame.outer->before);
    return valueOf(value, *frame.outer);
  }
  auto kept = scratchPass.find(value);
  bool isKept = kept != scratchPass.end() && frame.outer;
  Value slot;
  if (isKept) {
    Type type = ops.scalarType(
        cast<RankedTensorType>(value.getType()).getElementType());
    if (type.isInteger(1))
      type = b.getI8Type();
    slot = LLVM::GEPOp::create(b, loc, scratch[value].getType(), type,
                               scratch[value],
                               llvm::ArrayRef<LLVM::GEPArg>{frame.runIndex});
    if (kept->second < pass) {
      Type vector = VectorType::get({kLanes}, type);
      Value loaded = LLVM::LoadOp::create(
          b, loc, vector, slot, static_cast<unsigned>(alignment(type)));
      if (cast<RankedTensorType>(value.getType()).getElementType().isInteger(1))
        loaded = ops.fromMemory(loaded, b.getI1Type());
      return frame.values[value] = loaded;
    }
  }
  auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
  unsigned number = cast<OpResult>(value).getResultNumber();
  Value result = bodyValue(generic, yield.getOperand(number), frame);
  if (isKept && !failed) {
    Value stored = ops.splat(result);
    if (getElementTypeOrSelf(stored.getType()).isInteger(1))
      stored = ops.toMemory(stored, b.getI1Type());
    LLVM::StoreOp::create(b, loc, stored, slot,
                          static_cast<unsigned>(alignment(
                              getElementTypeOrSelf(stored.getType()))));
  }
  return frame.values[value] = result;
}

//===----------------------------------------------------------------------===//
// Passes over the reduced dimensions
//===----------------------------------------------------------------------===//

SmallVector<Value> Emitter::emitFor(
    Value begin, Value end, int64_t step, ValueRange carried,
    llvm::function_ref<SmallVector<Value>(Value, ValueRange)> body) {
  auto loop = scf::ForOp::create(b, loc, begin, end, i64(step), carried);
  OpBuilder::InsertionGuard guard(b);
  // What is invariant in this loop goes before the outermost one.
  for (Frame &point : points)
    if (!point.before)
      point.before = loop;
  if (carried.empty())
    b.setInsertionPoint(loop.getBody()->getTerminator());
  else
    b.setInsertionPointToStart(loop.getBody());
  SmallVector<Value> results =
      body(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!carried.empty())
    scf::YieldOp::create(b, loc, results);
  return SmallVector<Value>(loop.getResults());
}

SmallVector<Value> Emitter::combineAll(ValueRange a, ValueRange c) {
  SmallVector<Value> results;
  for (unsigned i = 0; i < a.size(); ++i)
    results.push_back(
        ops.emit(current[i % current.size()].combiner, {a[i], c[i]}));
  return results;
}

// One step of the run at index `l` for every group of lanes: adds to `sums`
// (by group, then by reduction) and, in the last pass, writes results.
SmallVector<Value> Emitter::emitStep(Value l, int64_t active, ValueRange sums) {
  SmallVector<Frame> frames(points.size());
  SmallVector<Value> contributions;
  SmallVector<std::pair<unsigned, Value>> stores;
  for (auto [u, frame] : llvm::enumerate(frames)) {
    frame.outer = &points[u];
    frame.index = reducedIndex;
    frame.runIndex = l;
    if (schedule.run.size() == 1)
      frame.index[schedule.run[0]] = l;
    frame.active = schedule.lanesInRun ? active : points[u].active;
    for (Reduction &reduction : current) {
      auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
      Value value = bodyValue(generic, reduction.contribution, frame);
      if (failed)
        return SmallVector<Value>(sums);
      value = ops.splat(value);
      if (schedule.lanesInRun && active < kLanes) {
        Value neutral = ops.constant(
            value.getType(),
            ScalarOps::neutral(reduction.combiner,
                               getElementTypeOrSelf(value.getType())));
        value = arith::SelectOp::create(b, loc, mask(active), value, neutral);
      }
      contributions.push_back(value);
    }
    if (pass + 1 < schedule.passes)
      continue;
    for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
      Value value = graph.operands[graph.firstOutput + i].value;
      if (!graph.variesInReduction(value))
        continue;
      Value result = valueOf(value, frame);
      if (failed)
        return SmallVector<Value>(sums);
      stores.emplace_back(i, result);
    }
  }
  SmallVector<Value> results = combineAll(sums, contributions);
  // All reads of a step come before its writes: operands may be updated in
  // place.
  unsigned perFrame = stores.size() / frames.size();
  for (auto [i, entry] : llvm::enumerate(stores))
    store(entry.first, entry.second, frames[i / perFrame]);
  return results;
}

SmallVector<Value> Emitter::emitRun(ValueRange start) {
  int64_t step = schedule.lanesInRun ? kLanes : 1;
  int64_t full = schedule.runLength / step * step;
  int64_t chunk = kChunk * step;
  SmallVector<Value> sums(start);
  auto neutral = [&]() {
    SmallVector<Value> values;
    for (size_t i = 0; i < sums.size(); ++i)
      values.push_back(ops.constant(
          sums[i].getType(),
          ScalarOps::neutral(current[i % current.size()].combiner,
                             getElementTypeOrSelf(sums[i].getType()))));
    return values;
  };
  auto oneStep = [&](Value l, ValueRange carried) {
    return emitStep(l, kLanes, carried);
  };
  if (full == step) {
    sums = emitStep(i64(0), kLanes, sums);
  } else if (full > chunk && !sums.empty()) {
    sums = emitFor(i64(0), i64(full), chunk, sums,
                   [&](Value begin, ValueRange carried) {
                     Value end = arith::MinSIOp::create(
                         b, loc, addI(begin, i64(chunk)), i64(full));
                     SmallVector<Value> partial =
                         emitFor(begin, end, step, neutral(), oneStep);
                     return combineAll(carried, partial);
                   });
  } else if (full > 0) {
    sums = emitFor(i64(0), i64(full), step, sums, oneStep);
  }
  if (int64_t rest = schedule.runLength - full)
    sums = emitStep(i64(full), rest, sums);
  return sums;
}

SmallVector<Value> Emitter::emitOuterReduced(unsigned level, ValueRange sums) {
  if (level == schedule.outerReduced.size())
    return emitRun(sums);
  int dim = schedule.outerReduced[level];
  return emitFor(
      i64(0), i64(size(dim)), 1, sums, [&](Value index, ValueRange carried) {
        reducedIndex[dim] = index;
        SmallVector<Value> results = emitOuterReduced(level + 1, carried);
        reducedIndex[dim] = nullptr;
        return results;
      });
}

// Lanes to one value: halves are combined until one lane is left.
Value Emitter::reduceLanes(const Reduction &reduction, Value sum) {
  for (int64_t width = kLanes / 2; width >= 1; width /= 2) {
    SmallVector<int64_t> low, high;
    for (int64_t i = 0; i < width; ++i) {
      low.push_back(i);
      high.push_back(i + width);
    }
    Value a = vector::ShuffleOp::create(b, loc, sum, sum, low);
    Value c = vector::ShuffleOp::create(b, loc, sum, sum, high);
    OperationState state(loc, reduction.combiner->getName());
    state.addOperands({a, c});
    state.addTypes(a.getType());
    sum = b.create(state)->getResult(0);
    if (reduction.element.isBF16())
      sum = ops.roundToBf16(sum);
  }
  return vector::ExtractOp::create(b, loc, sum, int64_t(0));
}

Reduction Emitter::describe(OpResult result) {
  auto generic = cast<linalg::GenericOp>(result.getOwner());
  auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
  unsigned number = result.getResultNumber();
  BlockArgument carried =
      generic.getBody()->getArgument(generic.getNumDpsInputs() + number);
  Type element = carried.getType();
  Operation *combiner = yield.getOperand(number).getDefiningOp();
  bool ok = combiner && combiner->getNumOperands() == 2 &&
            carried.hasOneUse() &&
            llvm::is_contained(combiner->getOperands(), carried) &&
            ScalarOps::neutral(combiner, ops.scalarType(element));
  if (!ok) {
    generic.emitError() << "result " << number
                        << " is not a reduction that kernels know; expected "
                           "one sum, product, maximum, minimum, and, or of the "
                           "carried value with another value";
    failed = true;
    return {result, nullptr, nullptr, element};
  }
  Value other = combiner->getOperand(0) == carried ? combiner->getOperand(1)
                                                   : combiner->getOperand(0);
  return {result, combiner, other, element};
}

void Emitter::emitPass(int number, llvm::MutableArrayRef<Frame> frames) {
  pass = number;
  current.clear();
  for (auto generic : kernel.getOps<linalg::GenericOp>())
    for (OpResult result : generic->getResults())
      if (graph.isReduction(result) && graph.passOf(result) == number)
        current.push_back(describe(result));
  if (failed)
    return;
  SmallVector<Value> sums;
  for (size_t u = 0; u < frames.size(); ++u)
    for (Reduction &reduction : current) {
      Type element = ops.scalarType(reduction.element);
      sums.push_back(
          ops.constant(ops.vectorType(reduction.element),
                       ScalarOps::neutral(reduction.combiner, element)));
    }
  if (!schedule.emptyReduction)
    sums = emitOuterReduced(0, sums);
  for (Frame &frame : frames)
    frame.before = nullptr;
  if (failed)
    return;
  for (auto [i, sum] : llvm::enumerate(sums)) {
    Reduction &reduction = current[i % current.size()];
    Frame &frame = frames[i / current.size()];
    auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
    Value total = sum;
    if (schedule.lanesInRun || schedule.kept.empty())
      total = reduceLanes(reduction, total);
    // The value that the sum starts from.
    OpOperand &init = generic->getOpOperand(generic.getNumDpsInputs() +
                                            reduction.result.getResultNumber());
    Value start = operandOf(init, frame);
    if (failed)
      return;
    frame.values[reduction.result] =
        ops.emit(reduction.combiner, {start, total});
  }
}

// Marks values that cost more to compute again than to read back.
void Emitter::planScratch() {
  constexpr double kWorthKeeping = 8;
  constexpr int64_t kBudget = 128 * 1024;
  if (!schedule.lanesInRun || !schedule.outerReduced.empty())
    return;
  int64_t length = (schedule.runLength + kLanes - 1) / kLanes * kLanes;
  int64_t left = kBudget;
  llvm::DenseMap<Value, double> costs;
  llvm::DenseMap<Value, int> neededIn; // first pass
  std::function<double(Value)> cost = [&](Value value) -> double {
    auto generic = value.getDefiningOp<linalg::GenericOp>();
    if (!generic || !graph.variesInReduction(value))
      return 0;
    if (auto it = costs.find(value); it != costs.end())
      return it->second;
    double sum = 0;
    for (Operation &op : generic.getBody()->without_terminator())
      sum += opCost(&op);
    for (Value operand : generic->getOperands())
      sum += cost(operand);
    return costs[value] = sum;
  };
  llvm::DenseSet<Value> seen;
  std::function<void(Value, int)> visit;
  // Visits the operands of `generic` that `value` of its body is computed from.
  std::function<void(linalg::GenericOp, Value, int)> visitBody =
      [&](linalg::GenericOp generic, Value value, int at) {
        if (auto arg = dyn_cast<BlockArgument>(value)) {
          if (arg.getOwner() == generic.getBody())
            visit(generic->getOperand(arg.getArgNumber()), at);
        } else if (value.getDefiningOp()->getBlock() == generic.getBody() &&
                   seen.insert(value).second) {
          for (Value operand : value.getDefiningOp()->getOperands())
            visitBody(generic, operand, at);
        }
      };
  visit = [&](Value value, int at) {
    auto generic = value.getDefiningOp<linalg::GenericOp>();
    if (!generic || !graph.variesInReduction(value) ||
        !seen.insert(value).second)
      return;
    auto [it, isNew] = neededIn.try_emplace(value, at);
    if (!isNew && it->second < at) {
      Type type = ops.scalarType(
          cast<RankedTensorType>(value.getType()).getElementType());
      int64_t bytes = length * alignment(type);
      if (cost(value) >= kWorthKeeping && bytes <= left) {
        scratchPass[value] = it->second;
        left -= bytes;
        Type stored = type.isInteger(1) ? Type(b.getI8Type()) : type;
        scratch[value] = LLVM::AllocaOp::create(
            b, loc, LLVM::LLVMPointerType::get(b.getContext()), stored,
            i64(length), 64);
        return;
      }
    }
    unsigned number = cast<OpResult>(value).getResultNumber();
    visitBody(generic, generic.getBody()->getTerminator()->getOperand(number),
              at);
  };
  for (int at = 0; at < schedule.passes; ++at) {
    seen.clear();
    for (auto generic : kernel.getOps<linalg::GenericOp>())
      for (OpResult result : generic->getResults())
        if (graph.isReduction(result) && graph.passOf(result) == at)
          if (Reduction reduction = describe(result); reduction.combiner)
            visitBody(generic, reduction.contribution, at);
    if (at + 1 == schedule.passes)
      for (unsigned i = graph.firstOutput; i < graph.operands.size(); ++i)
        visit(graph.operands[i].value, at);
  }
}

//===----------------------------------------------------------------------===//
// Items
//===----------------------------------------------------------------------===//

// One point of the kept dimensions, or several adjacent groups of sixteen:
// the index of lane 0 and the number of lanes of each.
void Emitter::emitPoint(llvm::ArrayRef<std::pair<Value, int64_t>> groups) {
  if (failed)
    return;
  SmallVector<Frame> frames(groups.size());
  for (auto [frame, group] : llvm::zip(frames, groups)) {
    frame.index = keptIndex;
    if (schedule.lanesInKept())
      frame.index[schedule.kept.back()] = group.first;
    frame.active = group.second;
  }
  points = frames;
  reducedIndex.assign(graph.dims.size(), nullptr);
  for (int p = 0; p < schedule.passes && !failed; ++p)
    emitPass(p, frames);
  SmallVector<std::tuple<unsigned, Value, Frame *>> stores;
  for (Frame &frame : frames)
    for (unsigned i = 0; i < graph.outputAccess.size() && !failed; ++i) {
      Value value = graph.operands[graph.firstOutput + i].value;
      if (!graph.variesInReduction(value))
        stores.emplace_back(i, valueOf(value, frame), &frame);
    }
  if (!failed)
    for (auto &[output, value, frame] : stores)
      store(output, value, *frame);
  points = {};
}

void Emitter::emitLanes(Value begin, Value end) {
  int64_t all = size(schedule.kept.back());
  int64_t step = kLanes * schedule.unroll;
  int64_t full = all / step * step;
  auto groupsAt = [&](Value at, int64_t count) {
    SmallVector<std::pair<Value, int64_t>> groups;
    for (int64_t done = 0; done < count; done += kLanes)
      groups.emplace_back(done ? addI(at, i64(done)) : at,
                          std::min(kLanes, count - done));
    emitPoint(groups);
    return SmallVector<Value>();
  };
  bool isBlocked =
      schedule.block + 1 == schedule.kept.size() && schedule.blockSize < all;
  if (full == step && !isBlocked) {
    groupsAt(i64(0), step);
  } else if (full > 0) {
    Value bound = arith::MinSIOp::create(b, loc, end, i64(full));
    emitFor(begin, bound, step, {},
            [&](Value at, ValueRange) { return groupsAt(at, step); });
  }
  if (full == all)
    return;
  // The last, incomplete groups belong to the block that reaches the end.
  Value isLast =
      arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, end, i64(all));
  auto branch = scf::IfOp::create(b, loc, isLast, /*withElse=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(branch.thenYield());
  groupsAt(i64(full), all - full);
}

void Emitter::emitKept(unsigned level, Value blockBegin, Value blockEnd) {
  if (level == schedule.kept.size()) {
    emitPoint({{Value(), kLanes}});
    return;
  }
  int dim = schedule.kept[level];
  bool isBlock = level == schedule.block;
  Value begin = isBlock ? blockBegin : i64(0);
  Value end = isBlock ? blockEnd : i64(size(dim));
  if (schedule.lanesInKept() && level + 1 == schedule.kept.size()) {
    emitLanes(begin, end);
    return;
  }
  emitFor(begin, end, 1, {}, [&](Value index, ValueRange) {
    keptIndex[dim] = index;
    emitKept(level + 1, blockBegin, blockEnd);
    keptIndex[dim] = nullptr;
    return SmallVector<Value>();
  });
}

void Emitter::emitItem(Value item) {
  keptIndex.assign(graph.dims.size(), nullptr);
  if (schedule.kept.empty()) {
    emitPoint({{Value(), kLanes}});
    return;
  }
  // item = ((kept[0], kept[1], ...), block), the last fastest.
  int64_t extent = size(schedule.kept[schedule.block]);
  int64_t blocks = (extent + schedule.blockSize - 1) / schedule.blockSize;
  Value rest = item;
  auto split = [&](int64_t count, bool isOutermost) -> Value {
    if (count == 1)
      return i64(0);
    if (isOutermost)
      return rest;
    Value index = arith::RemUIOp::create(b, loc, rest, i64(count));
    rest = arith::DivUIOp::create(b, loc, rest, i64(count));
    return index;
  };
  Value begin = mulI(split(blocks, schedule.block == 0), schedule.blockSize);
  Value end = addI(begin, i64(schedule.blockSize));
  if (extent % schedule.blockSize)
    end = arith::MinSIOp::create(b, loc, end, i64(extent));
  for (unsigned i = schedule.block; i-- > 0;)
    keptIndex[schedule.kept[i]] = split(size(schedule.kept[i]), i == 0);
  emitKept(schedule.block, begin, end);
}

// Loads addresses and scalars, and computes what depends on scalars only.
void Emitter::emitEntry(func::FuncOp function) {
  Type pointerType = LLVM::LLVMPointerType::get(b.getContext());
  Value operands = function.getArgument(0), scalars = function.getArgument(1);
  for (unsigned i = 0; i < graph.operands.size(); ++i) {
    Value slot = LLVM::GEPOp::create(
        b, loc, pointerType, pointerType, operands,
        llvm::ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    bases.push_back(LLVM::LoadOp::create(b, loc, pointerType, slot));
  }
  for (auto [i, arg] : llvm::enumerate(graph.scalars)) {
    Type type = arg.getType();
    bool isFloat = isa<FloatType>(type);
    Type loaded = isFloat ? Type(b.getF64Type()) : b.getI64Type();
    Value slot = LLVM::GEPOp::create(
        b, loc, pointerType, b.getI64Type(), scalars,
        llvm::ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    Value value = LLVM::LoadOp::create(b, loc, loaded, slot);
    Type wanted = ops.scalarType(type);
    if (isFloat && wanted != loaded)
      value = arith::TruncFOp::create(b, loc, wanted, value);
    if (type.isBF16())
      value = ops.roundToBf16(value);
    if (!isFloat && wanted != loaded)
      value = arith::TruncIOp::create(b, loc, wanted, value);
    entry[arg] = value;
  }
  for (Operation &op : kernel.getBody().front().without_terminator()) {
    if (auto constant = dyn_cast<arith::ConstantOp>(op);
        constant && isa<RankedTensorType>(constant.getType())) {
      auto dense = dyn_cast<SplatElementsAttr>(constant.getValue());
      if (!dense) {
        op.emitError() << "a constant tensor of a kernel must have equal "
                          "elements";
        failed = true;
        continue;
      }
      auto scalar = cast<TypedAttr>(dense.getSplatValue<Attribute>());
      auto single = arith::ConstantOp::create(b, loc, scalar);
      entry[constant.getResult()] = ops.emit(single, {});
      single.erase();
      continue;
    }
    if (op.getNumResults() != 1 ||
        isa<RankedTensorType>(op.getResult(0).getType()))
      continue;
    SmallVector<Value> values;
    for (Value operand : op.getOperands())
      values.push_back(entryValue(operand));
    Value result = failed ? Value() : ops.emit(&op, values);
    failed |= !result;
    entry[op.getResult(0)] = result;
  }
}

LogicalResult Emitter::emit(llvm::StringRef symbol) {
  for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
    const Access &access = graph.accesses[graph.outputAccess[i]];
    if (!graph.variesInReduction(graph.operands[access.operand].value))
      continue;
    for (auto [stride, dim] : llvm::zip(access.strides, graph.dims))
      if (dim.reduced && dim.size > 1 && stride == 0)
        return kernel.emitError()
               << "result " << i
               << " varies along some of the reduced dimensions only";
  }
  b.setInsertionPointToEnd(module.getBody());
  Type pointerType = LLVM::LLVMPointerType::get(b.getContext());
  Type word = b.getI64Type();
  auto function = func::FuncOp::create(
      b, loc, symbol,
      b.getFunctionType({pointerType, pointerType, word, word}, {}));
  b.setInsertionPointToStart(function.addEntryBlock());
  if (schedule.range.rows > 0) {
    emitEntry(function);
    planScratch();
    if (!failed)
      emitFor(function.getArgument(2), function.getArgument(3), 1, {},
              [&](Value item, ValueRange) {
                emitItem(item);
                return SmallVector<Value>();
              });
  }
  func::ReturnOp::create(b, loc);
  return failure(failed);
}

LogicalResult emitKernel(ModuleOp module, llvm::StringRef symbol,
                         const KernelGraph &graph,
                         const KernelSchedule &schedule,
                         const KernelTarget &target) {
  return Emitter(module, graph, schedule, target).emit(symbol);
}

} // namespace merak::codegen
