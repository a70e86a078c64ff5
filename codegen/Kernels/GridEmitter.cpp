// Points, passes and sums of a grid kernel under construction.
#include "codegen/Kernels/GridEmitter.h"

#include "codegen/Kernels/GridState.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

#include <limits>

using namespace mlir;

namespace merak::codegen {

namespace emitter {

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

Value GridEmitter::times(Value a, int64_t c) {
  return c == 1 ? a : Value(arith::MulIOp::create(b, loc, a, count(c)));
}
Value GridEmitter::dividedBy(Value a, int64_t c) {
  return c == 1 ? a : Value(arith::DivUIOp::create(b, loc, a, count(c)));
}
Value GridEmitter::modulo(Value a, int64_t c) {
  return c == 1 ? count(0) : Value(arith::RemUIOp::create(b, loc, a, count(c)));
}
Value GridEmitter::asIndex(Value number) {
  if (number.getType().isInteger(64))
    return number;
  return arith::ExtUIOp::create(b, loc, b.getI64Type(), number);
}
Value GridEmitter::isBelow(Value a, int64_t bound) {
  return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, a,
                               ops.constantInt(a.getType(), bound));
}
Value GridEmitter::isZero(Value a) { return isBelow(a, 1); }

Value GridEmitter::called(llvm::StringRef name, ValueRange arguments,
                          Type result) {
  auto function = module.lookupSymbol<func::FuncOp>(name);
  SmallVector<Type> results;
  if (result)
    results.push_back(result);
  if (!function) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(module.getBody());
    function = func::FuncOp::create(
        b, loc, name, b.getFunctionType(arguments.getTypes(), results));
    function.setPrivate();
  }
  auto call = func::CallOp::create(b, loc, function, arguments);
  return result ? call.getResult(0) : Value();
}

// The number, or a legal one where it is not below `bound`, and whether it is
// (null: always, as all numbers are below `least`).
std::pair<Value, Value> GridEmitter::clamp(Value number, int64_t bound,
                                           int64_t least) {
  if (least <= bound)
    return {number, nullptr};
  Value valid = isBelow(number, bound);
  return {arith::SelectOp::create(b, loc, valid, number, count(bound - 1)),
          valid};
}

//===----------------------------------------------------------------------===//
// Sums of threads
//===----------------------------------------------------------------------===//

Value GridEmitter::shuffled(Value value, int64_t mask) {
  Type type = value.getType(), half = b.getI32Type();
  unsigned width = type.getIntOrFloatBitWidth();
  Type whole = b.getIntegerType(width);
  auto exchange = [&](Value word) {
    return called(kGridShuffle, {word, ops.constantInt(half, mask)}, half);
  };
  bool isFloat = isa<FloatType>(type);
  if (isFloat)
    value = arith::BitcastOp::create(b, loc, whole, value);
  if (width == 64) {
    Value low = arith::TruncIOp::create(b, loc, half, value);
    Value high = arith::TruncIOp::create(
        b, loc, half, arith::ShRUIOp::create(b, loc, value, i64(32)));
    low = arith::ExtUIOp::create(b, loc, whole, exchange(low));
    high = arith::ExtUIOp::create(b, loc, whole, exchange(high));
    value = arith::OrIOp::create(b, loc, low,
                                 arith::ShLIOp::create(b, loc, high, i64(32)));
  } else if (width == 32) {
    value = exchange(value);
  } else {
    value = exchange(arith::ExtUIOp::create(b, loc, half, value));
    value = arith::TruncIOp::create(b, loc, whole, value);
  }
  return isFloat ? Value(arith::BitcastOp::create(b, loc, type, value)) : value;
}

// Entry `entry` of the partial sums of a reduction: 8 bytes each.
Value GridEmitter::sharedSlot(Value entry) {
  Value base = LLVM::AddressOfOp::create(b, loc, shared);
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  if (base.getType() != pointer)
    base = LLVM::AddrSpaceCastOp::create(b, loc, pointer, base);
  return LLVM::GEPOp::create(b, loc, pointer, b.getI64Type(), base,
                             llvm::ArrayRef<LLVM::GEPArg>{asIndex(entry)});
}

