// Lists of numbers one after the other in memory: of many short ones, such as
// the tensors that each op of a model reads, as a walk over all of them wants
// them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace merak::planning {

class IdLists {
public:
  IdLists() = default;
  // Of `count` lists, `of(i)` each.
  template <typename Of> IdLists(int count, const Of &of) {
    begin.reserve(size_t(count) + 1);
    for (int i = 0; i < count; ++i) {
      const std::vector<int> &list = of(i);
      ids.insert(ids.end(), list.begin(), list.end());
      begin.push_back(int(ids.size()));
    }
  }
  std::span<const int> operator[](int i) const {
    return {ids.data() + begin[size_t(i)], ids.data() + begin[size_t(i) + 1]};
  }

private:
  std::vector<int> begin = {0}, ids;
};

// Of numbers in order, those in [begin, end).
inline std::span<const int> between(const std::vector<int> &numbers, int begin,
                                    int end) {
  const auto from = std::lower_bound(numbers.begin(), numbers.end(), begin);
  return {from, std::lower_bound(from, numbers.end(), end)};
}

} // namespace merak::planning
