#include "passes/Planning/IdleSlots.h"

#include <algorithm>

namespace merak::planning {

// Work fits where at least this part of it is idle time.
constexpr double kFits = 0.5;
// What must be gained, as a part of the time before.
constexpr double kGain = 1e-3;

IdleSlots::IdleSlots(const std::vector<double> &idle) {
  for (size_t i = 0; i < idle.size(); ++i)
    if (idle[i] > 0) {
      places.push_back(int(i));
      left.push_back(idle[i]);
    }
}

std::optional<int> IdleSlots::take(size_t index, double seconds) {
  if (left[index] <= 0 || left[index] < kFits * seconds)
    return std::nullopt;
  left[index] -= seconds;
  return places[index];
}

std::optional<int> IdleSlots::takeLast(int at, double seconds) {
  size_t end =
      std::upper_bound(places.begin(), places.end(), at) - places.begin();
  while (end-- > 0)
    if (std::optional<int> place = take(end, seconds))
      return place;
  return std::nullopt;
}

std::optional<int> IdleSlots::takeFirst(int at, double seconds) {
  size_t i =
      std::lower_bound(places.begin(), places.end(), at) - places.begin();
  for (; i < places.size(); ++i)
    if (std::optional<int> place = take(i, seconds))
      return place;
  return std::nullopt;
}

double IdleSlots::late() const {
  double seconds = 0;
  for (double rest : left)
    seconds += std::max(0.0, -rest);
  return seconds;
}

bool paysToMove(double together, double apart) {
  return together < apart * (1 - kGain);
}

} // namespace merak::planning
