#include "passes/Stragglers/Grouping.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace merak::stragglers {

namespace {

// Sequences that are tried of one node, and different ones that are compared
// with each other: more than nodes of 8 devices have.
constexpr size_t kMostSequences = 2000, kMostCompared = 200;

// Whether all groups of `a` are in `b`; both sorted.
bool isPart(const std::vector<GroupClass> &a,
            const std::vector<GroupClass> &b) {
  return std::includes(b.begin(), b.end(), a.begin(), a.end());
}

class NodeGrouper {
public:
  // The devices that are alive, healthy ones first, then stragglers, the
  // fastest first.
  NodeGrouper(const Problem &problem, std::vector<int> devices)
      : problem(problem), devices(std::move(devices)) {}

  std::vector<Grouping> run(size_t most, bool &isWhole) {
    const size_t tp = size_t(problem.tp);
    size_t healthy = 0;
    while (healthy < devices.size() && !isStraggler(problem, devices[healthy]))
      ++healthy;
    const size_t full = healthy / tp * tp;
    for (size_t i = 0; i < full; i += tp)
      take(i, tp);
    extend(full, Runs());
    isWhole = sequences < kMostSequences;
    return best(most, isWhole);
  }

private:
  // The sizes below a full group fall strictly, twice at most.
  struct Runs {
    size_t last = 0; // of the run; 0: none yet
    int started = 1;
  };

  void take(size_t begin, size_t size) {
    current.emplace_back(devices.begin() + long(begin),
                         devices.begin() + long(begin + size));
  }

  void extend(size_t begin, const Runs &runs) {
    if (sequences >= kMostSequences)
      return;
    bool extended = false;
    for (size_t size = size_t(problem.tp); size >= 1; size /= 2) {
      Runs next = runs;
      if (begin + size > devices.size() || !follows(size, next))
        continue;
      extended = true;
      take(begin, size);
      extend(begin + size, next);
      current.pop_back();
    }
    // What can be extended is part of its extensions.
    if (!extended && !current.empty())
      finish();
  }

  bool follows(size_t size, Runs &runs) const {
    if (!isGroupSize(problem, int64_t(size)))
      return false;
    if (int64_t(size) == problem.tp)
      return true;
    if (runs.last && size >= runs.last && ++runs.started > 2)
      return false;
    runs.last = size;
    return true;
  }

  void finish() {
    ++sequences;
    Grouping grouping;
    grouping.groups = current;
    for (const std::vector<int> &group : current) {
      grouping.classes.push_back(classOf(problem, group));
      grouping.speed += 1 / double(grouping.classes.back().rate);
    }
    std::vector<GroupClass> key = grouping.classes;
    std::sort(key.begin(), key.end());
    found.emplace(std::move(key), std::move(grouping));
  }

  // Of equal ones the first that was found: that with the largest groups.
  std::vector<Grouping> best(size_t most, bool &isWhole) {
    std::vector<std::pair<std::vector<GroupClass>, Grouping>> all;
    for (auto &entry : found)
      all.emplace_back(entry.first, std::move(entry.second));
    std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) {
      return a.second.speed > b.second.speed;
    });
    std::vector<Grouping> groupings;
    for (size_t i = 0; i < all.size(); ++i)
      // What is part of a grouping is slower than it.
      if (std::none_of(all.begin(),
                       all.begin() + long(std::min(i, kMostCompared)),
                       [&](const auto &other) {
                         return isPart(all[i].first, other.first);
                       }))
        groupings.push_back(std::move(all[i].second));
    if (groupings.size() > most) {
      keepFewest(groupings, most);
      isWhole = false;
    }
    return groupings;
  }

  // The fastest ones, and that with the fewest groups: pipelines of a grouping
  // in many groups may be too long.
  static void keepFewest(std::vector<Grouping> &groupings, size_t most) {
    const auto fewest =
        std::min_element(groupings.begin(), groupings.end(),
                         [](const Grouping &a, const Grouping &b) {
                           return a.groups.size() < b.groups.size();
                         });
    if (size_t(fewest - groupings.begin()) >= most)
      groupings[most - 1] = *fewest;
    groupings.resize(most);
  }

  const Problem &problem;
  const std::vector<int> devices;
  std::vector<std::vector<int>> current;
  std::map<std::vector<GroupClass>, Grouping> found;
  size_t sequences = 0;
};

// Where each device is in the old plan: (its group cannot stay, group).
std::vector<std::pair<bool, int>> oldGroups(const Problem &problem,
                                            const Plan &old) {
  std::vector<std::pair<bool, int>> result(problem.devices.size(), {true, -1});
  int group = 0;
  for (const Pipeline &pipeline : old.pipelines)
    for (const Stage &stage : pipeline.stages) {
      const bool stays =
          int64_t(stage.devices.size()) == problem.tp &&
          std::none_of(stage.devices.begin(), stage.devices.end(), [&](int d) {
            return isFailed(problem, d) || isStraggler(problem, d);
          });
      for (int device : stage.devices)
        result[size_t(device)] = {!stays, group};
      ++group;
    }
  return result;
}

} // namespace

std::vector<NodeGroupings> groupingsOf(const Problem &problem, const Plan &old,
                                       const GroupingOptions &options) {
  const std::vector<std::pair<bool, int>> was = oldGroups(problem, old);
  using Key = std::tuple<int64_t, std::pair<bool, int>, int>;
  std::map<int64_t, std::vector<Key>> nodes;
  for (size_t i = 0; i < problem.devices.size(); ++i) {
    const int device = int(i);
    if (isFailed(problem, device))
      continue;
    // Healthy devices are alike: what their rates differ by is noise.
    const bool slow = isStraggler(problem, device);
    nodes[problem.devices[i].node].emplace_back(
        slow ? problem.devices[i].rate : 0, slow ? std::pair(true, 0) : was[i],
        device);
  }
  std::vector<NodeGroupings> result;
  for (auto &[node, keys] : nodes) {
    std::sort(keys.begin(), keys.end());
    std::vector<int> devices;
    for (const Key &key : keys)
      devices.push_back(std::get<2>(key));
    NodeGroupings groupings;
    groupings.node = node;
    groupings.groupings =
        NodeGrouper(problem, devices).run(options.most, groupings.isWhole);
    result.push_back(std::move(groupings));
  }
  return result;
}

} // namespace merak::stragglers
