#include "passes/Stragglers/Allocation.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace merak::stragglers {

namespace {

class Allocation {
public:
  Allocation(const std::vector<Part> &parts, int64_t total)
      : parts(parts), left(total) {
    for (const Part &part : parts) {
      units.push_back(part.least);
      left -= part.least;
    }
  }

  std::optional<std::vector<int64_t>> run() {
    if (left < 0)
      return std::nullopt;
    while (left > int64_t(parts.size()) && fill())
      ;
    return handOut() ? std::optional(std::move(units)) : std::nullopt;
  }

private:
  int64_t time(size_t j, int64_t n) const {
    return parts[j].base + n * parts[j].price;
  }

  // The level at which all units would be handed out if they could be divided,
  // over the parts that can still grow to it.
  double level() const {
    double result = std::numeric_limits<double>::infinity();
    for (bool changed = true; changed;) {
      double speed = 0, reached = double(left);
      const double above = result;
      for (size_t j = 0; j < parts.size(); ++j)
        if (units[j] < parts[j].most && double(time(j, units[j])) < above) {
          speed += 1 / double(parts[j].price);
          reached += double(time(j, units[j])) / double(parts[j].price);
        }
      if (speed == 0)
        return result;
      result = reached / speed;
      changed = result < above;
    }
    return result;
  }

  // Whatever ends at a level is handed out before whatever ends later: these
  // units need not go through the heap. False if there are none, or rounding
  // made them too many.
  bool fill() {
    const double at = std::floor(level());
    if (!(std::abs(at) < 9e18))
      return false;
    std::vector<int64_t> filled = units;
    int64_t taken = 0;
    for (size_t j = 0; j < parts.size(); ++j) {
      const int64_t room = int64_t(at) - parts[j].base;
      if (room > 0)
        filled[j] = std::clamp(room / parts[j].price, units[j],
                               std::max(units[j], parts[j].most));
      taken += filled[j] - units[j];
    }
    if (taken == 0 || taken > left)
      return false;
    units = std::move(filled);
    left -= taken;
    return true;
  }

  bool handOut() {
    using Next = std::pair<int64_t, size_t>; // when the next unit ends, where
    std::priority_queue<Next, std::vector<Next>, std::greater<>> heap;
    const auto push = [&](size_t j) {
      if (units[j] < parts[j].most)
        heap.push({time(j, units[j] + 1), j});
    };
    for (size_t j = 0; j < parts.size(); ++j)
      push(j);
    for (; left > 0 && !heap.empty(); --left) {
      const size_t j = heap.top().second;
      heap.pop();
      ++units[j];
      push(j);
    }
    return left == 0;
  }

  const std::vector<Part> &parts;
  std::vector<int64_t> units;
  int64_t left = 0;
};

} // namespace

std::optional<std::vector<int64_t>> allocate(const std::vector<Part> &parts,
                                             int64_t total) {
  return Allocation(parts, total).run();
}

int64_t longest(const std::vector<Part> &parts,
                const std::vector<int64_t> &units) {
  int64_t result = std::numeric_limits<int64_t>::min();
  for (size_t j = 0; j < parts.size(); ++j)
    result = std::max(result, parts[j].base + units[j] * parts[j].price);
  return result;
}

} // namespace merak::stragglers
