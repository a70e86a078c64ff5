#include "passes/Memory/SlotPlan.h"

#include <algorithm>
#include <map>

namespace merak::memory {

SlotPlan planSlots(const std::vector<Step> &schedule,
                   const std::set<ActionId> &actions, int64_t before,
                   int64_t after, const std::vector<int> &arrivals,
                   const std::vector<int> &departures) {
  struct LiveKind {
    int64_t first, last, microbatch;
  };
  std::map<int64_t, LiveKind> lives;
  for (int64_t i = 0; i < static_cast<int64_t>(schedule.size()); ++i) {
    const Step &step = schedule[i];
    if (isOncePerStep(step.action) || !actions.count(step.id()))
      continue;
    auto [it, fresh] =
        lives.emplace(step.microbatch, LiveKind{i, i, step.microbatch});
    it->second.last = i;
  }
  SlotPlan plan;
  if (lives.empty())
    return plan;
  plan.slotOf.assign(lives.rbegin()->first + 1, 0);
  std::vector<LiveKind> order;
  for (auto &[microbatch, life] : lives) {
    int64_t first = life.first - before;
    if (microbatch < static_cast<int64_t>(arrivals.size()))
      first = std::min<int64_t>(first, arrivals[microbatch]);
    int64_t last = life.last + after;
    if (microbatch < static_cast<int64_t>(departures.size()))
      last = std::max<int64_t>(last, departures[microbatch] - 1);
    order.push_back({first, last, microbatch});
  }
  std::stable_sort(
      order.begin(), order.end(),
      [](const LiveKind &a, const LiveKind &b) { return a.first < b.first; });
  std::vector<int64_t> freeAfter; // by slot: last position of its user
  for (const LiveKind &life : order) {
    size_t slot = 0;
    while (slot < freeAfter.size() && freeAfter[slot] >= life.first)
      ++slot;
    if (slot == freeAfter.size())
      freeAfter.push_back(0);
    freeAfter[slot] = life.last;
    plan.slotOf[life.microbatch] = static_cast<int64_t>(slot);
  }
  plan.slots = static_cast<int64_t>(freeAfter.size());
  return plan;
}

SlotPlan slotForEach(const std::vector<Step> &schedule,
                     const std::set<ActionId> &actions) {
  std::set<int64_t> microbatches;
  for (const Step &step : schedule)
    if (!isOncePerStep(step.action) && actions.count(step.id()))
      microbatches.insert(step.microbatch);
  SlotPlan plan;
  plan.slots = 0;
  for (int64_t microbatch : microbatches) {
    plan.slotOf.resize(size_t(microbatch) + 1, 0);
    plan.slotOf.back() = plan.slots++;
  }
  return plan;
}

} // namespace merak::memory
