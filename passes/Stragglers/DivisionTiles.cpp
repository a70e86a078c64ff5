#include "passes/Stragglers/Division.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace merak::stragglers {

namespace {

constexpr int kTileStarts = 2;
constexpr int64_t kTileNodes = 500;

class Tiling {
public:
  Tiling(const DivisionProblem &problem, const SearchOptions &options,
         int64_t perTile)
      : problem(problem), options(options), perTile(perTile),
        tiles(size_t((problem.pipelines + perTile - 1) / perTile)) {
    this->options.threads = 1;
    this->options.starts = kTileStarts;
    this->options.nodes = kTileNodes;
  }

  Division run() {
    spreadNodes();
    result.groupingOf.assign(problem.groupings.size(), 0);
    for (size_t t = 0; t < tiles.size(); ++t)
      add(tiles[t], t);
    std::sort(result.standby.begin(), result.standby.end());
    return std::move(result);
  }

private:
  int64_t pipelinesOf(size_t tile) const {
    return std::min(perTile, problem.pipelines - int64_t(tile) * perTile);
  }

  double speedOf(size_t node) const {
    double speed = 0;
    for (int group : problem.groupings[node].front())
      speed += 1 / double(problem.classes[size_t(group)].rate);
    return speed;
  }

  // Nodes to tiles as groups to pipelines: the fastest first, each where the
  // speed for a pipeline is least. Nodes of one kind stand together.
  void spreadNodes() {
    std::vector<size_t> order(problem.groupings.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> speeds;
    for (size_t node : order)
      speeds.push_back(speedOf(node));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return speeds[a] != speeds[b]
                 ? speeds[a] > speeds[b]
                 : problem.groupings[a] < problem.groupings[b];
    });
    std::vector<double> loads(tiles.size(), 0);
    for (size_t node : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      const size_t tile = size_t(least - loads.begin());
      tiles[tile].push_back(node);
      *least += speeds[node] / double(pipelinesOf(tile));
    }
  }

  using NodeChoices = std::vector<std::vector<int>>; // of a node
  const Division &divisionOf(const std::vector<NodeChoices> &groupings,
                             size_t tile) {
    const auto key = std::pair(pipelinesOf(tile), groupings);
    const auto [at, isNew] = divided.try_emplace(key);
    if (isNew) {
      DivisionProblem part = problem;
      part.groupings = groupings;
      part.pipelines = pipelinesOf(tile);
      part.microbatches = std::max<int64_t>(
          1, problem.microbatches * part.pipelines / problem.pipelines);
      part.longest = std::min(part.longest, size_t(part.microbatches));
      const DivisionResult found = divide(part, options);
      if (!found.found.isEmpty())
        at->second = found.found.best().division;
    }
    return at->second;
  }

  void add(const std::vector<size_t> &nodes, size_t tile) {
    std::vector<NodeChoices> groupings;
    for (size_t node : nodes)
      groupings.push_back(problem.groupings[node]);
    const Division &division = divisionOf(groupings, tile);
    if (division.pipelines.empty())
      return addUnsolved(nodes, tile);
    for (size_t n = 0; n < nodes.size(); ++n)
      result.groupingOf[nodes[n]] = division.groupingOf[n];
    result.pipelines.insert(result.pipelines.end(), division.pipelines.begin(),
                            division.pipelines.end());
    result.standby.insert(result.standby.end(), division.standby.begin(),
                          division.standby.end());
  }

  // The search that begins here may find them a place.
  void addUnsolved(const std::vector<size_t> &nodes, size_t tile) {
    result.pipelines.resize(result.pipelines.size() +
                            size_t(pipelinesOf(tile)));
    for (size_t node : nodes)
      for (int group : problem.groupings[node].front())
        result.standby.push_back(group);
  }

  const DivisionProblem &problem;
  SearchOptions options;
  const int64_t perTile;
  std::vector<std::vector<size_t>> tiles; // nodes
  std::map<std::pair<int64_t, std::vector<NodeChoices>>, Division> divided;
  Division result;
};

} // namespace

Division divideTiles(const DivisionProblem &problem,
                     const SearchOptions &options, int64_t pipelines) {
  return Tiling(problem, options, pipelines).run();
}

} // namespace merak::stragglers
