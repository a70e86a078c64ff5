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
  for (auto &[output, value, step] : stores)
    store(output, value, *step, step->outer->valid);
}

// Step i of a thread is number lane + i * threads. `straight` are its last
// steps; those before are a loop.
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
  int64_t steps = (schedule.length + schedule.threads - 1) / schedule.threads;
  int64_t looped = steps - static_cast<int64_t>(straight.size());
  if (looped > 0) {
    auto loop = scf::ForOp::create(b, loc, count(0), count(looped),
                                   count(kUnroll), sums);
    OpBuilder::InsertionGuard guard(b);
    point.before = loop;
    if (sums.empty())
      b.setInsertionPoint(loop.getBody()->getTerminator());
    else
      b.setInsertionPointToStart(loop.getBody());
    SmallVector<Value> inner(loop.getRegionIterArgs());
    Place places[kUnroll];
    Value first = plus(lane, times(loop.getInductionVar(), schedule.threads));
    for (int64_t u = 0; u < kUnroll; ++u)
      placeStep(places[u], point,
                u ? plus(first, count(u * schedule.threads)) : first);
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
  int64_t ofBlock = kBlockThreads * schedule.perThread;
  Value first = plus(times(block, ofBlock), thread);
  SmallVector<Place> points(schedule.perThread);
  SmallVector<std::tuple<unsigned, Value, Place *>> stores;
  for (auto [k, point] : llvm::enumerate(points)) {
    Value number =
        k ? plus(first, count(static_cast<int64_t>(k) * kBlockThreads)) : first;
    std::tie(number, point.valid) =
        clamp(number, schedule.points, schedule.blocks * ofBlock);
    setKept(point, number);
    for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
      Value value = valueOf(graph.operands[graph.firstOutput + i].value, point);
      if (failed)
        return;
      stores.emplace_back(i, value, &point);
    }
  }
  for (auto &[output, value, point] : stores)
    store(output, value, *point, nullptr);
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
  int64_t steps = (schedule.length + threads - 1) / threads;
  int64_t full = schedule.length / threads;
  int64_t looped = steps <= kStraightSteps ? 0 : full / kUnroll * kUnroll;
  SmallVector<Place> straight(steps - looped);
  for (auto [i, step] : llvm::enumerate(straight)) {
    int64_t at = (looped + static_cast<int64_t>(i)) * threads;
    auto [index, exists] =
        clamp(at ? plus(lane, count(at)) : lane, schedule.length, at + threads);
    placeStep(step, point, index);
    step.valid = exists;
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
