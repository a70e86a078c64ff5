#include "passes/Stragglers/Migration.h"

#include "passes/Stragglers/Assignment.h"
#include "passes/Stragglers/StageLayers.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace merak::stragglers {

namespace {

// What a device holds: layers [begin, end), of each slice `slice` of `slices`,
// for one pipeline.
struct Holding {
  int64_t begin = 0, end = 0;
  int64_t slice = 0, slices = 1;
  size_t pipeline = 0;
};
using Holdings = std::map<int, Holding>; // by device

// A place of a plan: a stage with the layers it has.
struct Place {
  size_t pipeline = 0, stage = 0;
  int64_t begin = 0, end = 0;
};

std::vector<Place> placesOf(const Plan &plan) {
  std::vector<Place> places;
  for (size_t i = 0; i < plan.pipelines.size(); ++i) {
    int64_t begin = 0;
    const std::vector<Stage> &stages = plan.pipelines[i].stages;
    for (size_t j = 0; j < stages.size(); ++j) {
      places.push_back({i, j, begin, begin + stages[j].layers});
      begin += stages[j].layers;
    }
  }
  return places;
}

const Stage &stageAt(const Plan &plan, const Place &place) {
  return plan.pipelines[place.pipeline].stages[place.stage];
}

Holding holdingAt(const Place &place, size_t slice, size_t slices) {
  return {place.begin, place.end, int64_t(slice), int64_t(slices),
          place.pipeline};
}

Holdings holdingsOf(const Plan &plan) {
  Holdings holdings;
  for (const Place &place : placesOf(plan)) {
    const std::vector<int> &devices = stageAt(plan, place).devices;
    for (size_t s = 0; s < devices.size(); ++s)
      holdings[devices[s]] = holdingAt(place, s, devices.size());
  }
  return holdings;
}

int64_t overlap(int64_t beginA, int64_t endA, int64_t beginB, int64_t endB) {
  return std::max<int64_t>(0, std::min(endA, endB) - std::max(beginA, beginB));
}

// Layers times shares of their tensors that both hold, in 2^-20. Group sizes
// are powers of two, so that shares are exact.
constexpr int64_t kShare = int64_t(1) << 20;
int64_t kept(const Holding &a, const Holding &b) {
  const int64_t sizeA = kShare / a.slices, sizeB = kShare / b.slices;
  return overlap(a.begin, a.end, b.begin, b.end) *
         overlap(a.slice * sizeA, (a.slice + 1) * sizeA, b.slice * sizeB,
                 (b.slice + 1) * sizeB);
}

class Keeper {
public:
  Keeper(const Problem &problem, const Plan &old, const Plan &now,
         const std::vector<std::vector<int>> &spare)
      : problem(problem), old(old), spare(spare), plan(now),
        held(holdingsOf(old)) {}

  Plan run() {
    orderPipelines();
    exchangeGroups();
    for (const Place &place : placesOf(plan))
      orderSlices(place);
    return std::move(plan);
  }

private:
  // What a group of devices keeps at a place, with the best slices.
  std::vector<std::vector<int64_t>> sliceValues(const std::vector<int> &devices,
                                                const Place &place) const {
    std::vector<std::vector<int64_t>> values;
    for (int device : devices) {
      values.emplace_back();
      const auto at = held.find(device);
      for (size_t s = 0; s < devices.size(); ++s)
        values.back().push_back(
            at == held.end()
                ? 0
                : kept(at->second, holdingAt(place, s, devices.size())));
    }
    return values;
  }
  int64_t keptBy(const std::vector<int> &devices, const Place &place) const {
    // Devices that hold none of the layers need no assignment.
    if (std::none_of(devices.begin(), devices.end(), [&](int device) {
          const auto at = held.find(device);
          return at != held.end() && overlap(at->second.begin, at->second.end,
                                             place.begin, place.end) > 0;
        }))
      return 0;
    const auto values = sliceValues(devices, place);
    return valueOf(values, bestAssignment(values));
  }

