// Every plan worth having on some devices: of memory and time none is beaten in
// one without losing in the other. A search under one limit recomputes, cuts
// and stores in parts as little as fits into it, so what needs less memory is
// found under smaller limits: from the memory that a device has down to the
// least that trains at all (the profiling mode of TensorOpt, arXiv 2004.10856).
#pragma once

#include "passes/Planning/Frontier.h"
#include "passes/Planning/PlanSearch.h"

namespace merak::planning {

// What fits into a limit is priced at most at so much of it: prices of bytes
// are no surer than this.
inline constexpr double kMayFit = 1.1;

// Numbers of the costs that no other one beats, bytes ascending; of equals the
// first.
std::vector<size_t> undominated(const std::vector<Cost> &costs);

// As the search priced it: bytes of the fullest rank, nanoseconds a step.
Cost costOf(const PlanCandidate &candidate);

// Fastest first, at most `most`; of more, those stay that differ most in
// memory. Where there is room, what is beaten by less than prices of bytes are
// sure of comes after. `search` gets other limits meanwhile, and `memoryBytes`
// back. Plans of `known` are considered as well: those of a search under
// `memoryBytes`.
std::vector<PlanCandidate> paretoPlans(PlanSearch &search, SearchPolicy policy,
                                       double memoryBytes,
                                       const std::vector<PlanCandidate> &known,
                                       size_t most);

// What the usual search would compile is compared with the others in any case:
// prices tell them apart less surely than simulation.
void addKnown(const std::vector<PlanCandidate> &known,
              std::vector<PlanCandidate> &found);

// As paretoPlans takes them, of what two such searches found.
std::vector<PlanCandidate> mergedPlans(const std::vector<PlanCandidate> &some,
                                       const std::vector<PlanCandidate> &others,
                                       size_t most);

} // namespace merak::planning
