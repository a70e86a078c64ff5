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
// Passes over the reduced dimensions
//===----------------------------------------------------------------------===//

void GridEmitter::placeStep(Place &step, Place &point, Value number) {
  step.outer = &point;
  step.index.assign(graph.dims.size(), nullptr);
  step.step = number;
}

// Adds what these steps contribute to `sums` and writes the results of the
// pass. All reads come before the writes: loads overlap, and operands may be
// updated in place.
void GridEmitter::emitSteps(llvm::MutableArrayRef<Place> steps,
                            SmallVector<Value> &sums) {
  SmallVector<std::tuple<unsigned, Value, Place *>> stores;
  SmallVector<SmallVector<Value>> contributions(current.size());
  for (Place &step : steps) {
    for (auto [i, reduction] : llvm::enumerate(current)) {
      if (schedule.rescaled.count(reduction.result))
        continue; // of what its maximum compares
      auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
      contributions[i].push_back(
          bodyValue(generic, reduction.contribution, step));
      if (failed)
        return;
    }
    for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
      if (storedIn[i] != pass)
        continue;
      Value value = valueOf(graph.operands[graph.firstOutput + i].value, step);
      if (failed)
        return;
      stores.emplace_back(i, value, &step);
    }
  }
  if (!steps.empty())
    addSteps(steps, contributions, sums);
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
    if (inPacks && places.size() > 1) {
      place.head = &places.front();
      place.inPack = static_cast<int64_t>(i);
    }
  }
}

SmallVector<Reduction> GridEmitter::reductionsOf(int number) {
  SmallVector<Reduction> reductions;
  for (auto generic : kernel.getOps<linalg::GenericOp>())
    for (OpResult result : generic->getResults())
      if (auto its = schedule.passOf.find(result);
          its != schedule.passOf.end() && its->second == number)
        reductions.push_back(describe(result));
  return reductions;
}

// What a tensor's value, or one inside the body of an op, reads at each step.
void GridEmitter::readsOf(Value tensor, llvm::SmallDenseSet<Value> &seen,
                          llvm::SmallSetVector<unsigned, 8> &reads) {
  auto generic = tensor.getDefiningOp<linalg::GenericOp>();
  if (!generic || !graph.variesInReduction(tensor))
    return;
  auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
  readsOf(generic, yield.getOperand(cast<OpResult>(tensor).getResultNumber()),
          seen, reads);
}
void GridEmitter::readsOf(linalg::GenericOp generic, Value value,
                          llvm::SmallDenseSet<Value> &seen,
                          llvm::SmallSetVector<unsigned, 8> &reads) {
  if (!seen.insert(value).second)
    return;
  if (auto arg = dyn_cast<BlockArgument>(value)) {
    if (arg.getOwner() != generic.getBody())
      return;
    OpOperand &operand = generic->getOpOperand(arg.getArgNumber());
    auto access = graph.readAccess.find(&operand);
    if (access == graph.readAccess.end())
      readsOf(operand.get(), seen, reads);
    else
      reads.insert(access->second);
    return;
  }
  if (Operation *op = value.getDefiningOp();
      op && op->getBlock() == generic.getBody())
    for (Value operand : op->getOperands())
      readsOf(generic, operand, seen, reads);
}

// What each pass reads and writes. Results are written in the last pass, as
// operands that are updated in place are read again in each; where a row stays
// in registers, as soon as they are known, unless a later pass is the first to
// read an operand that could be such a one.
void GridEmitter::planPasses() {
  storedIn.assign(graph.outputAccess.size(), -1);
  readsOfPass.assign(schedule.passes, {});
  const int last = schedule.passes - 1;
  llvm::SmallSetVector<unsigned, 8> early;
  for (int number = 0; number <= last && !failed; ++number) {
    llvm::SmallDenseSet<Value> seen;
    auto &reads = readsOfPass[number];
    for (const Reduction &reduction : reductionsOf(number))
      if (!failed && !schedule.picked.count(reduction.result))
        readsOf(cast<linalg::GenericOp>(reduction.result.getOwner()),
                reduction.contribution, seen, reads);
    for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
      Value value = graph.operands[graph.firstOutput + i].value;
      const bool isKnown = schedule.loopedPacks() > 0
                               ? number == last
                               : number >= schedule.knownIn.lookup(value);
      if (!variesInReduced(i) || !isKnown)
        continue;
      if (storedIn[i] < 0)
        storedIn[i] = number;
      if (storedIn[i] == number)
        readsOf(value, seen, reads);
    }
  }
  for (unsigned i = 0; i < storedIn.size(); ++i) {
    const Access &written = graph.accesses[graph.outputAccess[i]];
    for (int number = 0; number <= storedIn[i]; ++number)
      early.insert(readsOfPass[number].begin(), readsOfPass[number].end());
    for (int number = storedIn[i] + 1; storedIn[i] >= 0 && number <= last;
         ++number)
      for (unsigned read : readsOfPass[number])
        if (!early.contains(read) &&
            graph.accesses[read].strides == written.strides)
          storedIn[i] = last;
    early.clear();
  }
}

