// The best plan of a small cluster by looking at all of them, with code that
// shares no more with the planner than the times of groups.
#pragma once

#include "passes/Stragglers/Replan.h"

namespace merak::stragglers {

// Groups of a node in one of its groupings.
using NodeGroups = std::vector<std::vector<int>>;

// The groupings of the golden file: a node without straggler into full groups;
// else all but the last tp devices, sorted by rate, into full groups, and these
// into one or more groups of falling powers of two.
std::vector<std::vector<NodeGroups>> goldenGroupings(const Problem &problem);
// Those that the planner considers.
std::vector<std::vector<NodeGroups>> plannerGroupings(const Problem &problem);

// The shortest steady step over all choices of groupings, all divisions of
// their groups into dp pipelines and standby, and all orders; kFailed: there is
// none.
int64_t bestSteady(const Problem &problem,
                   const std::vector<std::vector<NodeGroups>> &groupings);

} // namespace merak::stragglers
