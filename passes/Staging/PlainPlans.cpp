#include "passes/Staging/PlainPlans.h"

#include <utility>

namespace merak {

static std::vector<planning::PlanCandidate>
bestOfEach(planning::PlanSearch &search,
           const std::vector<planning::SearchPolicy> &policies) {
  std::vector<planning::PlanCandidate> best;
  for (const planning::SearchPolicy &policy : policies)
    if (std::vector<planning::PlanCandidate> found = search.search(policy, 1);
        !found.empty())
      best.push_back(std::move(found.front()));
  return best;
}

void PlainPlans::find(planning::PlanSearch &search) {
  singleAxis = bestOfEach(search, planning::singleAxisPolicies());
  plain = bestOfEach(search, planning::plainPolicies());
}

void PlainPlans::findBeside(std::unique_ptr<planning::PlanSearch> search,
                            std::shared_ptr<const SearchedGraph> of) {
  thread = std::thread(
      [this, search = std::move(search), of = std::move(of)]() mutable {
        find(*search);
        times = search->times;
        search.reset();
      });
}

void PlainPlans::wait() {
  if (thread.joinable())
    thread.join();
}

} // namespace merak