// The sum over all threads of the point, for each of them. Reductions use the
// same shared memory one after the other, so that any number of them fits.
Value GridEmitter::acrossThreads(const Reduction &reduction, Value sum) {
  if (!schedule.columns)
    for (int64_t mask = 1; mask < std::min(schedule.threads, kWarp); mask *= 2)
      sum = ops.emit(reduction.combiner, {sum, shuffled(sum, mask)});
  int64_t partials = schedule.partials();
  if (partials == 1)
    return sum;
  // Partial sum j of point p lies at j * points + p.
  int64_t points = schedule.pointsOfBlock();
  Value point = schedule.columns ? modulo(thread, points)
                                 : dividedBy(thread, schedule.threads);
  Value mine = schedule.columns ? lane : dividedBy(lane, kWarp);
  bool isBit = sum.getType().isInteger(1);
  Type type = isBit ? Type(b.getI8Type()) : sum.getType();
  Value stored = isBit ? ops.toMemory(sum, b.getI1Type()) : sum;
  Value slot = sharedSlot(plus(times(mine, points), point));
  {
    OpBuilder::InsertionGuard guard(b);
    if (!schedule.columns) {
      auto branch = scf::IfOp::create(b, loc, isZero(modulo(lane, kWarp)),
                                      /*withElse=*/false);
      b.setInsertionPoint(branch.thenYield());
    }
    LLVM::StoreOp::create(b, loc, stored, slot);
  }
  barrier();
  sum = nullptr;
  for (int64_t j = 0; j < partials; ++j) {
    Value part = LLVM::LoadOp::create(
        b, loc, type, sharedSlot(plus(point, count(j * points))));
    if (isBit)
      part = ops.fromMemory(part, b.getI1Type());
    sum = sum ? ops.emit(reduction.combiner, {sum, part}) : part;
  }
  barrier();
  return sum;
}

//===----------------------------------------------------------------------===//
// Passes over the reduced dimensions
//===----------------------------------------------------------------------===//

void GridEmitter::placeStep(Place &step, Place &point, Value number) {
  step.outer = &point;
  step.index.assign(graph.dims.size(), nullptr);
  step.step = number;
}

// Adds what these steps contribute to `sums` and, in the last pass, writes
// results. All reads come before the writes: loads overlap, and operands may be
// updated in place.
void GridEmitter::emitSteps(llvm::MutableArrayRef<Place> steps,
                            SmallVector<Value> &sums) {
  SmallVector<std::tuple<unsigned, Value, Place *>> stores;
  SmallVector<Value> contributions;
  for (Place &step : steps) {
    for (Reduction &reduction : current) {
      auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
      Value value = bodyValue(generic, reduction.contribution, step);
      if (failed)
        return;
      if (step.valid)
        value = arith::SelectOp::create(
            b, loc, step.valid, value,
            ops.constant(value.getType(), ScalarOps::neutral(reduction.combiner,
                                                             value.getType())));
      contributions.push_back(value);
    }
    for (unsigned i = 0; isLastPass && i < graph.outputAccess.size(); ++i) {
      if (!variesInReduced(i))
        continue;
      Value value = valueOf(graph.operands[graph.firstOutput + i].value, step);
      if (failed)
        return;
      stores.emplace_back(i, value, &step);
    }
  }
  for (auto [i, value] : llvm::enumerate(contributions)) {
    Value &sum = sums[i % current.size()];
    sum = ops.emit(current[i % current.size()].combiner, {sum, value});
  }
  storeAll(stores);
}

// Values of places, those of a pack one after the other for each output.
void GridEmitter::storeAll(
    llvm::ArrayRef<std::tuple<unsigned, Value, Place *>> stores) {
  llvm::DenseMap<std::pair<Place *, unsigned>, SmallVector<Value>> packs;
  for (auto &[output, value, place] : stores) {
    const unsigned number = graph.outputAccess[output];
    Value condition = place->outer ? place->outer->valid : Value();
    const bool accumulates =
        graph.operands[graph.accesses[number].operand].accumulate;
    if (!place->head || !isPacked(number) || accumulates) {
      store(output, value, *place, condition);
      continue;
    }
    SmallVector<Value> &pack = packs[{place->head, output}];
    pack.push_back(value);
    if (pack.size() == static_cast<size_t>(schedule.pack))
      storePack(output, pack, *place->head, condition);
  }
}

// The places of pack `pack` of the reduced dimensions.
void GridEmitter::placePack(llvm::MutableArrayRef<Place> places, Place &point,
                            Value pack, Value valid) {
  Value first = times(pack, schedule.pack);
  for (auto [i, place] : llvm::enumerate(places)) {
    placeStep(place, point,
              i ? plus(first, count(static_cast<int64_t>(i))) : first);
    place.valid = valid;
    if (places.size() > 1) {
      place.head = &places.front();
      place.inPack = static_cast<int64_t>(i);
    }
  }
}

