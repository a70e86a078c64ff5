// Working memory of library kernels on CPUs, which is no part of the arena.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

// Bytes of one thread of a rank that runs the program: panels that matrix
// products pack and scores of attention, each for the largest instruction. The
// rest of the kernels' working memory is some rows.
int64_t workspaceBytes(const planpb::Program &program);

} // namespace merak
