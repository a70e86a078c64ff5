#include "passes/Planning/FrontierMerge.h"

#include <algorithm>

namespace merak::planning {

using Record = FrontierArena::Record;

namespace {

// The first of `at`, ..., `end` - 1 for which `skip` does not hold, which holds
// for none after it. Steps double: the next is often the one, and else far.
template <typename Skip> size_t leap(size_t at, size_t end, const Skip &skip) {
  size_t step = 1;
  while (at + step <= end && skip(at + step - 1)) {
    at += step;
    step *= 2;
  }
  size_t last = std::min(end, at + step - 1);
  while (at < last) {
    size_t middle = at + (last - at) / 2;
    if (skip(middle))
      at = middle + 1;
    else
      last = middle;
  }
  return at;
}

// The numbers of the tuples on the lower convex hull: along it the nanoseconds
// saved for a byte fall.
std::vector<uint32_t> lowerHull(const std::vector<Cost> &costs) {
  std::vector<uint32_t> hull;
  // In __int128, since it multiplies bytes with nanoseconds.
  auto above = [&](uint32_t a, uint32_t b, uint32_t c) {
    __int128 x1 = costs[b].bytes - costs[a].bytes;
    __int128 y1 = costs[b].nanoseconds - costs[a].nanoseconds;
    __int128 x2 = costs[c].bytes - costs[a].bytes;
    __int128 y2 = costs[c].nanoseconds - costs[a].nanoseconds;
    return x1 * y2 <= x2 * y1;
  };
  for (uint32_t i = 0; i < costs.size(); ++i) {
    while (hull.size() >= 2 && above(hull[hull.size() - 2], hull.back(), i))
      hull.pop_back();
    hull.push_back(i);
  }
  return hull;
}

// Whether going from a to b saves more time for a byte than going from c to d.
bool steeper(const Cost &a, const Cost &b, const Cost &c, const Cost &d) {
  return __int128(a.nanoseconds - b.nanoseconds) * (d.bytes - c.bytes) >=
         __int128(c.nanoseconds - d.nanoseconds) * (b.bytes - a.bytes);
}

} // namespace

void FrontierMerge::clear(int64_t most) {
  limit = most;
  bytes.clear();
  nanoseconds.clear();
  places.clear();
}

bool FrontierMerge::load(const FrontierTerm &term) {
  auto fill = [&](std::vector<Cost> &costs, const Frontier &frontier) {
    costs.clear();
    for (FrontierArena::Index point : frontier.points)
      costs.push_back(arena[point].cost);
  };
  bool leftIsRows = term.left->size() <= term.right->size();
  fill(rows, leftIsRows ? *term.left : *term.right);
  fill(columns, leftIsRows ? *term.right : *term.left);
  return !rows.empty();
}

// The hull of a sum is the sum of the hulls, edges by slope. Along an edge of
// one frontier the tuples under it are passed too.
void FrontierMerge::addPath(uint32_t term) {
  std::vector<uint32_t> down = lowerHull(rows), along = lowerHull(columns);
  size_t i = 0, j = 0;
  uint32_t row = 0, column = 0;
  path.assign(1, {rows[0] + columns[0], {term, 0, 0}});
  auto walk = [&](uint32_t &at, uint32_t end) {
    while (at < end) {
      ++at;
      path.push_back({rows[row] + columns[column], {term, row, column}});
    }
  };
  while (i + 1 < down.size() || j + 1 < along.size())
    if (j + 1 == along.size() ||
        (i + 1 < down.size() &&
         steeper(rows[row], rows[down[i + 1]], columns[column],
                 columns[along[j + 1]])))
      walk(row, down[++i]);
    else
      walk(column, along[++j]);
  add(path.size(), [&](size_t at) { return path[at]; });
}

void FrontierMerge::addRows(uint32_t term) {
  for (uint32_t row = 0; row < rows.size(); ++row)
    add(columns.size(), [&, base = rows[row]](size_t at) {
      return Point{base + columns[at], {term, row, uint32_t(at)}};
    });
}

size_t FrontierMerge::countWithin(int64_t most, size_t from) const {
  return leap(from, bytes.size(), [&](size_t at) { return bytes[at] <= most; });
}

template <typename At> void FrontierMerge::add(size_t count, const At &at) {
  fresh.clear();
  before.clear();
  size_t known = 0;
  for (size_t i = 0; i < count;) {
    Point point = at(i++);
    if (point.cost.bytes > limit)
      break;
    known = countWithin(point.cost.bytes, known);
    int64_t fastest = known ? nanoseconds[known - 1] : kNoLimit;
    if (point.cost.nanoseconds < fastest) {
      fresh.push_back(point);
      before.push_back(known);
      continue;
    }
    i = leap(i, count,
             [&](size_t next) { return at(next).cost.nanoseconds >= fastest; });
  }
  if (!fresh.empty())
    splice();
}

// Before each fresh point those known ones that the last fresh one left.
// `from`: the first of them; a known one of the same bytes is slower and goes
// too.
void FrontierMerge::splice() {
  splicedBytes.clear();
  splicedNanoseconds.clear();
  splicedPlaces.clear();
  size_t from = 0;
  auto keep = [&](size_t end) {
    if (from >= end)
      return;
    auto copy = [&](auto &to, const auto &values) {
      to.insert(to.end(), values.begin() + from, values.begin() + end);
    };
    copy(splicedBytes, bytes);
    copy(splicedNanoseconds, nanoseconds);
    copy(splicedPlaces, places);
    from = end;
  };
  for (size_t i = 0; i < fresh.size(); ++i) {
    const Cost &cost = fresh[i].cost;
    bool equal = before[i] > 0 && bytes[before[i] - 1] == cost.bytes;
    keep(before[i] - equal);
    splicedBytes.push_back(cost.bytes);
    splicedNanoseconds.push_back(cost.nanoseconds);
    splicedPlaces.push_back(fresh[i].place);
    from = leap(std::max(from, before[i]), bytes.size(), [&](size_t next) {
      return nanoseconds[next] >= cost.nanoseconds;
    });
  }
  keep(bytes.size());
  bytes.swap(splicedBytes);
  nanoseconds.swap(splicedNanoseconds);
  places.swap(splicedPlaces);
}

namespace {

// Takes tuples by bytes and keeps the last one of each bucket; the very first
// one in any case, so that what fits at all is known exactly.
class BucketWriter {
public:
  BucketWriter(int64_t width, std::vector<Record> &out)
      : width(width), out(out), first(out.size()) {}