// Pack i of a thread is number lane + i * threads. `straight` are the steps of
// its last packs; those before are a loop.
void GridEmitter::emitPass(int pass, Place &point,
                           llvm::MutableArrayRef<Place> straight) {
  current.clear();
  isLastPass = pass + 1 == schedule.passes;
  for (auto generic : kernel.getOps<linalg::GenericOp>())
    for (OpResult result : generic->getResults())
      if (graph.isReduction(result) && graph.passOf(result) == pass)
        current.push_back(describe(result));
  if (failed)
    return;
  SmallVector<Value> sums;
  for (const Reduction &reduction : current) {
    Type type = ops.scalarType(reduction.element);
    sums.push_back(
        ops.constant(type, ScalarOps::neutral(reduction.combiner, type)));
  }
  const int64_t looped = schedule.loopedPacks(), pack = schedule.pack;
  const int64_t together = schedule.packsTogether();
  if (looped > 0) {
    auto loop = scf::ForOp::create(b, loc, count(0), count(looped),
                                   count(together), sums);
    OpBuilder::InsertionGuard guard(b);
    point.before = loop;
    if (sums.empty())
      b.setInsertionPoint(loop.getBody()->getTerminator());
    else
      b.setInsertionPointToStart(loop.getBody());
    SmallVector<Value> inner(loop.getRegionIterArgs());
    SmallVector<Place> places(together * pack);
    Value first = plus(lane, times(loop.getInductionVar(), schedule.threads));
    for (int64_t u = 0; u < together; ++u)
      placePack(llvm::MutableArrayRef<Place>(places).slice(u * pack, pack),
                point, u ? plus(first, count(u * schedule.threads)) : first,
                Value());
    emitSteps(places, inner);
    point.before = nullptr;
    if (failed)
      return;
    if (!sums.empty())
      scf::YieldOp::create(b, loc, inner);
    sums.assign(loop.result_begin(), loop.result_end());
  }
  emitSteps(straight, sums);
  if (failed)
    return;
  for (auto [i, reduction] : llvm::enumerate(current)) {
    Value total = acrossThreads(reduction, sums[i]);
    // The value that the sum starts from.
    auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
    OpOperand &init = generic->getOpOperand(generic.getNumDpsInputs() +
                                            reduction.result.getResultNumber());
    Value start = operandOf(init, point);
    if (failed)
      return;
    point.values[reduction.result] =
        ops.emit(reduction.combiner, {start, total});
  }
}

//===----------------------------------------------------------------------===//
// Points
//===----------------------------------------------------------------------===//

// `number` counts through the kept dimensions, the last fastest.
void GridEmitter::setKept(Place &point, Value number) {
  point.index.assign(graph.dims.size(), nullptr);
  for (unsigned i = schedule.kept.size(); i-- > 0;) {
    int dim = schedule.kept[i];
    if (size(dim) > 1)
      point.index[dim] = asIndex(i ? modulo(number, size(dim)) : number);
    number = dividedBy(number, size(dim));
  }
}

void GridEmitter::emitElementwise() {
  // Packs and what a block takes of them, or points.
  const int64_t pack = schedule.pack;
  int64_t ofBlock = kBlockThreads * schedule.perThread / pack;
  Value first = plus(times(block, ofBlock), thread);
  SmallVector<Place> points(schedule.perThread);
  SmallVector<std::tuple<unsigned, Value, Place *>> stores;
  for (auto [k, point] : llvm::enumerate(points)) {
    if (pack > 1 && k > 0) {
      // Neighbours differ in the last dimension alone.
      point.head = &points.front();
      point.inPack = static_cast<int64_t>(k);
      point.valid = point.head->valid;
      point.index = point.head->index;
      point.index[schedule.packed] =
          addI(point.index[schedule.packed], i64(point.inPack));
    } else {
      Value number =
          k ? plus(first, count(static_cast<int64_t>(k) * kBlockThreads))
            : first;
      std::tie(number, point.valid) =
          clamp(number, schedule.points / pack, schedule.blocks * ofBlock);
      setKept(point, times(number, pack));
      if (pack > 1)
        point.head = &point;
    }
    for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
      Value value = valueOf(graph.operands[graph.firstOutput + i].value, point);
      if (failed)
        return;
      stores.emplace_back(i, value, &point);
    }
  }
  storeAll(stores);
}

