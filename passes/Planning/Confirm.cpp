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
                                  const std::vector<size_t> &begins,
                                  size_t most) {
  const auto from = [&](size_t begin, size_t end) {
    return std::vector<Finalist>(finalists.begin() + std::ptrdiff_t(begin),
                                 finalists.begin() + std::ptrdiff_t(end));
  };
  size_t begin = 0;
  for (size_t kind = 0; kind <= begins.size(); ++kind) {
    const size_t end = kind < begins.size() ? begins[kind] : finalists.size();
    // Beside the best of the kinds before, which is known well by now.
    std::vector<Finalist> these;
    if (const std::optional<size_t> best = bestFinalist(from(0, begin))) {
      these.push_back(finalists[*best]);
      these.front().expected = *these.front().simulated;
    }
    const size_t before = these.size();
    for (const Finalist &finalist : from(begin, end))
      these.push_back(finalist);
    if (const std::optional<size_t> next = nextFinalist(these, before + most))
      return begin + *next - before;
    begin = end;
  }
  return std::nullopt;
}

} // namespace merak::planning
