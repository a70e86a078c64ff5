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

std::vector<int> balance(const std::vector<double> &weights, int parts) {
  int n = int(weights.size());
  std::vector<double> prefix(1, 0);
  for (double weight : weights)
    prefix.push_back(prefix.back() + weight);
  double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(parts + 1,
                                        std::vector<double>(n + 1, none));
  std::vector<std::vector<int>> from(parts + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  // Of the last part's begin j, its weight falls and the heaviest before it
  // rises: the best j is where they meet. Of equal ones the last.
  for (int q = 1; q <= parts; ++q)
    for (int i = q; i <= n; ++i) {
      const std::vector<double> &before = best[q - 1];
      auto last = [&](int j) { return prefix[i] - prefix[j]; };
      int low = q - 1, high = i;
      while (low < high) {
        const int j = low + (high - low) / 2;
        (before[j] >= last(j) ? high : low) = before[j] >= last(j) ? j : j + 1;
      }
      if (low < i) {
        best[q][i] = before[low];
        from[q][i] = int(std::upper_bound(before.begin() + low,
                                          before.begin() + i, before[low]) -
                         before.begin()) -
                     1;
      }
      if (low > q - 1 && last(low - 1) < best[q][i]) {
        best[q][i] = last(low - 1);
        from[q][i] = low - 1;
      }
    }
  std::vector<int> out(parts + 1, n);
  for (int q = parts, i = n; q > 0; --q)
    out[q - 1] = i = from[q][i];
  return out;
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
