// Passes of the memory phase.
#ifndef MERAK_MEMORY_PASSES
#define MERAK_MEMORY_PASSES

include "mlir/Pass/PassBase.td"

def AssignMemory : Pass<"merak-assign-memory", "::mlir::ModuleOp"> {
  let summary = "give every buffer its place in the arena of a rank";
  let description = [{
    From the start of the arena: parameters, gradients (those of a joined
    collective one behind the other), optimizer state, other values of the step, the slots of activations, then one region that all
    procedures share for what lives inside an action. There a buffer keeps its
    bytes from its first to its last instruction; a collective or transfer that
    runs beside the computation extends the lives of its operands to where the
    computation waits for it.

    Output: `offset` and `slot_stride` of buffers, `arena` of programs, and the
    attribute `plan.memory` with the bytes of each category.
  }];
  let options = [
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "bytes of one device; more is an error that lists the largest live buffers (0: what the stage phase noted, or no limit)">
  ];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"arenaBytes", "arena-bytes", "bytes of the largest arena">,
    Statistic<"lowerBoundBytes", "lower-bound-bytes", "bytes below which no packing of that arena can go">
  ];
}

def VerifyMemory : Pass<"merak-verify-memory", "::mlir::ModuleOp"> {
  let summary = "check that no two buffers that live at once share bytes";
  let description = [{
    LiveBytes of transient buffers are recomputed from the instructions. All
    overlaps are reported, with both buffers.
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
}

#endif
