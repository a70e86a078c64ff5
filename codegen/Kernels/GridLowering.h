// Gives the functions that grid kernels call (GridEmitter.h) a meaning in LLVM
// IR.
#pragma once

namespace llvm {
class Module;
} // namespace llvm

namespace merak::codegen {

// Entries of the table below.
enum GridCall {
  GridThread,
  GridBlock,
  GridBarrier,
  GridWarpBarrier,
  GridShuffle,
  GridCalls
};
// The symbol of the host's table of function addresses, by GridCall.
inline constexpr const char *kGridTable = "merak_grid_table";

// On a GPU its own instructions, and kernels become entries. On a host, calls
// through a table that whoever simulates a grid fills in.
void lowerGridCalls(llvm::Module &module, bool isGpu);

} // namespace merak::codegen
