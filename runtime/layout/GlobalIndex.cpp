#include "runtime/layout/GlobalIndex.h"

#include <algorithm>
#include <ranges>

namespace merak::layout {

// Every factor is a loop with its own step, and the coordinates of its axes
// move the beginning. A loop that goes on where the one inside ends joins it.
// Of [8@dp, 6] with dp = 2 a rank has 4 x 6 elements. The loop over 6 has step
// 1, that over 4 step 6 = 1 * 6: one loop of 24 steps, which begins at 24 on
// the second rank.
GlobalIndex globalIndex(const Layout &layout, const AxisMap &mesh) {
  GlobalIndex index;
  int64_t step = 1;
  for (const DimLayout &dim : std::views::reverse(layout.dims))
    for (const Factor &factor : std::views::reverse(dim.factors)) {
      auto sizeOf = [&](const std::string &axis) {
        auto found = mesh.find(axis);
        return found == mesh.end() ? int64_t{1} : found->second;
      };
      int64_t part = factor.size;
      for (const std::string &axis : factor.axes)
        part /= sizeOf(axis);
      int64_t distance = part * step;
      for (const std::string &axis : std::views::reverse(factor.axes)) {
        if (sizeOf(axis) > 1)
          index.offsets.emplace_back(axis, distance);
        distance *= sizeOf(axis);
      }
      if (!index.extents.empty() &&
          step == index.strides.back() * index.extents.back())
        index.extents.back() *= part;
      else if (part > 1) {
        index.extents.push_back(part);
        index.strides.push_back(step);
      }
      step *= factor.size;
    }
  if (index.extents.empty()) {
    index.extents = {1};
    index.strides = {1};
  }
  std::ranges::reverse(index.extents);
  std::ranges::reverse(index.strides);
  return index;
}

} // namespace merak::layout
