// The places where an order of tasks leaves the computing stream idle, and what
// other work goes into them: recomputation and gradients of weights into a
// backward pass that waits for its collectives. The compiler moves ops with it
// (passes/Sharding/FillGaps.h), the search prices what it will move.
#pragma once

#include <optional>
#include <vector>

namespace merak::planning {

class IdleSlots {
public:
  // `idle`: seconds in front of each task (idleBefore, both submicrobatches).
  explicit IdleSlots(const std::vector<double> &idle = {});

  // Takes `seconds` of work in: the last place up to `at`, or the first one
  // from `at` on, where at least half of it is idle time; nothing if there is
  // none.
  std::optional<int> takeLast(int at, double seconds);
  std::optional<int> takeFirst(int at, double seconds);
  bool empty() const { return places.empty(); }
  // Seconds of the work taken that no idle time covered.
  double late() const;

private:
  std::optional<int> take(size_t index, double seconds);
  std::vector<int> places; // with idle time, ascending
  std::vector<double> left;
};

// Whether it is worth moving work that makes `together` of what took `apart`.
bool paysToMove(double together, double apart);

} // namespace merak::planning
