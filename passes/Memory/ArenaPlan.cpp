#include "passes/Memory/ArenaPlan.h"

#include <algorithm>
#include <bit>
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

struct Placed {
  int64_t offset, end, first, last;
};

// The ranges that have a place, by memory and by life. Live ranges are kept by
// their length, in classes of powers of two, so that those that meet a given
// one are found without looking at many others.
class PlacedRanges {
public:
  // Calls visit(offset, end) for each range that lives at some time from
  // `first` to `last`, by offset.
  template <typename Visit>
  void forEachLive(int64_t first, int64_t last, const Visit &visit) {
    // Where most live, a walk over all is the shorter way.
    const size_t few = ranges_.size() / 32 + 8;
    found_.clear();
    for (size_t c = 0; c < byLife_.size() && found_.size() <= few; ++c) {
      const int64_t longest = static_cast<int64_t>((uint64_t(2) << c) - 2);
      const auto &lives = byLife_[c];
      for (auto it = lives.lower_bound(first - longest);
           it != lives.end() && it->first <= last && found_.size() <= few; ++it)
        if (ranges_[it->second].last >= first)
          found_.push_back(it->second);
    }
    const bool isFew = found_.size() <= few;
    if (isFew)
      std::sort(found_.begin(), found_.end(), [&](uint32_t a, uint32_t b) {
        return std::pair(ranges_[a].offset, a) <
               std::pair(ranges_[b].offset, b);
      });
    for (uint32_t index : isFew ? found_ : byOffset_) {
      const Placed &range = ranges_[index];
      if (range.last >= first && last >= range.first)
        visit(range.offset, range.end);
    }
  }

  void add(const Placed &range) {
    const auto index = static_cast<uint32_t>(ranges_.size());
    ranges_.push_back(range);
    byOffset_.insert(std::upper_bound(byOffset_.begin(), byOffset_.end(),
                                      range.offset,
                                      [&](int64_t offset, uint32_t other) {
                                        return offset < ranges_[other].offset;
                                      }),
                     index);
    // Class c: last - first of 2^c - 1 up to 2^(c+1) - 2.
    const auto length = static_cast<uint64_t>(range.last - range.first);
    const size_t c = std::bit_width(length + 1) - 1;
    if (byLife_.size() <= c)
      byLife_.resize(c + 1);
    byLife_[c].emplace(range.first, index);
  }

private:
  std::vector<Placed> ranges_;
  std::vector<uint32_t> byOffset_, found_;
  std::vector<std::multimap<int64_t, uint32_t>> byLife_;
};

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

  PlacedRanges placed;
  for (size_t index : order) {
    const LiveRange &range = ranges[index];
    int64_t bytes = alignUp(range.bytes, alignment);
    if (bytes == 0)
      continue;
    // Walk the gaps between neighbours in memory that are live meanwhile.
    int64_t free = 0, best = -1, bestGap = 0;
    placed.forEachLive(range.first, range.last,
                       [&](int64_t begin, int64_t end) {
                         int64_t gap = begin - free;
                         if (gap >= bytes && (best < 0 || gap < bestGap)) {
                           best = free;
                           bestGap = gap;
                         }
                         free = std::max(free, end);
                       });
    int64_t offset = best < 0 ? free : best;
    plan.offsets[index] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    placed.add({offset, offset + bytes, range.first, range.last});
  }
  return plan;
}

std::vector<std::pair<size_t, size_t>>
findOverlaps(const std::vector<PlacedRange> &ranges) {
  std::vector<size_t> byBegin(ranges.size()), byEnd;
  std::iota(byBegin.begin(), byBegin.end(), 0);
  byEnd = byBegin;
  std::stable_sort(byBegin.begin(), byBegin.end(), [&](size_t a, size_t b) {
    return ranges[a].begin < ranges[b].begin;
  });
  std::sort(byEnd.begin(), byEnd.end(),
            [&](size_t a, size_t b) { return ranges[a].end < ranges[b].end; });

  std::vector<std::pair<size_t, size_t>> overlaps;
  // The ranges that hold the byte of the sweep, by their first position. Their
  // lives are disjoint: one that overlaps is told and does not come in.
  std::map<int64_t, size_t> open;
  auto leaving = byEnd.begin();
  for (size_t index : byBegin) {
    const PlacedRange &range = ranges[index];
    for (; ranges[*leaving].end <= range.begin; ++leaving)
      if (auto it = open.find(ranges[*leaving].first);
          it != open.end() && it->second == *leaving)
        open.erase(it);
    bool isFree = true;
    for (auto it = open.upper_bound(range.last); it != open.begin();) {
      --it;
      if (ranges[it->second].last < range.first)
        break;
      overlaps.emplace_back(it->second, index);
      isFree = false;
    }
    if (isFree)
      open.emplace(range.first, index);
  }
  return overlaps;
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