  void add(const Record &record) {
    int64_t bucket = width > 0 ? record.cost.bytes / width : 0;
    if (width > 0 && out.size() > first + 1 && bucket == last)
      replace(record);
    else
      out.push_back(record);
    last = bucket;
  }
  int64_t slack() const { return dropped; }

private:
  void replace(const Record &record) {
    if (replaced != last)
      smallest = out.back().cost.bytes;
    replaced = last;
    dropped = std::max(dropped, record.cost.bytes - smallest);
    out.back() = record;
  }

  int64_t width;
  std::vector<Record> &out;
  size_t first;
  int64_t last = -1;     // bucket
  int64_t replaced = -1; // the bucket that `smallest` was dropped of
  int64_t smallest = 0, dropped = 0;
};

} // namespace

int64_t FrontierMerge::write(int64_t bucketBytes,
                             std::span<const FrontierTerm> of,
                             std::vector<Record> &out) const {
  BucketWriter writer(bucketBytes, out);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto &left = of[places[i].term].left->points;
    const auto &right = of[places[i].term].right->points;
    bool leftIsRows = left.size() <= right.size();
    uint32_t row = places[i].row, column = places[i].column;
    writer.add({{bytes[i], nanoseconds[i]},
                left[leftIsRows ? row : column],
                right[leftIsRows ? column : row]});
  }
  return writer.slack();
}

int64_t FrontierMerge::run(std::span<const FrontierTerm> of, int64_t most,
                           int64_t bucketBytes, std::vector<Record> &out) {
  clear(most);
  int64_t slack = 0;
  for (uint32_t term = 0; term < of.size(); ++term)
    if (load(of[term])) {
      slack = std::max(slack, of[term].left->slack + of[term].right->slack);
      if (rows.size() > 1)
        addPath(term);
      else
        addRows(term);
    }
  for (uint32_t term = 0; term < of.size(); ++term)
    if (std::min(of[term].left->size(), of[term].right->size()) > 1) {
      load(of[term]);
      addRows(term);
    }
  return slack + write(bucketBytes, of, out);
}

} // namespace merak::planning
