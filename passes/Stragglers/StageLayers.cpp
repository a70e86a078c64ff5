#include "passes/Stragglers/StageLayers.h"

#include "passes/Stragglers/Allocation.h"
#include "passes/Stragglers/Assignment.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace merak::stragglers {

GroupClass classOf(const Problem &problem, const std::vector<int> &devices) {
  return {groupRate(problem, devices), int64_t(devices.size())};
}

namespace {

using Groups = std::vector<GroupClass>;

// Of the group as stage `position` of `stages`.
int64_t capAt(const Problem &problem, const GroupClass &group, size_t position,
              size_t stages) {
  const size_t behind = stages - 1 - position;
  return layerCap(problem, group.size, int64_t(behind),
                  position == 0 || behind == 0);
}

PipelineTime timeOf(const std::vector<Part> &stages,
                    const std::vector<int64_t> &layers) {
  PipelineTime time;
  for (size_t j = 0; j < stages.size(); ++j) {
    time.slowest = std::max(time.slowest, stages[j].price * layers[j]);
    time.all += stages[j].price * layers[j];
  }
  return time;
}

// All layers on the fastest stages, as far as none gets slower than `slowest`.
std::vector<int64_t> onFastest(const std::vector<Part> &stages, int64_t slowest,
                               int64_t layers) {
  std::vector<int> order(stages.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return stages[size_t(a)].price < stages[size_t(b)].price;
  });
  std::vector<int64_t> result(stages.size());
  for (int j : order) {
    const Part &stage = stages[size_t(j)];
    result[size_t(j)] = std::min({stage.most, slowest / stage.price, layers});
    layers -= result[size_t(j)];
  }
  return result;
}

// The groups of `order` as stages.
std::vector<Part> stagesOf(const Problem &problem, const Groups &groups,
                           const std::vector<int> &order) {
  std::vector<Part> stages;
  for (size_t j = 0; j < order.size(); ++j) {
    const GroupClass &group = groups[size_t(order[j])];
    stages.push_back(
        {group.rate, 0, 0, capAt(problem, group, j, order.size())});
  }
  return stages;
}

SolvedPipeline solveStages(const Problem &problem, const Groups &groups,
                           const std::vector<int> &order);

// The same without the stages that have no layer.
SolvedPipeline withoutEmpty(const Problem &problem, const Groups &groups,
                            const std::vector<int> &order,
                            const std::vector<int64_t> &layers) {
  std::vector<int> rest;
  for (size_t j = 0; j < order.size(); ++j)
    if (layers[j] > 0)
      rest.push_back(order[j]);
  return solveStages(problem, groups, rest);
}

bool isBetter(const SolvedPipeline &a, const SolvedPipeline &b) {
  return std::pair(a.time.slowest, a.time.all) <
         std::pair(b.time.slowest, b.time.all);
}

// With stages that need not have a layer, and the same with at least one each:
// where taking a stage out moves the embedding to a neighbour without room.
SolvedPipeline withSomeEmpty(const Problem &problem, const Groups &groups,
                             const std::vector<int> &order,
                             std::vector<Part> stages,
                             const std::vector<int64_t> &layers) {
  const SolvedPipeline fewer = withoutEmpty(problem, groups, order, layers);
  for (Part &stage : stages)
    stage.least = 1;
  const bool allHaveRoom = std::all_of(
      stages.begin(), stages.end(), [](const Part &s) { return s.most >= 1; });
  const auto each =
      allHaveRoom ? allocate(stages, problem.layers) : std::nullopt;
  if (!each)
    return fewer;
  const SolvedPipeline all{order, *each, timeOf(stages, *each)};
  return isBetter(all, fewer) ? all : fewer;
}

// The better of keeping all stages that have a layer by the greedy rule, and
// of leaving slow ones out that are not needed for the same slowest stage.
SolvedPipeline solveStages(const Problem &problem, const Groups &groups,
                           const std::vector<int> &order) {
  SolvedPipeline result;
  result.time = {kFailed, kFailed};
  if (order.empty()) {
    result.missing = problem.layers;
    return result;
  }
  const std::vector<Part> stages = stagesOf(problem, groups, order);
  const auto layers = allocate(stages, problem.layers);
  if (!layers) {
    result.missing = problem.layers;
    for (const Part &stage : stages)
      result.missing -= stage.most;
    return result;
  }
  if (std::count(layers->begin(), layers->end(), 0) > 0)
    return withSomeEmpty(problem, groups, order, stages, *layers);
  const int64_t slowest = timeOf(stages, *layers).slowest;
  result.groups = order;
  result.layers = onFastest(stages, slowest, problem.layers);
  const bool skips =
      std::count(result.layers.begin(), result.layers.end(), 0) > 0;
  const std::vector<int64_t> few = result.layers;
  if (skips)
    result.layers = *layers;
  result.time = timeOf(stages, result.layers);
  if (!skips)
    return result;
  const SolvedPipeline shorter = withoutEmpty(problem, groups, order, few);
  return isBetter(shorter, result) ? shorter : result;
}

std::vector<int> slowestFirst(const Groups &groups) {
  std::vector<int> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return groups[size_t(b)] < groups[size_t(a)];
  });
  return order;
}

