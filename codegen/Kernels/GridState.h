// The state of writing one kernel for a grid; see GridEmitter.h. Members are in
// GridEmitter.cpp (points, passes, sums) and GridValues.cpp (values).
#pragma once

#include "codegen/Kernels/EmitterValues.h"
#include "codegen/Kernels/GridSchedule.h"

#include "llvm/ADT/SetVector.h"

namespace merak::codegen::emitter {

// What a thread knows at one point of the kept dimensions, or (`outer` set) of
// the reduced ones. Values that do not depend on the inner place are computed
// at the outer one.
struct Place {
  Place *outer = nullptr;
  Place *head = nullptr; // of a pack: its first place, which may be this one
  int64_t inPack = 0;    // behind the head
  llvm::DenseMap<unsigned, Value> packs; // of a head: vectors, by access
  llvm::DenseMap<Value, Value> values;
  llvm::DenseMap<unsigned, Value> loads, pointers;
  SmallVector<Value> index;    // by dimension, i64; null: 0 or not known yet
  Value step;                  // index into the reduced dimensions
  Value valid;                 // null: always; else results may not be written
  Operation *before = nullptr; // the loop under construction inside this place
};

class GridEmitter final : ValueEmitter<Place> {
public:
  GridEmitter(ModuleOp module, const KernelGraph &graph,
              const GridSchedule &schedule, const KernelTarget &target)
      : ValueEmitter(module, graph, target), schedule(schedule),
        target(target) {}
  LogicalResult emit(llvm::StringRef symbol);

private:
  // Numbers of threads, points and steps; i32 where all of them fit.
  Value count(int64_t value) { return ops.constantInt(countType, value); }
  Value plus(Value a, Value c) { return arith::AddIOp::create(b, loc, a, c); }
  Value times(Value a, int64_t c);
  Value dividedBy(Value a, int64_t c);
  Value modulo(Value a, int64_t c);
  Value asIndex(Value count);
  Value isBelow(Value a, int64_t bound);
  Value isZero(Value a);
  Value called(llvm::StringRef name, ValueRange arguments, Type result);
  void barrier();
  std::pair<Value, Value> clamp(Value number, int64_t bound, int64_t least);

  // Points.
  void emitElementwise();
  void emitNeighbours(llvm::ArrayRef<Place> firsts);
  void emitPoints(llvm::MutableArrayRef<Place> points);
  void emitReduction();
  void emitPoint(Place point);
  void setKept(Place &point, Value number);
  bool mayUpdateInPlace() const;
  void emitBothWays(Value wholePacks, llvm::function_ref<void()> emit);

  // Passes over the steps of a point.
  void emitPass(Place &point, llvm::MutableArrayRef<Place> steps);
  void emitSteps(llvm::MutableArrayRef<Place> steps, SmallVector<Value> &sums);
  void placeStep(Place &step, Place &point, Value number);
  SmallVector<Reduction> reductionsOf(int pass);
  void planPasses();
  void loadAhead(llvm::MutableArrayRef<Place> steps);
  void readsOf(Value tensor, llvm::SmallDenseSet<Value> &seen,
               llvm::SmallSetVector<unsigned, 8> &reads);
  void readsOf(linalg::GenericOp generic, Value value,
               llvm::SmallDenseSet<Value> &seen,
               llvm::SmallSetVector<unsigned, 8> &reads);

  // Sums of steps and of threads.
  void addSteps(llvm::MutableArrayRef<Place> steps,
                llvm::ArrayRef<SmallVector<Value>> values,
                SmallVector<Value> &sums);
  Value ofSteps(const Reduction &reduction, SmallVector<Value> values,
                Value valid);
  Value finite(Value maximum);
  Value exponential(const RescaledSum &form, Value value, Value from);
  Value rescaled(const RescaledSum &form, Value sum, Value from, Value to);
  unsigned maximumOf(const RescaledSum &form) const;
  Value pickedValue(const Reduction &reduction, Place &point);
  Value startOf(const Reduction &reduction, Place &point);
  void finish(Place &point, llvm::ArrayRef<Value> sums);
  SmallVector<Value> acrossThreads(llvm::ArrayRef<const Reduction *> which,
                                   SmallVector<Value> sums);
  Value acrossColumns(const Reduction &reduction, Value sum);
  Value shuffled(Value value, int64_t mask);
  Value sharedSlot(Value entry);
  Value shared(Value entry, Type type);
  void share(Value sum, Value entry);

  // Values.
  Value load(unsigned access, Place &place) override;
  VectorType packType(Type element);
  unsigned packAlignment(Type element);
  Value packOf(unsigned access, Place &head);
  bool isStream(unsigned access) const;
  void storePack(unsigned output, llvm::ArrayRef<Value> values, Place &head,
                 Value condition);
  // Whether a pack of it lies without gaps.
  bool isPacked(unsigned access) const {
    return schedule.packed >= 0 &&
           graph.accesses[access].strides[schedule.packed] == 1;
  }
  Value whereWritten(const Access &access, Place &place);
  void emitAlignment();
  void placePack(llvm::MutableArrayRef<Place> places, Place &point, Value pack,
                 Value valid);
  void storeAll(llvm::ArrayRef<std::tuple<unsigned, Value, Place *>> stores);
  Value bodyIndex(int dim, Place &place) override;
  Value pointer(unsigned access, Place &place);
  Value indexOf(int dim, Place &place);
  void store(unsigned output, Value value, Place &place, Value condition);
  using EmitterBase::variesInReduced;
  bool variesInReduced(unsigned output) const {
    return graph.variesInReduction(
        graph.operands[graph.firstOutput + output].value);
  }

  const GridSchedule &schedule;
  const KernelTarget &target;
  Type countType;
  Value thread, block; // numbers
  Value lane;          // of the threads of one point
  Value aligned;       // whether packs begin at multiples of their size
  bool inPacks =
      false; // of the code under construction: packs are loaded whole
  LLVM::GlobalOp sharedMemory;
  int64_t sharedHalf = 0;         // of the next exchange
  SmallVector<Reduction> current; // of the pass under construction
  int pass = 0;                   // the one under construction
  // What each pass reads at its steps, and outputs it writes there.
  SmallVector<llvm::SmallSetVector<unsigned, 8>> readsOfPass;
  SmallVector<int> storedIn;
};

} // namespace merak::codegen::emitter
