#include "passes/Stragglers/GradientGroups.h"

#include <algorithm>

namespace merak::stragglers {

std::vector<std::vector<int>>
gradientGroups(const std::vector<std::vector<int>> &groups) {
  size_t slices = 0;
  for (const std::vector<int> &group : groups)
    slices = std::max(slices, group.size());
  std::vector<std::vector<int>> result(slices);
  for (size_t q = 0; q < slices; ++q)
    for (const std::vector<int> &group : groups)
      result[q].push_back(group[q * group.size() / slices]);
  return result;
}

} // namespace merak::stragglers
