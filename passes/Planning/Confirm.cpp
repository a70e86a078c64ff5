#include "passes/Planning/Confirm.h"

#include <cmath>

namespace merak::planning {

// What another plan must promise to gain to be tried, as a part of the time.
constexpr double kWorthATry = 0.01;

static bool agrees(const Finalist &finalist) {
  return std::abs(finalist.expected - *finalist.simulated) <=
         kAgrees * *finalist.simulated;
}

std::optional<size_t> bestFinalist(const std::vector<Finalist> &finalists) {
  std::optional<size_t> best;
  for (size_t i = 0; i < finalists.size(); ++i)
    if (finalists[i].simulated &&
        (!best || *finalists[i].simulated < *finalists[*best].simulated))
      best = i;
  return best;
}

std::optional<size_t> nextFinalist(const std::vector<Finalist> &finalists,
                                   size_t most) {
  size_t next = 0, simulated = 0;
  bool trusted = true;
  for (; next < finalists.size(); ++next) {
    const Finalist &finalist = finalists[next];
    if (!finalist.simulated && !finalist.failed)
      break;
    simulated += finalist.simulated.has_value();
    trusted &= !finalist.simulated || agrees(finalist);
  }
  if (next == finalists.size() || simulated == most)
    return std::nullopt;
  const std::optional<size_t> best = bestFinalist(finalists);
  if (best && trusted &&
      finalists[next].expected >=
          (1 - kWorthATry) * *finalists[*best].simulated)
    return std::nullopt;
  return next;
}

std::optional<size_t> nextOfKinds(const std::vector<Finalist> &finalists,
                                  size_t second, size_t most) {
  const auto at = finalists.begin() + std::ptrdiff_t(second);
  const std::vector<Finalist> first(finalists.begin(), at);
  if (const std::optional<size_t> next = nextFinalist(first, most))
    return next;
  // Beside the best of the first kind, which is known well by now.
  std::vector<Finalist> others;
  if (const std::optional<size_t> best = bestFinalist(first)) {
    others.push_back(first[*best]);
    others.front().expected = *others.front().simulated;
  }
  const size_t before = others.size();
  others.insert(others.end(), at, finalists.end());
  if (const std::optional<size_t> next = nextFinalist(others, before + most))
    return second + *next - before;
  return std::nullopt;
}

} // namespace merak::planning
