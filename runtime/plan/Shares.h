// Which microbatches of a step a program trains, or goes through without
// training: all of them, or of one of several pipelines its share.
#pragma once

#include "runtime/plan/Plan.h"

#include <set>

namespace merak {

// Those of its calls but of prologues, which go over all microbatches.
std::set<int64_t> trainedBy(const planpb::Program &program);

// Whether programs have shares of their own.
bool hasShares(const LoadedPlan &plan);

} // namespace merak
