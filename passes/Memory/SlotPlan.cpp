#include "passes/Memory/SlotPlan.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <map>
#include <sstream>

namespace merak::memory {

Result<std::vector<ScheduledAction>> parseSchedule(const std::string &text) {
  std::vector<ScheduledAction> schedule;
  Status status;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    ScheduledAction entry;
    entry.action = static_cast<char>(std::toupper(word[0]));
    entry.late = word[0] == 'r';
    bool known = std::string("PFRBWSU").find(entry.action) != std::string::npos;
    size_t dot = std::min(word.find('.'), word.size());
    std::string digits = word.substr(1, dot - 1);
    std::string chunk = word.substr(std::min(dot + 1, word.size()));
    auto isNumber = [](const std::string &text) {
      return !text.empty() && text.size() < 10 &&
             std::all_of(text.begin(), text.end(),
                         [](unsigned char c) { return std::isdigit(c); });
    };
    bool number = isNumber(digits) && (dot == word.size() || isNumber(chunk));
    bool once = entry.action == 'U' || entry.action == 'S';
    if (!known || (!number && !(once && word.size() == 1))) {
      status.merge(Status::error(fmt::format(
          "schedule entry \"{}\" at position {}: expected an action P, F, R, "
          "B, W with a microbatch, S or U",
          word, schedule.size())));
      continue;
    }
    if (!once)
      entry.microbatch = std::stoll(digits);
    if (!chunk.empty())
      entry.chunk = std::stoll(chunk);
    schedule.push_back(entry);
  }
  if (!status.ok())
    return status;
  return schedule;
}

SlotPlan planSlots(const std::vector<ScheduledAction> &schedule,
                   const std::set<ActionId> &actions, int64_t before,
                   int64_t after, const std::vector<int> &arrivals) {
  struct Life {
    int64_t first, last, microbatch;
  };
  std::map<int64_t, Life> lives;
  for (int64_t i = 0; i < static_cast<int64_t>(schedule.size()); ++i) {
    const ScheduledAction &entry = schedule[i];
    if (entry.microbatch < 0 || !actions.count(entry.id()))
      continue;
    auto [it, fresh] =
        lives.emplace(entry.microbatch, Life{i, i, entry.microbatch});
    it->second.last = i;
  }
  SlotPlan plan;
  if (lives.empty())
    return plan;
  plan.slotOf.assign(lives.rbegin()->first + 1, 0);
  std::vector<Life> order;
  for (auto &[microbatch, life] : lives) {
    int64_t first = life.first - before;
    if (microbatch < static_cast<int64_t>(arrivals.size()))
      first = std::min<int64_t>(first, arrivals[microbatch]);
    order.push_back({first, life.last + after, microbatch});
  }
  std::stable_sort(
      order.begin(), order.end(),
      [](const Life &a, const Life &b) { return a.first < b.first; });
  std::vector<int64_t> freeAfter; // by slot: last position of its user
  for (const Life &life : order) {
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

} // namespace merak::memory
