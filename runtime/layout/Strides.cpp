#include "runtime/layout/Strides.h"

namespace merak::layout {

std::vector<int64_t> denseStrides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * shape[i];
  return strides;
}

bool isDense(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0; expected *= shape[i])
    if (shape[i] != 1 && strides[i] != expected)
      return false;
  return true;
}

std::optional<std::vector<int64_t>>
reshapedStrides(std::span<const int64_t> from, std::span<const int64_t> strides,
                std::span<const int64_t> to) {
  std::vector<int64_t> result(to.size(), 0), sizes, steps;
  // Old dimensions without those of size 1.
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == 0)
      return denseStrides(to);
    if (from[i] != 1) {
      sizes.push_back(from[i]);
      steps.push_back(strides[i]);
    }
  }
  // Match groups of old and new dimensions with equal products; inside a group
  // the old dimensions must be evenly spaced. [4, 6, 5] as [2, 12, 5] has two
  // groups: 4 x 6 = 2 x 12, evenly spaced if the step of 4 is 6 steps of 6, and
  // 5 = 5.
  size_t oldBegin = 0, newBegin = 0;
  while (oldBegin < sizes.size()) {
    size_t oldEnd = oldBegin + 1, newEnd = newBegin;
    int64_t oldCount = sizes[oldBegin], newCount = 1;
    while (newCount != oldCount || newEnd == newBegin) {
      if (newCount < oldCount || newEnd == newBegin) {
        if (newEnd == to.size())
          return std::nullopt;
        newCount *= to[newEnd++];
      } else {
        if (oldEnd == sizes.size())
          return std::nullopt;
        oldCount *= sizes[oldEnd++];
      }
    }
    for (size_t i = oldBegin; i + 1 < oldEnd; ++i)
      if (steps[i] != sizes[i + 1] * steps[i + 1])
        return std::nullopt;
    int64_t stride = steps[oldEnd - 1];
    for (size_t i = newEnd; i-- > newBegin;) {
      result[i] = stride;
      stride *= to[i];
    }
    oldBegin = oldEnd;
    newBegin = newEnd;
  }
  // What is left has size 1; its strides do not matter.
  for (size_t i = newBegin; i < to.size(); ++i)
    result[i] = 1;
  return result;
}

} // namespace merak::layout
