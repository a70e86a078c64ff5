// The state of writing one kernel; see KernelEmitter.h. Members are in
// KernelEmitter.cpp (loops) and KernelValues.cpp (addresses and values).
#pragma once

#include "codegen/Kernels/KernelGraph.h"
#include "codegen/Kernels/KernelSchedule.h"
#include "codegen/Kernels/ScalarOps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

#include <optional>

namespace merak::codegen::emitter {

using namespace mlir;

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

} // namespace merak::codegen::emitter
