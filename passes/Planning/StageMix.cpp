#include "passes/Planning/StageMix.h"

#include <algorithm>
#include <numeric>

namespace merak::planning {

namespace {

using Mixes = std::vector<StageMix>; // fastest first

bool isFaster(const StageMix &a, const StageMix &b) {
  return a.speed != b.speed ? a.speed > b.speed : a.counts > b.counts;
}

// Mixes of one class as trees: each is another one and one more stage.
class ClassMixes {
public:
  ClassMixes(int deviceClass, int64_t devices,
             const std::vector<StageKind> &kinds, int mostStages, size_t keep)
      : kinds(kinds), width(size_t(devices) + 1), keep(keep),
        states(size_t(mostStages + 1) * width) {
    nodes.push_back({0, -1, -1});
    states[0] = {0};
    // Kinds are added one after the other, so that every mix is made once.
    for (size_t k = 0; k < kinds.size(); ++k)
      if (kinds[k].deviceClass == deviceClass)
        for (size_t stages = 1; stages <= size_t(mostStages); ++stages)
          for (size_t used = size_t(kinds[k].devices); used < width; ++used)
            addStage(int(k), stages, used);
  }

  // Of so many stages, whatever devices they leave.
  Mixes of(size_t stages) const {
    std::vector<int> found;
    for (size_t used = 0; used < width; ++used) {
      const std::vector<int> &state = states[stages * width + used];
      found.insert(found.end(), state.begin(), state.end());
    }
    std::stable_sort(found.begin(), found.end(), [&](int a, int b) {
      return nodes[size_t(a)].speed > nodes[size_t(b)].speed;
    });
    found.resize(std::min(found.size(), keep));
    Mixes mixes;
    for (int node : found) {
      StageMix &mix = mixes.emplace_back();
      mix.counts.resize(kinds.size());
      mix.speed = nodes[size_t(node)].speed;
      for (; nodes[size_t(node)].kind >= 0; node = nodes[size_t(node)].rest)
        ++mix.counts[size_t(nodes[size_t(node)].kind)];
    }
    return mixes;
  }

private:
  struct Node {
    double speed;
    int kind, rest;
  };

  void addStage(int kind, size_t stages, size_t used) {
    const StageKind &one = kinds[size_t(kind)];
    const std::vector<int> &from =
        states[(stages - 1) * width + used - size_t(one.devices)];
    std::vector<int> &into = states[stages * width + used];
    std::vector<int> merged;
    size_t old = 0, next = 0;
    while (merged.size() < keep && (old < into.size() || next < from.size())) {
      const double speed =
          next < from.size() ? nodes[size_t(from[next])].speed + one.speed : 0;
      if (next == from.size() ||
          (old < into.size() && nodes[size_t(into[old])].speed >= speed)) {
        merged.push_back(into[old++]);
        continue;
      }
      merged.push_back(int(nodes.size()));
      nodes.push_back({speed, kind, from[next++]});
    }
    into = std::move(merged);
  }

  const std::vector<StageKind> &kinds;
  const size_t width, keep;
  std::vector<Node> nodes;
  std::vector<std::vector<int>> states; // by stages and devices used
};

} // namespace

std::vector<std::vector<StageMix>>
fastestMixes(const std::vector<int64_t> &devices,
             const std::vector<StageKind> &kinds, int mostStages, size_t keep) {
  std::vector<Mixes> all(size_t(mostStages) + 1);
  all[0] = {{std::vector<int>(kinds.size(), 0), 0}};
  for (size_t c = 0; c < devices.size(); ++c) {
    const ClassMixes made(int(c), devices[c], kinds, mostStages, keep);
    std::vector<Mixes> own;
    for (size_t stages = 0; stages < all.size(); ++stages)
      own.push_back(made.of(stages));
    std::vector<Mixes> joined(all.size());
    for (size_t stages = 0; stages < all.size(); ++stages) {
      for (size_t of = 0; of <= stages; ++of)
        for (const StageMix &a : all[stages - of])
          for (const StageMix &b : own[of]) {
            StageMix &mix = joined[stages].emplace_back(a);
            mix.speed += b.speed;
            for (size_t k = 0; k < kinds.size(); ++k)
              mix.counts[k] += b.counts[k];
          }
      std::sort(joined[stages].begin(), joined[stages].end(), isFaster);
      joined[stages].resize(std::min(joined[stages].size(), keep));
    }
    all = std::move(joined);
  }
  return all;
}

std::optional<std::vector<std::vector<int64_t>>>
placeStages(const std::vector<std::vector<int64_t>> &nodes,
            const std::vector<int64_t> &sizes) {
  std::vector<std::vector<int64_t>> left = nodes, places(sizes.size());
  auto take = [&](std::vector<int64_t> &node, int64_t count,
                  std::vector<int64_t> &into) {
    into.insert(into.end(), node.begin(), node.begin() + count);
    node.erase(node.begin(), node.begin() + count);
  };
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  for (size_t s : order) {
    std::vector<int64_t> *best = nullptr;
    for (std::vector<int64_t> &node : left)
      if (int64_t(node.size()) >= sizes[s] &&
          (!best || node.size() < best->size()))
        best = &node;
    if (best) {
      take(*best, sizes[s], places[s]);
      continue;
    }
    // Whole nodes, none of which is larger than what is missing.
    for (size_t n = 0; n < left.size(); ++n)
      if (left[n].size() == nodes[n].size() && !left[n].empty() &&
          int64_t(places[s].size() + left[n].size()) <= sizes[s])
        take(left[n], int64_t(left[n].size()), places[s]);
    if (int64_t(places[s].size()) != sizes[s])
      return std::nullopt;
  }
  return places;
}

} // namespace merak::planning
