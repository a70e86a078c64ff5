// Sums of a grid kernel: of a thread's steps, and of the threads of a point.
#include "codegen/Kernels/GridEmitter.h"
#include "codegen/Kernels/GridState.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

#include <limits>

using namespace mlir;

namespace merak::codegen::emitter {

//===----------------------------------------------------------------------===//
// Sums of steps
//===----------------------------------------------------------------------===//

// Of a few neighbouring steps: the values of all of them pair by pair.
Value GridEmitter::ofSteps(const Reduction &reduction,
                           SmallVector<Value> values, Value valid) {
  while (values.size() > 1) {
    SmallVector<Value> halved;
    for (size_t i = 0; i + 1 < values.size(); i += 2)
      halved.push_back(
          ops.emit(reduction.combiner, {values[i], values[i + 1]}));
    if (values.size() % 2 != 0)
      halved.push_back(values.back());
    values = std::move(halved);
  }
  Value sum = values.front();
  if (!valid)
    return sum;
  return arith::SelectOp::create(
      b, loc, valid, sum,
      ops.constant(sum.getType(),
                   ScalarOps::neutral(reduction.combiner, sum.getType())));
}

// Adds the values of steps to the sums so far.
void GridEmitter::addSteps(llvm::MutableArrayRef<Place> steps,
                           llvm::ArrayRef<SmallVector<Value>> values,
                           SmallVector<Value> &sums) {
  // Steps that exist together, as many as a tree takes.
  SmallVector<std::pair<size_t, size_t>> groups;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!groups.empty()) {
      auto &[begin, end] = groups.back();
      if (end - begin < kTree && steps[begin].valid == steps[i].valid) {
        ++end;
        continue;
      }
    }
    groups.emplace_back(i, i + 1);
  }
  auto add = [&](size_t number, llvm::ArrayRef<Value> of, Value sum) {
    const Reduction &reduction = current[number];
    for (auto [begin, end] : groups)
      sum = ops.emit(
          reduction.combiner,
          {sum,
           ofSteps(reduction, SmallVector<Value>(of.slice(begin, end - begin)),
                   steps[begin].valid)});
    return sum;
  };
  const SmallVector<Value> before = sums;
  for (size_t i = 0; i < current.size(); ++i) {
    auto form = schedule.rescaled.find(current[i].result);
    if (form == schedule.rescaled.end()) {
      sums[i] = add(i, values[i], sums[i]);
      continue;
    }
    // Relative to the largest value so far.
    const unsigned maximum = maximumOf(form->second);
    Value from = finite(sums[maximum]);
    SmallVector<Value> terms;
    for (Value value : values[maximum])
      terms.push_back(exponential(form->second, value, from));
    sums[i] =
        add(i, terms, rescaled(form->second, sums[i], before[maximum], from));
  }
}

// Nothing lies infinitely far below a value of no step.
Value GridEmitter::finite(Value maximum) {
  Type type = maximum.getType();
  Value least = ops.constant(
      type, FloatAttr::get(type, -std::numeric_limits<double>::infinity()));
  Value isLeast =
      arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OEQ, maximum, least);
  return arith::SelectOp::create(
      b, loc, isLeast, ops.constant(type, FloatAttr::get(type, 0.0)), maximum);
}

Value GridEmitter::exponential(const RescaledSum &form, Value value,
                               Value from) {
  return ops.emit(form.exponential, ops.emit(form.difference, {value, from}));
}

// A sum relative to `from` as one relative to `to`.
Value GridEmitter::rescaled(const RescaledSum &form, Value sum, Value from,
                            Value to) {
  return arith::MulFOp::create(b, loc, sum, exponential(form, from, to));
}

unsigned GridEmitter::maximumOf(const RescaledSum &form) const {
  const auto *found = llvm::find_if(current, [&](const Reduction &reduction) {
    return reduction.result == form.maximum;
  });
  return static_cast<unsigned>(found - current.begin());
}

// The only term of a sum that is not zero.
Value GridEmitter::pickedValue(const Reduction &reduction, Place &point) {
  auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
  const PickedSum &form = schedule.picked.find(reduction.result)->second;
  Place any, step;
  placeStep(any, point, count(0));
  Value position = bodyValue(generic, form.position, any);
  if (position.getType() != b.getI64Type())
    position = arith::ExtSIOp::create(b, loc, b.getI64Type(), position);
  Value exists = isBelow(position, schedule.length);
  position = arith::SelectOp::create(b, loc, exists, position, i64(0));
  if (!countType.isInteger(64))
    position = arith::TruncIOp::create(b, loc, countType, position);
  placeStep(step, point, position);
  Value value = bodyValue(generic, form.picked, step);
  if (failed)
    return nullptr;
  return arith::SelectOp::create(
      b, loc, exists, value,
      ops.constant(value.getType(),
                   ScalarOps::neutral(reduction.combiner, value.getType())));
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
  Value base = LLVM::AddressOfOp::create(b, loc, sharedMemory);
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  if (base.getType() != pointer)
    base = LLVM::AddrSpaceCastOp::create(b, loc, pointer, base);
  return LLVM::GEPOp::create(b, loc, pointer, b.getI64Type(), base,
                             llvm::ArrayRef<LLVM::GEPArg>{asIndex(entry)});
}

