// Writes one kernel as a function that every thread of a grid runs: scalars
// (arith), memory accesses (llvm), and calls of the few functions below, which
// the lowering replaces by what the target has.
#pragma once

#include "codegen/Kernels/GridSchedule.h"
#include "codegen/Kernels/KernelTarget.h"

namespace merak::codegen {

// i32 (): the thread in its block, the block in its grid.
inline constexpr const char *kGridThread = "merak.grid.thread";
inline constexpr const char *kGridBlock = "merak.grid.block";
// void (): until all threads of the block, or of the warp, are here, what they
// wrote seen by all of them.
inline constexpr const char *kGridBarrier = "merak.grid.barrier";
inline constexpr const char *kGridWarpBarrier = "merak.grid.warp_barrier";
// i32 (i32 value, i32 mask): the value of the thread of this warp whose number
// differs by `mask` (exclusive or). All threads of the warp call it.
inline constexpr const char *kGridShuffle = "merak.grid.shuffle";

// Appends `func.func @symbol` to `module`. For a GPU its parameters are an
// address for each operand and 64 bits for each scalar; else those of a CPU
// kernel. Fails with an error at an op that has no implementation.
mlir::LogicalResult emitGridKernel(mlir::ModuleOp module,
                                   llvm::StringRef symbol,
                                   const KernelGraph &graph,
                                   const GridSchedule &schedule,
                                   const KernelTarget &target);

} // namespace merak::codegen
