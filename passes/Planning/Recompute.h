// How much each stage recomputes: stage-aware recomputation. Stages hold
// different numbers of microbatches in flight, so the same memory needs
// different shares. (Lai et al., 2023, Merak, doi 10.1109/TPDS.2023.3247001)
#pragma once

#include "runtime/core/Status.h"

#include <string>
#include <vector>

namespace merak::planning {

// The share r_s of its forward that each stage recomputes, from the user's
// ratio a (1: everything): r_s = 1 - (1-a)(p-1)/(p-1-s), at least 0, and none
// on the last stage. With n_s = p-s microbatches in flight, one of them fully
// materialised, all peaks are then equal. Under the shifted critical path
// (`shifts`) the stage before the last has as many in flight as the one before
// it, and its share. p ratios are used as they are, fewer (but more than one)
// are padded with the last one. Errors: no or more than p ratios, ratios
// outside of 0..1.
Result<std::vector<double>>
stageRatios(int stages, const std::vector<double> &given, bool shifts);

// The first floor(r * parts) parts of a stage are recomputed.
int recomputedParts(double ratio, int parts);

} // namespace merak::planning
