// Runs kernels written for a grid of threads on this processor: one block at a
// time, each thread a coroutine that leaves the processor at every barrier.
#pragma once

#include <cstdint>
#include <string>

namespace merak::codegen::test {

using Call = void (*)(void *const *, const int64_t *, int64_t, int64_t);

// Fills the table of a loaded kernel file (GridLowering.h).
void fillGridTable(void **table);

// Runs `blocks` blocks of `threads` threads. Blocks, the warps of one between
// two barriers and the threads of a warp between two places where they wait for
// each other run in an order that depends on `seed`. The error: threads that do
// not come to the same places; empty if there is none.
std::string runGrid(Call kernel, void *const *operands, const int64_t *scalars,
                    int64_t blocks, int64_t threads, uint64_t seed);

} // namespace merak::codegen::test
