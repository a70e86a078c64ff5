// The state of writing one kernel; see KernelEmitter.h. Members are in
// KernelEmitter.cpp (loops) and KernelValues.cpp (addresses and values).
#pragma once

#include "codegen/Kernels/EmitterValues.h"
#include "codegen/Kernels/KernelSchedule.h"

#include <optional>

namespace merak::codegen::emitter {

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

class Emitter final : ValueEmitter<Frame> {
public:
  Emitter(ModuleOp module, const KernelGraph &graph,
          const KernelSchedule &schedule, const KernelTarget &target)
      : ValueEmitter(module, graph, target), schedule(schedule) {}
  LogicalResult emit(llvm::StringRef symbol);

private:
  // Loops.
  void emitItem(Value item);
  void emitKept(unsigned level, Value blockBegin, Value blockEnd);
  void emitLanes(Value begin, Value end);
  void emitPoint(llvm::ArrayRef<std::pair<Value, int64_t>> groups);
  void emitPass(int pass, llvm::MutableArrayRef<Frame> points);
  SmallVector<Value> emitOuterReduced(unsigned level, ValueRange sums);
  SmallVector<Value> emitRun(ValueRange sums);
  SmallVector<Value> emitSpan(Value begin, Value end, int64_t steps,
                              size_t count);
  SmallVector<Value> neutralSums(size_t count);
  void prefetchAhead(Frame &frame);
  SmallVector<Value> emitStep(Value l, int64_t active, ValueRange sums);
  SmallVector<Value>
  emitFor(Value begin, Value end, int64_t step, ValueRange carried,
          llvm::function_ref<SmallVector<Value>(Value, ValueRange)> body);
  SmallVector<Value> combineAll(ValueRange a, ValueRange c);
  Value reduceLanes(const Reduction &reduction, Value sum);
  void planScratch();

  // Values.
  Value load(unsigned access, Frame &frame) override;
  Value bodyIndex(int dim, Frame &frame) override {
    return laneIndexOf(dim, frame);
  }
  Value produce(Value value, Frame &frame) override;
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
  bool crossesLanes() const { // see runLaneIndex
    return schedule.lanesInRun && schedule.run.size() > 1 &&
           size(schedule.run.back()) % kLanes != 0;
  }

  const KernelSchedule &schedule;
  SmallVector<Value> keptIndex; // by dimension, while nesting
  llvm::MutableArrayRef<Frame> points;
  SmallVector<Reduction> current; // of the pass under construction
  SmallVector<Value> reducedIndex;
  int pass = 0;
  // Values kept in a buffer of one run instead of being computed again.
  llvm::DenseMap<Value, int> scratchPass; // the pass that fills it
  llvm::DenseMap<Value, Value> scratch;
};

} // namespace merak::codegen::emitter