// Loads what these steps need from memory that nothing else reads, before any
// of it is used: so much is under way at once.
void GridEmitter::loadAhead(llvm::MutableArrayRef<Place> steps) {
  for (Place &step : steps)
    for (unsigned number : readsOfPass[pass]) {
      if (!isStream(number))
        continue;
      if (!step.head || !isPacked(number))
        load(number, step);
      else if (step.head == &step)
        packOf(number, step);
    }
}

// Pack i of a thread is number lane + i * threads. `straight` are the steps of
// its last packs; those before are a loop.
void GridEmitter::emitPass(Place &point,
                           llvm::MutableArrayRef<Place> straight) {
  const SmallVector<Reduction> all = reductionsOf(pass);
  if (failed)
    return;
  ops.forgetUnrounded();
  current = all;
  llvm::erase_if(current, [&](const Reduction &reduction) {
    return schedule.picked.count(reduction.result) > 0;
  });
  SmallVector<Value> sums;
  for (const Reduction &reduction : current) {
    Type type = ops.scalarType(reduction.element);
    sums.push_back(
        ops.constant(type, ScalarOps::neutral(reduction.combiner, type)));
  }
  // Where a loop has nothing to do in the pass there is none.
  const bool isNeeded = llvm::is_contained(storedIn, pass) || !current.empty();
  const int64_t looped = isNeeded ? schedule.loopedPacks() : 0;
  const int64_t pack = schedule.pack, together = schedule.together;
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
    loadAhead(places);
    emitSteps(places, inner);
    point.before = nullptr;
    if (failed)
      return;
    if (!sums.empty())
      scf::YieldOp::create(b, loc, inner);
    sums.assign(loop.result_begin(), loop.result_end());
  }
  loadAhead(straight);
  emitSteps(straight, sums);
  if (failed)
    return;
  finish(point, sums);
  for (const Reduction &reduction : all) {
    if (!schedule.picked.count(reduction.result))
      continue;
    Value start = startOf(reduction, point);
    Value picked = pickedValue(reduction, point);
    if (failed)
      return;
    point.values[reduction.result] =
        ops.emit(reduction.combiner, {start, picked});
  }
}

//===----------------------------------------------------------------------===//
// Points
//===----------------------------------------------------------------------===//

// `number` counts through the kept dimensions, the last fastest, or through the
// packs of the last one.
void GridEmitter::setKept(Place &point, Value number) {
  point.index.assign(graph.dims.size(), nullptr);
  for (unsigned i = schedule.kept.size(); i-- > 0;) {
    const int dim = schedule.kept[i];
    const bool ofPacks = dim == schedule.packed;
    const int64_t length = ofPacks ? schedule.packsOfRow : size(dim);
    if (size(dim) > 1) {
      Value index = i ? modulo(number, length) : number;
      point.index[dim] = asIndex(ofPacks ? times(index, schedule.pack) : index);
    }
    number = dividedBy(number, length);
  }
}

void GridEmitter::emitElementwise() {
  const bool ofPacks = schedule.pack > 1;
  const int64_t each = schedule.perThread / schedule.pack;
  const int64_t ofBlock = schedule.blockThreads * each;
  Value first = plus(times(block, ofBlock), thread);
  SmallVector<Place> points(each);
  for (auto [k, point] : llvm::enumerate(points)) {
    Value number =
        k ? plus(first, count(static_cast<int64_t>(k) * schedule.blockThreads))
          : first;
    std::tie(number, point.valid) =
        clamp(number, ofPacks ? schedule.packs : schedule.points,
              schedule.blocks * ofBlock);
    setKept(point, number);
  }
  if (!ofPacks) {
    emitPoints(points);
    return;
  }
  // The last pack of a row may lack elements.
  const int64_t row = size(schedule.packed);
  Value whole = aligned;
  if (row % schedule.pack != 0)
    for (const Place &point : points)
      whole = both(whole, isBelow(point.index[schedule.packed],
                                  row - schedule.pack + 1));
  emitBothWays(whole, [&] { emitNeighbours(points); });
}

