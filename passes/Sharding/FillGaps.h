// What a backward pass can do while it waits for its collectives: recompute
// what only its later part needs, and gradients of weights whose operands are
// there (Domino, Wang et al., 2024, arXiv 2409.15241: gradients of inputs
// first; Oases, Li et al., 2023, arXiv 2305.16121: recomputation under the
// collectives of the other half).
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "passes/Sharding/SubmicrobatchChain.h"

namespace merak {

// Moves ops of R and W into the B of the same chunk where the order of its
// submicrobatches (planning::orderSubmicrobatches) leaves the computing stream
// idle, if the three together take less time then. Every sum keeps its order,
// so no bit changes. Runs before the submicrobatches are told apart. Returns
// the number of ops moved.
int64_t fillGaps(pipe::StageOp stage, const SubmicrobatchChain &chains,
                 int level);

} // namespace merak