  // Layers whose optimizer state may stay: a shard belongs to a pipeline, so
  // that its number matters beside its groups.
  void orderPipelines() {
    const size_t count = std::max(plan.pipelines.size(), old.pipelines.size());
    std::vector<std::vector<int64_t>> values(plan.pipelines.size(),
                                             std::vector<int64_t>(count, 0));
    for (const Place &place : placesOf(plan))
      for (int device : stageAt(plan, place).devices)
        if (const auto at = held.find(device); at != held.end())
          values[place.pipeline][at->second.pipeline] +=
              overlap(at->second.begin, at->second.end, place.begin, place.end);
    const std::vector<int> to = bestAssignment(values);
    std::vector<std::pair<int, size_t>> order;
    for (size_t i = 0; i < to.size(); ++i)
      order.emplace_back(to[i], i);
    std::sort(order.begin(), order.end());
    std::vector<Pipeline> pipelines;
    for (const auto &[number, i] : order)
      pipelines.push_back(std::move(plan.pipelines[i]));
    plan.pipelines = std::move(pipelines);
  }

  int64_t nodeOf(const std::vector<int> &devices) const {
    return problem.devices[size_t(devices.front())].node;
  }

  void exchangeGroups() {
    std::map<GroupClass, std::vector<Place>> byClass;
    for (const Place &place : placesOf(plan))
      byClass[classOf(problem, stageAt(plan, place).devices)].push_back(place);
    for (const auto &[own, places] : byClass)
      exchange(own, places);
  }

  void exchange(const GroupClass &own, const std::vector<Place> &places) {
    std::vector<std::vector<int>> groups;
    for (const Place &place : places)
      groups.push_back(stageAt(plan, place).devices);
    for (const std::vector<int> &group : spare)
      if (classOf(problem, group) == own)
        groups.push_back(group);
    const std::vector<Place> others = placesOfOthers(own);
    // Copies count less than the smallest share, the same pipeline more.
    const int64_t copies = 1 + problem.layers * int64_t(others.size());
    std::vector<std::vector<int64_t>> values;
    for (const Place &place : places) {
      values.emplace_back();
      for (const std::vector<int> &group : groups)
        values.back().push_back(
            (keptBy(group, place) * 2 + samePipeline(group, place)) * copies +
            copiesBeside(others, place, nodeOf(group)));
    }
    const std::vector<int> to = bestAssignment(values);
    for (size_t i = 0; i < places.size(); ++i)
      plan.pipelines[places[i].pipeline].stages[places[i].stage].devices =
          groups[size_t(to[i])];
  }

  std::vector<Place> placesOfOthers(const GroupClass &own) const {
    std::vector<Place> others = placesOf(plan);
    std::erase_if(others, [&](const Place &place) {
      return classOf(problem, stageAt(plan, place).devices) == own;
    });
    return others;
  }

  // Layers of the place that such groups on the node hold in other pipelines.
  int64_t copiesBeside(const std::vector<Place> &others, const Place &place,
                       int64_t node) const {
    int64_t layers = 0;
    for (const Place &other : others)
      if (other.pipeline != place.pipeline &&
          nodeOf(stageAt(plan, other).devices) == node)
        layers += overlap(place.begin, place.end, other.begin, other.end);
    return layers;
  }

  bool samePipeline(const std::vector<int> &group, const Place &place) const {
    const auto at = held.find(group.front());
    return at != held.end() && at->second.pipeline == place.pipeline;
  }

  void orderSlices(const Place &place) {
    std::vector<int> &devices =
        plan.pipelines[place.pipeline].stages[place.stage].devices;
    const std::vector<int> slices = bestAssignment(sliceValues(devices, place));
    std::vector<int> ordered(devices.size());
    for (size_t d = 0; d < devices.size(); ++d)
      ordered[size_t(slices[d])] = devices[d];
    devices = ordered;
  }

  const Problem &problem;
  const Plan &old;
  const std::vector<std::vector<int>> &spare;
  Plan plan;
  const Holdings held;
};

} // namespace

double movedLayers(const Plan &old, const Plan &now) {
  const Holdings before = holdingsOf(old);
  int64_t moved = 0;
  for (const auto &[device, holding] : holdingsOf(now)) {
    moved += kept(holding, holding);
    if (const auto at = before.find(device); at != before.end())
      moved -= kept(at->second, holding);
  }
  return double(moved) / double(kShare);
}

Plan keepPlaces(const Problem &problem, const Plan &old, const Plan &now,
                const std::vector<std::vector<int>> &spare) {
  return Keeper(problem, old, now, spare).run();
}

} // namespace merak::stragglers
