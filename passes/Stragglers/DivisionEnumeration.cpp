// All divisions, pipeline by pipeline. Of pipelines that only change places one
// order is enumerated, of nodes with equal groupings one order of their
// groupings.
#include "passes/Stragglers/Division.h"

#include <algorithm>
#include <functional>

namespace merak::stragglers {

namespace {

class Enumeration {
public:
  Enumeration(const DivisionProblem &problem, const SearchOptions &options,
              FoundFront &found)
      : problem(problem), options(options), found(found), table(problem),
        left(problem.classes.size(), 0) {}

  bool run() {
    current.groupingOf.assign(problem.groupings.size(), 0);
    current.pipelines.clear();
    groupNode(0);
    return nodes <= options.nodes;
  }

private:
  bool isOver() { return nodes > options.nodes; }
  bool visit() { return ++nodes <= options.nodes; }

  void groupNode(size_t node) {
    if (isOver())
      return;
    if (node == problem.groupings.size()) {
      if (visit() && mayBeBetter(0, speedLeft()))
        addPipeline(0);
      return;
    }
    const auto &groupings = problem.groupings[node];
    int first = 0;
    for (size_t other = 0; other < node; ++other)
      if (problem.groupings[other] == groupings)
        first = current.groupingOf[other];
    for (int grouping = first; grouping < int(groupings.size()); ++grouping) {
      current.groupingOf[node] = grouping;
      for (int group : groupings[size_t(grouping)])
        ++left[size_t(group)];
      groupNode(node + 1);
      for (int group : groupings[size_t(grouping)])
        --left[size_t(group)];
    }
  }

  double speedLeft() const {
    double speed = 0;
    for (size_t c = 0; c < left.size(); ++c)
      speed += left[c] / double(problem.classes[c].rate);
    return speed;
  }

  // Given the sum of 1 / slowest stage over the pipelines so far, and the speed
  // of the groups that are left. The filled step is at least the steady one.
  bool mayBeBetter(double soFar, double speed) const {
    const double most = soFar + speed / double(problem.problem.layers);
    const double bound = double(problem.microbatches) / most;
    const int64_t best = found.bestTime();
    return best == kFailed || bound <= double(best) * (1 + 1e-12);
  }

  void addPipeline(double soFar) {
    if (isOver())
      return;
    if (int64_t(current.pipelines.size()) == problem.pipelines)
      return finish();
    current.pipelines.emplace_back();
    addGroups(0, soFar);
    current.pipelines.pop_back();
  }

  // All choices of groups of classes from `group` on for the last pipeline.
  void addGroups(size_t group, double soFar) {
    if (isOver())
      return;
    Members &members = current.pipelines.back();
    if (group == left.size())
      return closePipeline(soFar);
    const int available = left[group];
    int taken = 0;
    for (; taken < available && members.size() < problem.longest; ++taken) {
      members.push_back(int(group));
      --left[group];
    }
    for (;; --taken) {
      addGroups(group + 1, soFar);
      if (taken == 0)
        return;
      current.pipelines.back().pop_back();
      ++left[group];
    }
  }

  void closePipeline(double soFar) {
    const size_t count = current.pipelines.size();
    const Members &members = current.pipelines.back();
    if (members.empty() || !visit())
      return;
    if (count > 1 && members < current.pipelines[count - 2])
      return;
    const SolvedPipeline &solved = table.of(members);
    if (!solved.fits())
      return;
    const double sum = soFar + 1 / double(solved.time.slowest);
    if (mayBeBetter(sum, int64_t(count) < problem.pipelines ? speedLeft() : 0))
      addPipeline(sum);
  }

  void finish() {
    Score score;
    if (!scoreDivision(problem, table, current, options.objective, score) ||
        !found.wants(score))
      return;
    Division division = current;
    for (size_t c = 0; c < left.size(); ++c)
      division.standby.insert(division.standby.end(), size_t(left[c]), int(c));
    found.add(score, division);
  }

  const DivisionProblem &problem;
  const SearchOptions &options;
  FoundFront &found;
  PipelineTable table;
  std::vector<int> left; // groups by class
  Division current;
  int64_t nodes = 0;
};

} // namespace

bool enumerate(const DivisionProblem &problem, const SearchOptions &options,
               FoundFront &found) {
  return Enumeration(problem, options, found).run();
}

} // namespace merak::stragglers
