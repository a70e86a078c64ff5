#include "passes/Memory/ArenaPlan.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace merak::memory {

namespace {

// Position and size of the highest sum of live (padded) bytes.
std::pair<int64_t, int64_t> peak(const std::vector<LiveRange> &ranges,
                                 int64_t alignment) {
  std::map<int64_t, int64_t> change;
  for (const LiveRange &range : ranges) {
    change[range.first] += alignUp(range.bytes, alignment);
    change[range.last + 1] -= alignUp(range.bytes, alignment);
  }
  int64_t live = 0, most = 0, at = 0;
  for (auto [position, delta] : change) {
    live += delta;
    if (live > most) {
      most = live;
      at = position;
    }
  }
  return {at, most};
}

} // namespace

ArenaPlan planArena(const std::vector<LiveRange> &ranges, int64_t alignment) {
  ArenaPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  plan.lowerBound = peak(ranges, alignment).second;

  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (ranges[a].bytes != ranges[b].bytes)
      return ranges[a].bytes > ranges[b].bytes;
    return ranges[a].first < ranges[b].first;
  });

  struct Placed {
    int64_t offset, end, first, last;
  };
  std::vector<Placed> placed; // by offset
  placed.reserve(ranges.size());
  for (size_t index : order) {
    const LiveRange &range = ranges[index];
    int64_t bytes = alignUp(range.bytes, alignment);
    if (bytes == 0)
      continue;
    // Walk the gaps between neighbours in memory that are live meanwhile.
    int64_t free = 0, best = -1, bestGap = 0;
    for (const Placed &other : placed) {
      if (other.last < range.first || range.last < other.first)
        continue;
      int64_t gap = other.offset - free;
      if (gap >= bytes && (best < 0 || gap < bestGap)) {
        best = free;
        bestGap = gap;
      }
      free = std::max(free, other.end);
    }
    int64_t offset = best < 0 ? free : best;
    plan.offsets[index] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    Placed entry{offset, offset + bytes, range.first, range.last};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry,
                                   [](const Placed &a, const Placed &b) {
                                     return a.offset < b.offset;
                                   }),
                  entry);
  }
  return plan;
}

std::vector<size_t> liveAtPeak(const std::vector<LiveRange> &ranges) {
  int64_t at = peak(ranges, 1).first;
  std::vector<size_t> live;
  for (size_t i = 0; i < ranges.size(); ++i)
    if (ranges[i].bytes > 0 && ranges[i].first <= at && at <= ranges[i].last)
      live.push_back(i);
  std::stable_sort(live.begin(), live.end(), [&](size_t a, size_t b) {
    return ranges[a].bytes > ranges[b].bytes;
  });
  return live;
}

} // namespace merak::memory