Value GridEmitter::shared(Value entry, Type type) {
  const bool isBit = type.isInteger(1);
  Value part = LLVM::LoadOp::create(b, loc, isBit ? Type(b.getI8Type()) : type,
                                    sharedSlot(entry));
  return isBit ? ops.fromMemory(part, type) : part;
}
void GridEmitter::share(Value sum, Value entry) {
  Type type = sum.getType();
  LLVM::StoreOp::create(b, loc,
                        type.isInteger(1) ? ops.toMemory(sum, type) : sum,
                        sharedSlot(entry));
}

void GridEmitter::barrier() {
  called(schedule.threads <= kWarp && !schedule.columns ? kGridWarpBarrier
                                                        : kGridBarrier,
         {}, Type());
}

// The sum over all threads of the point, which lie `points` apart. Reductions
// use the same shared memory one after the other, so that any number of them
// fits.
Value GridEmitter::acrossColumns(const Reduction &reduction, Value sum) {
  const int64_t partials = schedule.partials();
  if (partials == 1)
    return sum;
  // Partial sum j of point p lies at j * points + p.
  const int64_t points = schedule.pointsOfBlock();
  Value point = modulo(thread, points);
  share(sum, plus(times(lane, points), point));
  barrier();
  Type type = sum.getType();
  sum = nullptr;
  for (int64_t j = 0; j < partials; ++j) {
    Value part = shared(plus(point, count(j * points)), type);
    sum = sum ? ops.emit(reduction.combiner, {sum, part}) : part;
  }
  barrier();
  return sum;
}

// The sums over all threads of the point, which lie side by side. Two exchanges
// through shared memory take turns with its halves: whoever writes to one again
// has been at a barrier that all came to after they read it.
SmallVector<Value>
GridEmitter::acrossThreads(llvm::ArrayRef<const Reduction *> which,
                           SmallVector<Value> sums) {
  for (int64_t mask = 1; mask < std::min(schedule.threads, kWarp); mask *= 2)
    for (auto [reduction, sum] : llvm::zip(which, sums))
      sum = ops.emit(reduction->combiner, {sum, shuffled(sum, mask)});
  const int64_t partials = schedule.partials();
  if (partials == 1)
    return sums;
  const int64_t warps = schedule.blockThreads / kWarp;
  constexpr int64_t kAtOnce = kWarp / 2;
  Value first = times(dividedBy(thread, schedule.threads), partials);
  for (int64_t begin = 0; begin < static_cast<int64_t>(sums.size());
       begin += kAtOnce) {
    const int64_t end =
        std::min<int64_t>(begin + kAtOnce, static_cast<int64_t>(sums.size()));
    const int64_t half = sharedHalf * kAtOnce * warps;
    sharedHalf = 1 - sharedHalf;
    {
      OpBuilder::InsertionGuard guard(b);
      Value warp = dividedBy(thread, kWarp);
      auto branch = scf::IfOp::create(b, loc, isZero(modulo(lane, kWarp)),
                                      /*withElse=*/false);
      b.setInsertionPoint(branch.thenYield());
      for (int64_t i = begin; i < end; ++i)
        share(sums[i], plus(warp, count(half + (i - begin) * warps)));
    }
    barrier();
    for (int64_t i = begin; i < end; ++i) {
      Type type = sums[i].getType();
      sums[i] = nullptr;
      for (int64_t j = 0; j < partials; ++j) {
        Value part =
            shared(plus(first, count(half + (i - begin) * warps + j)), type);
        sums[i] =
            sums[i] ? ops.emit(which[i]->combiner, {sums[i], part}) : part;
      }
    }
  }
  return sums;
}

// The value that a sum starts from.
Value GridEmitter::startOf(const Reduction &reduction, Place &point) {
  auto generic = cast<linalg::GenericOp>(reduction.result.getOwner());
  return operandOf(generic->getOpOperand(generic.getNumDpsInputs() +
                                         reduction.result.getResultNumber()),
                   point);
}

// What the threads of a point have of the pass's sums becomes its values; those
// that are rescaled come when their maximum is known.
void GridEmitter::finish(Place &point, llvm::ArrayRef<Value> sums) {
  for (const bool isRescaled : {false, true}) {
    SmallVector<const Reduction *> which;
    SmallVector<Value> parts;
    for (auto [reduction, sum] : llvm::zip(current, sums)) {
      auto form = schedule.rescaled.find(reduction.result);
      if ((form != schedule.rescaled.end()) != isRescaled)
        continue;
      Value part = sum;
      if (isRescaled)
        part = rescaled(form->second, part, sums[maximumOf(form->second)],
                        point.values[form->second.maximum]);
      which.push_back(&reduction);
      parts.push_back(part);
    }
    if (schedule.columns)
      for (auto [reduction, part] : llvm::zip(which, parts))
        part = acrossColumns(*reduction, part);
    else
      parts = acrossThreads(which, parts);
    for (auto [reduction, part] : llvm::zip(which, parts)) {
      Value start = startOf(*reduction, point);
      if (failed)
        return;
      point.values[reduction->result] =
          ops.emit(reduction->combiner, {start, part});
    }
  }
}

} // namespace merak::codegen::emitter