void GridEmitter::emitReduction() {
  int64_t threads = schedule.threads, ofBlock = schedule.pointsOfBlock();
  lane =
      schedule.columns ? dividedBy(thread, ofBlock) : modulo(thread, threads);
  Value inBlock =
      schedule.columns ? modulo(thread, ofBlock) : dividedBy(thread, threads);
  Place point;
  // Threads beyond the last point go along with it, as all threads must come
  // to every barrier, but write nothing.
  auto [number, valid] = clamp(plus(times(block, ofBlock), inBlock),
                               schedule.points, schedule.blocks * ofBlock);
  point.valid = valid;
  setKept(point, number);
  const int64_t pack = schedule.pack, packs = schedule.packsOfLength();
  const int64_t left = schedule.length - packs * pack; // a step each
  const int64_t looped = schedule.loopedPacks();
  const int64_t last = (packs + threads - 1) / threads - looped;
  SmallVector<Place> straight(last * pack + (left > 0 ? 1 : 0));
  llvm::MutableArrayRef<Place> places(straight);
  for (int64_t i = 0; i < last; ++i) {
    int64_t at = (looped + i) * threads;
    auto [index, exists] =
        clamp(at ? plus(lane, count(at)) : lane, packs, at + threads);
    placePack(places.slice(i * pack, pack), point, index, exists);
  }
  if (left > 0) {
    int64_t at = packs * pack;
    auto [index, exists] =
        clamp(plus(lane, count(at)), schedule.length, at + threads);
    placeStep(straight.back(), point, index);
    straight.back().valid = exists;
  }
  for (int pass = 0; pass < schedule.passes && !failed; ++pass)
    emitPass(pass, point, straight);
  SmallVector<std::pair<unsigned, Value>> stores;
  for (unsigned i = 0; i < graph.outputAccess.size() && !failed; ++i)
    if (!variesInReduced(i))
      stores.emplace_back(
          i, valueOf(graph.operands[graph.firstOutput + i].value, point));
  if (failed || stores.empty())
    return;
  // Other threads may still read an operand that is updated in place.
  if (threads > 1)
    barrier();
  for (auto &[output, value] : stores)
    store(output, value, point, threads > 1 ? isZero(lane) : Value());
}

LogicalResult GridEmitter::emit(llvm::StringRef symbol) {
  for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
    const Access &access = graph.accesses[graph.outputAccess[i]];
    if (!variesInReduced(i))
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
  if (schedule.partials() > 1) {
    auto type = LLVM::LLVMArrayType::get(word, kBlockThreads);
    shared = LLVM::GlobalOp::create(
        b, loc, type, /*isConstant=*/false, LLVM::Linkage::Internal,
        (symbol + ".shared").str(), Attribute(), /*alignment=*/8,
        /*addrSpace=*/target.isGpu ? 3 : 0);
  }
  SmallVector<Type> arguments = {pointerType, pointerType, word, word};
  if (target.isGpu) {
    arguments.assign(graph.operands.size(), pointerType);
    arguments.append(graph.scalars.size(), word);
  }
  auto function =
      func::FuncOp::create(b, loc, symbol, b.getFunctionType(arguments, {}));
  b.setInsertionPointToStart(function.addEntryBlock());
  if (schedule.blocks > 0) {
    if (target.isGpu)
      takeArguments(function.getArguments());
    else
      loadArguments(function.getArgument(0), function.getArgument(1));
    int64_t most = schedule.blocks * kBlockThreads * schedule.perThread;
    bool isSmall = std::max(most, schedule.length) <
                   std::numeric_limits<int32_t>::max() / 2;
    countType = isSmall ? b.getI32Type() : b.getI64Type();
    emitEntryOps();
    emitAlignment();
    thread = called(kGridThread, {}, b.getI32Type());
    block = called(kGridBlock, {}, b.getI32Type());
    if (!isSmall) {
      thread = asIndex(thread);
      block = asIndex(block);
    }
    if (graph.hasReduction())
      emitReduction();
    else
      emitElementwise();
  }
  func::ReturnOp::create(b, loc);
  return failure(failed);
}

} // namespace emitter

LogicalResult emitGridKernel(ModuleOp module, llvm::StringRef symbol,
                             const KernelGraph &graph,
                             const GridSchedule &schedule,
                             const KernelTarget &target) {
  return emitter::GridEmitter(module, graph, schedule, target).emit(symbol);
}

} // namespace merak::codegen
