// The plain ways to train that a report shows beside what was chosen. They
// decide nothing, so that a thread of its own looks for them once the search
// that knows their prices has made way for one on another graph.
#pragma once

#include "passes/Planning/PlanSearch.h"
#include "passes/Staging/PlanningGraph.h"

#include <memory>
#include <thread>
#include <vector>

namespace merak {

// What a search refers to.
struct SearchedGraph {
  PlanningGraph graph;
  planning::Classes classes;
};

class PlainPlans {
public:
  PlainPlans() = default;
  PlainPlans(const PlainPlans &) = delete;
  ~PlainPlans() { wait(); }

  // By `search` in this thread.
  void find(planning::PlanSearch &search);
  // By `search` in another one, which ends `search` then.
  void findBeside(std::unique_ptr<planning::PlanSearch> search,
                  std::shared_ptr<const SearchedGraph> of);
  void wait();

  std::vector<planning::PlanCandidate> plain; // of plainPolicies()
  // Of singleAxisPolicies(), for a curve.
  std::vector<planning::PlanCandidate> singleAxis;
  planning::SearchTimes times; // of the search that was ended

private:
  std::thread thread;
};

} // namespace merak
