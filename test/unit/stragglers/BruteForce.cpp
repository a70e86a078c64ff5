#include "BruteForce.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>

namespace merak::stragglers {

namespace {

std::map<int64_t, std::vector<int>> nodesByRate(const Problem &problem) {
  std::map<int64_t, std::vector<int>> nodes;
  for (size_t i = 0; i < problem.devices.size(); ++i)
    if (!isFailed(problem, int(i)))
      nodes[problem.devices[i].node].push_back(int(i));
  for (auto &[node, devices] : nodes)
    std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
      return problem.devices[size_t(a)].rate < problem.devices[size_t(b)].rate;
    });
  return nodes;
}

// Of `devices` from `begin` on, each size smaller than the one before.
void fallingSizes(const std::vector<int> &devices, size_t begin, size_t below,
                  NodeGroups &groups, std::vector<NodeGroups> &found) {
  if (!groups.empty())
    found.push_back(groups);
  for (size_t size = 1; size < below; size *= 2)
    if (begin + size <= devices.size()) {
      groups.emplace_back(devices.begin() + long(begin),
                          devices.begin() + long(begin + size));
      fallingSizes(devices, begin + size, size, groups, found);
      groups.pop_back();
    }
}

class Search {
public:
  Search(const Problem &problem,
         const std::vector<std::vector<NodeGroups>> &groupings)
      : problem(problem), groupings(groupings) {}

  int64_t run() {
    NodeGroups groups;
    chooseGroupings(0, groups);
    return best;
  }

private:
  void chooseGroupings(size_t node, NodeGroups &groups) {
    if (node == groupings.size()) {
      places.assign(groups.size(), 0);
      placeGroups(0, groups);
      return;
    }
    for (const NodeGroups &grouping : groupings[node]) {
      const size_t before = groups.size();
      groups.insert(groups.end(), grouping.begin(), grouping.end());
      chooseGroupings(node + 1, groups);
      groups.resize(before);
    }
    if (groupings[node].empty())
      chooseGroupings(node + 1, groups);
  }

  void placeGroups(size_t group, const NodeGroups &groups) {
    if (group == groups.size())
      return score(groups);
    for (int64_t place = 0; place <= problem.dp; ++place) {
      places[group] = place;
      placeGroups(group + 1, groups);
    }
  }

  void score(const NodeGroups &groups) {
    std::vector<std::pair<int64_t, int64_t>> pipelines; // slowest, stages
    for (int64_t p = 0; p < problem.dp; ++p) {
      std::vector<std::pair<int64_t, int64_t>> stages; // rate, size
      for (size_t g = 0; g < groups.size(); ++g)
        if (places[g] == p)
          stages.emplace_back(groupRate(problem, groups[g]),
                              int64_t(groups[g].size()));
      const int64_t slowest = slowestOf(stages);
      if (slowest == kFailed)
        return;
      pipelines.emplace_back(slowest, int64_t(stages.size()));
    }
    shareMicrobatches(pipelines, 0, problem.microbatches, 0);
  }

  // Over all orders and layers of at least one each.
  int64_t slowestOf(std::vector<std::pair<int64_t, int64_t>> stages) {
    std::sort(stages.begin(), stages.end());
    const auto [at, isNew] = known.try_emplace(stages, kFailed);
    if (!isNew || stages.empty() ||
        int64_t(stages.size()) > mostStages(problem))
      return at->second;
    do
      tryLayers(stages, 0, problem.layers, 0, at->second);
    while (std::next_permutation(stages.begin(), stages.end()));
    return at->second;
  }
  void tryLayers(const std::vector<std::pair<int64_t, int64_t>> &stages,
                 size_t j, int64_t left, int64_t slowest, int64_t &least) {
    if (slowest >= least)
      return;
    if (j == stages.size()) {
      if (left == 0)
        least = slowest;
      return;
    }
    const size_t behind = stages.size() - 1 - j;
    for (int64_t layers = 1; layers <= left; ++layers) {
      if (problem.isLimited() &&
          stageBytes(problem, stages[j].second, int64_t(behind),
                     j == 0 || behind == 0, layers) > problem.memory.limit)
        return;
      tryLayers(stages, j + 1, left - layers,
                std::max(slowest, stages[j].first * layers), least);
    }
  }

  void
  shareMicrobatches(const std::vector<std::pair<int64_t, int64_t>> &pipelines,
                    size_t i, int64_t left, int64_t steady) {
    if (steady >= best)
      return;
    const auto &[slowest, stages] = pipelines[i];
    if (i + 1 == pipelines.size()) {
      if (left >= stages)
        best = std::min(best, std::max(steady, left * slowest));
      return;
    }
    for (int64_t m = stages; m < left; ++m)
      shareMicrobatches(pipelines, i + 1, left - m,
                        std::max(steady, m * slowest));
  }

  const Problem &problem;
  const std::vector<std::vector<NodeGroups>> &groupings;
  std::vector<int64_t> places;
  std::map<std::vector<std::pair<int64_t, int64_t>>, int64_t> known;
  int64_t best = kFailed;
};

} // namespace

std::vector<std::vector<NodeGroups>> goldenGroupings(const Problem &problem) {
  std::vector<std::vector<NodeGroups>> groupings;
  const size_t tp = size_t(problem.tp);
  for (const auto &[node, devices] : nodesByRate(problem)) {
    const bool healthy =
        !isStraggler(problem, devices.back()) && devices.size() % tp == 0;
    const size_t full = healthy ? devices.size()
                                : devices.size() - std::min(tp, devices.size());
    NodeGroups groups;
    size_t begin = 0;
    for (; begin + tp <= full; begin += tp)
      groups.emplace_back(devices.begin() + long(begin),
                          devices.begin() + long(begin + tp));
    groupings.emplace_back();
    if (healthy)
      groupings.back().push_back(groups);
    else
      fallingSizes(devices, begin, 2 * tp, groups, groupings.back());
  }
  return groupings;
}

std::vector<std::vector<NodeGroups>> plannerGroupings(const Problem &problem) {
  std::vector<std::vector<NodeGroups>> groupings;
  for (const NodeGroupings &node : groupingsOf(problem, uniformPlan(problem))) {
    EXPECT_TRUE(node.isWhole);
    groupings.emplace_back();
    for (const Grouping &grouping : node.groupings)
      groupings.back().push_back(grouping.groups);
  }
  return groupings;
}

int64_t bestSteady(const Problem &problem,
                   const std::vector<std::vector<NodeGroups>> &groupings) {
  return Search(problem, groupings).run();
}

} // namespace merak::stragglers
