// Slots of values that live from one action of a microbatch to another: which
// copy each microbatch uses, and how many copies a schedule needs. Plain C++.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace merak::memory {

// An action of one chunk of a stage.
struct ActionId {
  char action = 'F'; // P F R B W S U
  int64_t chunk = 0;
  auto operator<=>(const ActionId &) const = default;
};

// One entry of a stage's schedule, "F3", "F3.1" or "U".
struct ScheduledAction {
  char action = 'F';
  int64_t microbatch = -1;
  int64_t chunk = 0;
  bool late = false; // "r3": waits for the gradient of the microbatch
  ActionId id() const { return {action, chunk}; }
  bool operator==(const ScheduledAction &) const = default;
};

// "F0 F1 r0 B0 W0 B1 W1 U": "f" is F, "r" an R that is late. Errors name the
// word.
Result<std::vector<ScheduledAction>> parseSchedule(const std::string &text);

struct SlotPlan {
  int64_t slots = 1;
  std::vector<int64_t> slotOf; // by microbatch
};

// Values that live from the first to the last of the actions in `actions` of
// each microbatch. `before` and `after`: how many calls earlier or
// later they may be touched by a transfer that runs beside the computation.
// `arrivals`, of received values: places in `schedule`, by microbatch, from
// which on there is room for them at the latest (planning::latestArrivals).
SlotPlan planSlots(const std::vector<ScheduledAction> &schedule,
                   const std::set<ActionId> &actions, int64_t before = 0,
                   int64_t after = 0, const std::vector<int> &arrivals = {});

} // namespace merak::memory
