#include "passes/Planning/Cuts.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace merak::planning {

std::vector<int> uniformFloor(int n, int p) {
  std::vector<int> out;
  int c = n / p, r = n % p;
  for (int q = 0; q < p; ++q)
    out.push_back(n <= p ? std::min(q, n)
                         : q * c + std::min(r, std::max(0, q - 1)));
  out.push_back(n);
  return out;
}

// On stages of unlike speed a longer beginning need not be slower: its last
// part, which is not empty, may be on a slow one. So all ends are tried.
static std::vector<int> balanceUnlike(const std::vector<double> &weights,
                                      int parts,
                                      const std::vector<double> &slowness) {
  const int n = int(weights.size());
  std::vector<double> prefix(1, 0);
  for (double weight : weights)
    prefix.push_back(prefix.back() + weight);
  const double none = std::numeric_limits<double>::infinity();
  std::vector<double> best(size_t(n) + 1, none), before = best;
  std::vector<std::vector<int>> from(size_t(parts) + 1,
                                     std::vector<int>(size_t(n) + 1, 0));
  best[0] = 0;
  for (int q = 1; q <= parts; ++q) {
    const double slow = slowness[size_t(q - 1) % slowness.size()];
    std::swap(best, before);
    std::fill(best.begin(), best.end(), none);
    for (int i = q; i <= n; ++i)
      for (int j = q - 1; j < i; ++j) {
        const double most = std::max(
            before[size_t(j)], slow * (prefix[size_t(i)] - prefix[size_t(j)]));
        if (most <= best[size_t(i)]) {
          best[size_t(i)] = most;
          from[size_t(q)][size_t(i)] = j;
        }
      }
  }
  std::vector<int> out(size_t(parts) + 1, n);
  for (int q = parts, i = n; q > 0; --q)
    out[size_t(q) - 1] = i = from[size_t(q)][size_t(i)];
  return out;
}

std::vector<int> balance(const std::vector<double> &weights, int parts,
                         const std::vector<double> &slowness) {
  if (!slowness.empty())
    return balanceUnlike(weights, parts, slowness);
  int n = int(weights.size());
  std::vector<double> prefix(1, 0);
  for (double weight : weights)
    prefix.push_back(prefix.back() + weight);
  double none = std::numeric_limits<double>::infinity();
  // The heaviest of the first q parts, and of one less, by their end.
  std::vector<double> best(n + 1, none), before = best;
  std::vector<std::vector<int>> from(parts + 1);
  best[0] = 0;
  // Of the last part's begin j, its weight falls and the heaviest before it
  // rises: the best j is where they meet. Of equal ones the last.
  for (int q = 1; q <= parts; ++q) {
    std::swap(best, before);
    std::fill(best.begin(), best.end(), none);
    from[q].assign(n + 1, 0);
    // Neither falls as i grows.
    int low = q - 1, same = low;
    for (int i = q; i <= n; ++i) {
      auto last = [&](int j) { return prefix[i] - prefix[j]; };
      while (low < i && before[low] < last(low))
        ++low;
      if (low < i) {
        best[i] = before[low];
        if (same < low || before[same] != before[low])
          same = low;
        while (same + 1 < i && before[same + 1] == before[low])
          ++same;
        from[q][i] = same;
      }
      if (low > q - 1 && last(low - 1) < best[i]) {
        best[i] = last(low - 1);
        from[q][i] = low - 1;
      }
    }
  }
  std::vector<int> out(parts + 1, n);
  for (int q = parts, i = n; q > 0; --q)
    out[q - 1] = i = from[q][i];
  return out;
}

Result<std::vector<int>> balanced(const StageModel &model, int parts,
                                  const std::vector<double> &slowness) {
  const std::vector<int> &at = model.positions(parts);
  const int n = int(at.size()) - 1;
  if (n < parts)
    return Status::error(fmt::format(
        "{} stages need at least as many operations, found {}", parts, n));
  const auto make = [&] {
    std::vector<double> weights; // between neighbouring positions
    for (int i = 0; i < n; ++i)
      weights.push_back(model.seconds(at[i], at[i + 1]));
    std::vector<int> begin;
    for (int cut : balance(weights, parts, slowness))
      begin.push_back(at[cut]);
    return begin;
  };
  // What is kept is of the model alone.
  return slowness.empty() ? model.cutsOf(parts, make) : make();
}

Result<std::vector<int>> equalLayers(const StageModel &model, int parts) {
  const std::vector<int> &at = model.blockBounds();
  int n = int(at.size()) - 1;
  if (n < parts)
    return Status::error(fmt::format(
        "{} stages need at least as many layers, found {}", parts, n));
  std::vector<int> begin;
  for (int cut : uniformFloor(n, parts))
    begin.push_back(at[cut]);
  return begin;
}

} // namespace merak::planning