// The order in which memory allows the fastest slowest stage. How many layers a
// stage holds depends on its position alone once the time of the slowest stage
// is given, so that the most layers are an assignment problem, and the least
// time is found by bisection.
class OrderSearch {
public:
  OrderSearch(const Problem &problem, const Groups &groups)
      : problem(problem), groups(groups),
        caps(groups.size(), std::vector<int64_t>(groups.size())), worth(caps) {
    for (size_t j = 0; j < groups.size(); ++j)
      for (size_t at = 0; at < groups.size(); ++at)
        caps[j][at] = capAt(problem, groups[j], at, groups.size());
  }

  // The most layers that have a place. With `all` each stage has one at least.
  int64_t roomAt(int64_t slowest, bool all = false) {
    value(slowest, all);
    positions = bestAssignment(worth);
    return valueOf(worth, positions);
  }

  // Whether all layers have a place. An assignment costs a hundred times what
  // these bounds do: no stage has more than in its best position and no
  // position more than of its best stage; and some order may have enough.
  bool hasRoom(int64_t slowest, bool all) {
    value(slowest, all);
    int64_t byStage = 0, byPosition = 0;
    std::vector<int64_t> most(groups.size(),
                              std::numeric_limits<int64_t>::min());
    for (size_t j = 0; j < groups.size(); ++j) {
      byStage += *std::max_element(worth[j].begin(), worth[j].end());
      for (size_t at = 0; at < groups.size(); ++at)
        most[at] = std::max(most[at], worth[j][at]);
    }
    for (int64_t layers : most)
      byPosition += layers;
    if (std::min(byStage, byPosition) < problem.layers)
      return false;
    if (!positions.empty() && valueOf(worth, positions) >= problem.layers)
      return true;
    positions = bestAssignment(worth);
    return valueOf(worth, positions) >= problem.layers;
  }

  // The order at the least time from `low` to `high`, which it sets `low` to.
  std::vector<int> best(int64_t &low, int64_t high, bool all) {
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (hasRoom(middle, all))
        high = middle;
      else
        low = middle + 1;
    }
    roomAt(low, all);
    std::vector<int> order(groups.size());
    for (size_t j = 0; j < groups.size(); ++j)
      order[size_t(positions[j])] = int(j);
    return order;
  }

private:
  // What each stage is worth in each position.
  void value(int64_t slowest, bool all) {
    for (size_t j = 0; j < groups.size(); ++j) {
      const int64_t fast = slowest / groups[j].rate;
      for (size_t at = 0; at < groups.size(); ++at) {
        int64_t &layers = worth[j][at];
        layers = std::min(caps[j][at], fast);
        if (all && layers == 0)
          layers = -problem.layers * int64_t(groups.size());
      }
    }
  }

  const Problem &problem;
  const Groups &groups;
  std::vector<std::vector<int64_t>> caps, worth; // by group, position
  std::vector<int> positions;
};

// The slowest stage if memory did not matter.
int64_t unlimited(const Problem &problem, const Groups &groups) {
  std::vector<Part> stages;
  for (const GroupClass &group : groups)
    stages.push_back({group.rate});
  return timeOf(stages, *allocate(stages, problem.layers)).slowest;
}

} // namespace

SolvedPipeline solveInOrder(const Problem &problem, const Groups &groups) {
  std::vector<int> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  return solveStages(problem, groups, order);
}

SolvedPipeline solveInAnyOrder(const Problem &problem, const Groups &groups) {
  SolvedPipeline first = solveStages(problem, groups, slowestFirst(groups));
  if (groups.size() < 2 || !problem.isLimited())
    return first;
  const int64_t low = unlimited(problem, groups);
  if (first.fits() && first.time.slowest == low)
    return first;
  OrderSearch search(problem, groups);
  int64_t high = first.time.slowest;
  if (!first.fits()) {
    high = 0;
    for (const GroupClass &group : groups)
      high = std::max(high, group.rate * problem.layers);
    const int64_t room = search.roomAt(high);
    if (room < problem.layers) {
      first.missing = std::min(first.missing, problem.layers - room);
      return first;
    }
  }
  // Stages without room are left out, where the others fit then.
  SolvedPipeline best = first;
  for (bool all : {false, true}) {
    int64_t time = low;
    const std::vector<int> order = search.best(time, high, all);
    const SolvedPipeline found = solveStages(problem, groups, order);
    if (isBetter(found, best))
      best = found;
    if (found.fits() && found.time.slowest <= time)
      break;
  }
  return best;
}

std::optional<std::vector<int64_t>>
shareMicrobatches(const std::vector<PipelineWork> &pipelines,
                  int64_t microbatches, Objective objective) {
  std::vector<Part> parts, filled;
  for (const PipelineWork &p : pipelines) {
    parts.push_back({p.time.slowest, 0, p.stages});
    filled.push_back(parts.back());
    filled.back().base = p.time.all - p.time.slowest;
  }
  if (objective == Objective::Steady) {
    const auto shared = allocate(parts, microbatches);
    if (!shared)
      return shared;
    const int64_t steady = longest(parts, *shared);
    for (Part &part : filled)
      part.most = steady / part.price;
  }
  return allocate(filled, microbatches);
}

} // namespace merak::stragglers