// The points of packs, of which these are the first ones.
void GridEmitter::emitNeighbours(llvm::ArrayRef<Place> firsts) {
  const int64_t row = size(schedule.packed);
  SmallVector<Place> points(schedule.perThread);
  for (auto [i, point] : llvm::enumerate(points)) {
    const size_t k = i % static_cast<size_t>(schedule.pack);
    const Place &first = firsts[i / static_cast<size_t>(schedule.pack)];
    point.valid = first.valid;
    point.index = first.index;
    Value &index = point.index[schedule.packed];
    if (k > 0)
      index = addI(index, i64(static_cast<int64_t>(k)));
    if (inPacks) {
      point.head = &points[i - k];
      point.inPack = static_cast<int64_t>(k);
    } else if (k > 0 && row % schedule.pack != 0) {
      Value exists = isBelow(index, row);
      index = arith::SelectOp::create(b, loc, exists, index, i64(row - 1));
      point.valid = both(point.valid, exists);
    }
  }
  emitPoints(points);
}

void GridEmitter::emitPoints(llvm::MutableArrayRef<Place> points) {
  SmallVector<std::tuple<unsigned, Value, Place *>> stores;
  for (Place &point : points)
    for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
      Value value = valueOf(graph.operands[graph.firstOutput + i].value, point);
      if (failed)
        return;
      stores.emplace_back(i, value, &point);
    }
  storeAll(stores);
}

void GridEmitter::emitReduction() {
  const int64_t threads = schedule.threads, ofBlock = schedule.pointsOfBlock();
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
  if (schedule.pack > 1)
    emitBothWays(aligned, [&] { emitPoint(point); });
  else
    emitPoint(point);
}

void GridEmitter::emitPoint(Place point) {
  const int64_t threads = schedule.threads;
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
  for (pass = 0; pass < schedule.passes && !failed; ++pass)
    emitPass(point, straight);
  SmallVector<std::pair<unsigned, Value>> stores;
  for (unsigned i = 0; i < graph.outputAccess.size() && !failed; ++i)
    if (!variesInReduced(i))
      stores.emplace_back(
          i, valueOf(graph.operands[graph.firstOutput + i].value, point));
  if (failed || stores.empty())
    return;
  // Other threads may still read an operand that is updated in place.
  if (threads > 1 && mayUpdateInPlace())
    barrier();
  for (auto &[output, value] : stores)
    store(output, value, point, threads > 1 ? isZero(lane) : Value());
}

// Whether a result of points, not of steps, may lie where an operand does.
bool GridEmitter::mayUpdateInPlace() const {
  for (unsigned i = 0; i < graph.outputAccess.size(); ++i) {
    const Access &written = graph.accesses[graph.outputAccess[i]];
    const KernelOperand &output = graph.operands[written.operand];
    if (variesInReduced(i))
      continue;
    for (const Access &read : graph.accesses)
      if (read.operand < graph.firstOutput && read.strides == written.strides &&
          graph.operands[read.operand].element == output.element)
        return true;
  }
  return false;
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
    auto type = LLVM::LLVMArrayType::get(word, schedule.blockThreads);
    sharedMemory = LLVM::GlobalOp::create(
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
  if (target.isGpu) {
    // What the runtime launches it with.
    SmallVector<Attribute> bounds = {b.getStrArrayAttr(
        {"nvvm.maxntid", std::to_string(schedule.blockThreads)})};
    if (schedule.blocksTogether > 0)
      bounds.push_back(b.getStrArrayAttr(
          {"nvvm.minctasm", std::to_string(schedule.blocksTogether)}));
    function->setAttr("passthrough", b.getArrayAttr(bounds));
  }
  b.setInsertionPointToStart(function.addEntryBlock());
  if (schedule.blocks > 0) {
    if (target.isGpu)
      takeArguments(function.getArguments());
    else
      loadArguments(function.getArgument(0), function.getArgument(1));
    int64_t most = schedule.blocks * schedule.blockThreads * schedule.perThread;
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
    planPasses();
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
