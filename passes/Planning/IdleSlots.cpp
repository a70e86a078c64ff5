#include "passes/Planning/IdleSlots.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace merak::planning {

// Work fits where at least this part of it is idle time.
constexpr double kFits = 0.5;
// What must be gained, as a part of the time before.
constexpr double kGain = 1e-3;

IdleSlots::IdleSlots(const std::vector<double> &idle) {
  std::vector<double> seconds;
  for (size_t i = 0; i < idle.size(); ++i)
    if (idle[i] > 0) {
      places.push_back(int(i));
      seconds.push_back(idle[i]);
    }
  leaves = std::bit_ceil(std::max<size_t>(1, places.size()));
  left.assign(2 * leaves, 0);
  std::copy(seconds.begin(), seconds.end(), left.begin() + long(leaves));
  for (size_t node = leaves; --node > 0;)
    left[node] = std::max(left[2 * node], left[2 * node + 1]);
}

// Only what has idle time at all.
static double enoughFor(double seconds) {
  return std::max(kFits * seconds, std::numeric_limits<double>::denorm_min());
}

int IdleSlots::take(size_t index, double seconds) {
  size_t node = leaves + index;
  left[node] -= seconds;
  while (node /= 2)
    left[node] = std::max(left[2 * node], left[2 * node + 1]);
  return places[index];
}

size_t IdleSlots::findLast(size_t node, size_t begin, size_t end, size_t bound,
                           double enough) const {
  if (begin >= bound || left[node] < enough)
    return kNone;
  if (node >= leaves)
    return begin;
  const size_t middle = (begin + end) / 2;
  const size_t found = findLast(2 * node + 1, middle, end, bound, enough);
  return found != kNone ? found
                        : findLast(2 * node, begin, middle, bound, enough);
}

size_t IdleSlots::findFirst(size_t node, size_t begin, size_t end, size_t bound,
                            double enough) const {
  if (end <= bound || left[node] < enough)
    return kNone;
  if (node >= leaves)
    return begin;
  const size_t middle = (begin + end) / 2;
  const size_t found = findFirst(2 * node, begin, middle, bound, enough);
  return found != kNone ? found
                        : findFirst(2 * node + 1, middle, end, bound, enough);
}

std::optional<int> IdleSlots::takeLast(int at, double seconds) {
  const size_t bound = size_t(
      std::upper_bound(places.begin(), places.end(), at) - places.begin());
  const size_t found = findLast(1, 0, leaves, bound, enoughFor(seconds));
  return found == kNone ? std::nullopt : std::optional(take(found, seconds));
}

std::optional<int> IdleSlots::takeFirst(int at, double seconds) {
  const size_t bound = size_t(
      std::lower_bound(places.begin(), places.end(), at) - places.begin());
  const size_t found = findFirst(1, 0, leaves, bound, enoughFor(seconds));
  return found == kNone ? std::nullopt : std::optional(take(found, seconds));
}

double IdleSlots::late() const {
  double seconds = 0;
  for (size_t index = 0; index < places.size(); ++index)
    seconds += std::max(0.0, -left[leaves + index]);
  return seconds;
}

bool paysToMove(double together, double apart) {
  return together < apart * (1 - kGain);
}

} // namespace merak::planning
