// State in memory of its own: what a successor keeps of it is not copied.
#pragma once

#include "runtime/core/Arena.h"
#include "runtime/plan/Plan.h"

namespace merak::migration {

// The buffers of a rank that hold state and can lie apart from its arena: all
// but operands of joined collectives, which lie beside each other, and buffers
// of several slots or that share bytes with others.
std::vector<int> buffersApart(const LoadedPlan &plan, int rank);

// Host memory for each of them: what `kept` has, else new.
Result<runtime::BufferMemory> stateMemory(const LoadedPlan &plan, int rank,
                                          const runtime::BufferMemory &kept);

} // namespace merak::migration
