#include "passes/Stragglers/Restart.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace merak::stragglers {

namespace {

struct Node {
  int64_t slowest = 0;
  std::vector<int> devices; // alive
};

// The fastest first.
std::vector<Node> nodesOf(const Problem &problem) {
  std::map<int64_t, Node> all;
  for (size_t i = 0; i < problem.devices.size(); ++i)
    if (!isFailed(problem, int(i))) {
      Node &node = all[problem.devices[i].node];
      node.slowest = std::max(node.slowest, problem.devices[i].rate);
      node.devices.push_back(int(i));
    }
  std::vector<Node> nodes;
  for (auto &[number, node] : all)
    nodes.push_back(std::move(node));
  std::stable_sort(
      nodes.begin(), nodes.end(),
      [](const Node &a, const Node &b) { return a.slowest < b.slowest; });
  return nodes;
}

// The uniform plan of dp * pp of these devices, renumbered to them.
Plan onDevices(Problem problem, const std::vector<int> &devices, int64_t dp,
               int64_t pp) {
  problem.dp = dp;
  problem.pp = pp;
  Plan plan = uniformPlan(problem);
  for (Pipeline &pipeline : plan.pipelines)
    for (Stage &stage : pipeline.stages)
      for (int &device : stage.devices)
        device = devices[size_t(device)];
  return plan;
}

class Restart {
public:
  Restart(const Problem &problem, int64_t mostPipelines)
      : problem(problem), mostPipelines(mostPipelines) {}

  std::optional<Plan> run() {
    std::vector<int> devices; // in whole groups
    for (const Node &node : nodesOf(problem)) {
      const size_t size = size_t(problem.tp);
      for (size_t i = 0; i < node.devices.size() / size * size; ++i)
        devices.push_back(node.devices[i]);
      tryDegrees(devices);
    }
    return best;
  }

private:
  void tryDegrees(const std::vector<int> &devices) {
    const int64_t groups = int64_t(devices.size()) / problem.tp;
    for (int64_t pp = 1; pp <= std::min(groups, mostStages(problem)); ++pp) {
      // Fewer pipelines of as many stages only take longer.
      const int64_t dp =
          std::min({groups / pp, problem.microbatches / pp, mostPipelines});
      if (dp < 1)
        continue;
      const Plan plan = onDevices(problem, devices, dp, pp);
      const Score score = scoreOf(problem, plan);
      if ((best && std::tie(bestScore.steady, bestScore.filled) <=
                       std::tie(score.steady, score.filled)) ||
          !verify(problem, plan).ok())
        continue;
      best = plan;
      bestScore = score;
    }
  }

  const Problem &problem;
  const int64_t mostPipelines;
  std::optional<Plan> best;
  Score bestScore;
};

} // namespace

std::optional<Plan> restartedPlan(const Problem &problem,
                                  int64_t mostPipelines) {
  return Restart(problem, mostPipelines).run();
}

} // namespace merak::stragglers
