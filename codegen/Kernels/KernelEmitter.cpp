// Loops of a kernel under construction: passes over the reduced dimensions,
// points of the kept ones, items.
#include "codegen/Kernels/KernelEmitter.h"

#include "codegen/Kernels/EmitterState.h"
#include "codegen/Kernels/ScalarTable.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace merak::codegen {

namespace emitter {

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
  if (schedule.lanesInKept())
    for (Frame &frame : frames)
      prefetchAhead(frame);
  SmallVector<Value> results = combineAll(sums, contributions);
  // All reads of a step come before its writes: operands may be updated in
  // place.
  unsigned perFrame = stores.size() / frames.size();
  for (auto [i, entry] : llvm::enumerate(stores))
    store(entry.first, entry.second, frames[i / perFrame]);
  return results;
}

SmallVector<Value> Emitter::neutralSums(size_t count) {
  SmallVector<Value> values;
  for (size_t i = 0; i < count; ++i) {
    const Reduction &reduction = current[i % current.size()];
    values.push_back(
        ops.constant(ops.vectorType(reduction.element),
                     ScalarOps::neutral(reduction.combiner,
                                        ops.scalarType(reduction.element))));
  }
  return values;
}

// Sums of `steps` steps from `begin`. Along lanes, step j adds to sum j mod 4:
// four additions are under way at a time. The sums take turns at the front of
// what the loop carries.
SmallVector<Value> Emitter::emitSpan(Value begin, Value end, int64_t steps,
                                     size_t count) {
  size_t turns = schedule.lanesInRun ? std::min<int64_t>(kTurns, steps) : 1;
  int64_t step = schedule.lanesInRun ? kLanes : 1;
  SmallVector<Value> carried = neutralSums(count * turns);
  auto oneStep = [&](Value l, ValueRange sums) {
    SmallVector<Value> first(sums.take_front(count));
    SmallVector<Value> next(sums.drop_front(count));
    next.append(emitStep(l, kLanes, first));
    return next;
  };
  carried = steps == 1 ? oneStep(begin, carried)
                       : emitFor(begin, end, step, carried, oneStep);
  if (failed)
    return neutralSums(count);
  auto sumOf = [&](size_t turn) {
    size_t at = (turn + turns - steps % turns) % turns;
    return ValueRange(carried).slice(at * count, count);
  };
  SmallVector<SmallVector<Value>> sums;
  for (size_t turn = 0; turn < turns; ++turn)
    sums.push_back(SmallVector<Value>(sumOf(turn)));
  for (size_t width = sums.size(); width > 1; width = (width + 1) / 2)
    for (size_t i = 0; i < width / 2; ++i)
      sums[i] = combineAll(sums[i], sums[i + (width + 1) / 2]);
  return sums[0];
}

SmallVector<Value> Emitter::emitRun(ValueRange start) {
  int64_t step = schedule.lanesInRun ? kLanes : 1;
  int64_t steps = schedule.runLength / step;
  int64_t full = steps * step, chunk = kChunk * step;
  SmallVector<Value> sums(start);
  size_t count = sums.size();
  if (count == 0) {
    auto oneStep = [&](Value l, ValueRange none) {
      return emitStep(l, kLanes, none);
    };
    if (steps == 1)
      emitStep(i64(0), kLanes, {});
    else if (steps > 1)
      emitFor(i64(0), i64(full), step, {}, oneStep);
  } else {
    int64_t rest = steps % kChunk;
    // One loop over chunks does for a shorter last one too if the sums' turns
    // end as in the others.
    bool allAlike = !schedule.lanesInRun || rest % kTurns == 0;
    int64_t looped = steps <= kChunk ? 0 : allAlike ? steps : steps - rest;
    if (looped > 0)
      sums = emitFor(
          i64(0), i64(looped * step), chunk, sums,
          [&](Value begin, ValueRange carried) {
            Value end = addI(begin, i64(chunk));
            if (looped % kChunk)
              end = arith::MinSIOp::create(b, loc, end, i64(looped * step));
            return combineAll(carried, emitSpan(begin, end, kChunk, count));
          });
    if (looped < steps && !failed)
      sums = combineAll(
          sums, emitSpan(i64(looped * step), i64(full), steps - looped, count));
  }
  if (int64_t rest = schedule.runLength - full; rest && !failed)
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

void Emitter::emitPass(int number, llvm::MutableArrayRef<Frame> frames) {
  pass = number;
  current.clear();
  for (auto generic : kernel.getOps<linalg::GenericOp>())
    for (OpResult result : generic->getResults())
      if (graph.isReduction(result) && graph.passOf(result) == number)
        current.push_back(describe(result));
  if (failed)
    return;
  SmallVector<Value> sums = neutralSums(frames.size() * current.size());
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
      sum += scalarOp(&op).cost;
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
    loadArguments(function.getArgument(0), function.getArgument(1));
    emitEntryOps();
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

} // namespace emitter

LogicalResult emitKernel(ModuleOp module, llvm::StringRef symbol,
                         const KernelGraph &graph,
                         const KernelSchedule &schedule,
                         const KernelTarget &target) {
  return emitter::Emitter(module, graph, schedule, target).emit(symbol);
}

} // namespace merak::codegen
