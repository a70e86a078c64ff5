// Slots of values that live from one action of a microbatch to another: which
// copy each microbatch uses, and how many copies a schedule needs. Plain C++.
#pragma once

#include "runtime/plan/Actions.h"

#include <cstdint>
#include <set>
#include <vector>

namespace merak::memory {

struct SlotPlan {
  int64_t slots = 1;
  std::vector<int64_t> slotOf; // by microbatch
};

// Values that live from the first to the last of the actions in `actions` of
// each microbatch. `before` and `after`: how many calls earlier or
// later they may be touched by a transfer that runs beside the computation.
// `arrivals`, of received values: places in `schedule`, by microbatch, from
// which on there is room for them at the latest; `departures`, of sent ones: so
// many steps have begun when they have left (planning::TransferPlaces).
SlotPlan planSlots(const std::vector<Step> &schedule,
                   const std::set<ActionId> &actions, int64_t before = 0,
                   int64_t after = 0, const std::vector<int> &arrivals = {},
                   const std::vector<int> &departures = {});
// The same of values that are read after the step: each microbatch has a slot
// of its own, in their order. Of several pipelines a stage has some of them.
SlotPlan slotForEach(const std::vector<Step> &schedule,
                     const std::set<ActionId> &actions);

} // namespace merak::memory
