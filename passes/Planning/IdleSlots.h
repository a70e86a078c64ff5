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
  int take(size_t index, double seconds);
  // The last (first) slot of a subtree that is before (not before) `bound` and
  // has so much idle time left; none: kNone.
  static constexpr size_t kNone = -1;
  size_t findLast(size_t node, size_t begin, size_t end, size_t bound,
                  double enough) const;
  size_t findFirst(size_t node, size_t begin, size_t end, size_t bound,
                   double enough) const;
  std::vector<int> places; // with idle time, ascending
  // A tree of what is left at most: node n has 2n and 2n + 1, the slots are the
  // leaves from `leaves` on.
  std::vector<double> left;
  size_t leaves = 0;
};

// Whether it is worth moving work that makes `together` of what took `apart`.
bool paysToMove(double together, double apart);

} // namespace merak::planning
