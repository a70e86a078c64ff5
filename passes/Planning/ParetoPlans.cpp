#include "passes/Planning/ParetoPlans.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace merak::planning {

// Limits that are tried between the memory of the fastest plan and the least.
constexpr int kLimits = 8;

// Between two of these the same stages recompute more: limits that are smaller
// by this part each, at most so many for a plan.
constexpr double kFiner = 0.03;
constexpr int kRefits = 10;

// Degrees planned in full under each limit.
constexpr size_t kInFull = 3;

// Plans that differ by less memory than this part of it are as good as one.
constexpr double kNear = 0.005;

std::vector<size_t> undominated(const std::vector<Cost> &costs) {
  std::vector<size_t> order(costs.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(costs[a].bytes, costs[a].nanoseconds) <
           std::pair(costs[b].bytes, costs[b].nanoseconds);
  });
  std::vector<size_t> kept;
  for (size_t i : order)
    if (kept.empty() || costs[i].nanoseconds < costs[kept.back()].nanoseconds)
      kept.push_back(i);
  return kept;
}

Cost costOf(const PlanCandidate &candidate) {
  const PipelineCost &cost = candidate.plan.cost;
  return {std::llround(cost.fullest()), std::llround(1e9 * cost.seconds)};
}

namespace {

class ParetoSearch {
public:
  ParetoSearch(PlanSearch &search, SearchPolicy policy, double memoryBytes)
      : search(search), policy(std::move(policy)), memoryBytes(memoryBytes) {
    this->policy.frontier = true;
  }

  void add(const PlanCandidate &candidate);
  void run();
  std::vector<PlanCandidate> take(size_t most) const;

private:
  // The best plan of given degrees under the latest limit.
  struct Latest {
    std::optional<PlanCandidate> quick, full;
    double least = 0; // bytes below which these degrees have no plan
  };
  const PlanCandidate &plan(const Degrees &degrees, bool quick, double limit);
  double within(double limit);
  void refine();
  void reduce();

  PlanSearch &search;
  SearchPolicy policy;
  double memoryBytes;
  std::map<Degrees, Latest> latest;
  std::vector<PlanCandidate> pool; // bytes ascending after reduce()
};

double fullest(const PlanCandidate &candidate) {
  return candidate.plan.cost.fullest();
}

} // namespace

// What fits into a device, whatever the limit was that it was found under.
void ParetoSearch::add(const PlanCandidate &candidate) {
  auto take = [&](const PlanCandidate &one) {
    if (!one.problem.empty() || (memoryBytes > 0 && fullest(one) > memoryBytes))
      return;
    PlanCandidate &kept = pool.emplace_back(one);
    kept.plan.cost.excessBytes = 0;
    kept.others.clear();
  };
  take(candidate);
  for (const PlanCandidate &other : candidate.others)
    take(other);
}

void ParetoSearch::reduce() {
  std::vector<Cost> costs;
  for (const PlanCandidate &candidate : pool)
    costs.push_back(costOf(candidate));
  std::vector<PlanCandidate> kept;
  for (size_t i : undominated(costs))
    kept.push_back(std::move(pool[i]));
  pool = std::move(kept);
}

// The same plan answers every limit that it fits, down to what it needs.
const PlanCandidate &ParetoSearch::plan(const Degrees &degrees, bool quick,
                                        double limit) {
  Latest &known = latest[degrees];
  std::optional<PlanCandidate> &of = quick ? known.quick : known.full;
  if (of && (!of->problem.empty() || (of->fits() && fullest(*of) <= limit)))
    return *of;
  search.limitMemory(limit);
  of = search.plan(degrees, policy, quick);
  add(*of);
  return *of;
}

// Bytes of the fastest plan under a limit; 0: none.
double ParetoSearch::within(double limit) {
  std::vector<std::pair<double, Degrees>> order;
  for (const auto &[degrees, known] : latest)
    if (known.least <= limit)
      if (const PlanCandidate &found = plan(degrees, true, limit); found.fits())
        order.emplace_back(found.plan.cost.seconds, degrees);
  std::stable_sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kInFull));
  const PlanCandidate *best = nullptr;
  for (const auto &[seconds, degrees] : order)
    if (const PlanCandidate &found = plan(degrees, false, limit);
        found.fits() &&
        (!best || found.plan.cost.seconds < best->plan.cost.seconds))
      best = &found;
  reduce();
  return best ? fullest(*best) : 0;
}

// Where a limit lies between two that were tried.
void ParetoSearch::refine() {
  if (policy.recompute.empty() || policy.recompute.front() != "auto")
    return;
  const std::vector<PlanCandidate> found = pool;
  for (size_t i = 1; i < found.size(); ++i) {
    double limit = fullest(found[i]);
    for (int k = 0; k < kRefits; ++k) {
      limit *= 1 - kFiner;
      // What is smaller already should be slower.
      size_t below = i - 1;
      while (below > 0 && fullest(found[below]) > limit)
        --below;
      search.limitMemory(limit);
      const PlanCandidate tighter = search.refit(found[i]);
      if (!tighter.problem.empty() || !tighter.fits() ||
          (fullest(found[below]) <= limit &&
           tighter.plan.cost.seconds >= found[below].plan.cost.seconds))
        break;
      add(tighter);
      limit = std::min(limit, fullest(tighter));
    }
  }
  reduce();
}

void ParetoSearch::run() {
  Result<std::vector<Degrees>> degrees = search.degrees();
  if (!degrees.ok())
    return;
  // Under a limit that nothing fits every stage is as small as it can be.
  std::vector<std::pair<double, Degrees>> order;
  search.limitMemory(1);
  for (const Degrees &d : *degrees) {
    PlanCandidate smallest = search.plan(d, policy, true);
    if (!smallest.problem.empty())
      continue;
    add(smallest);
    double least = fullest(smallest);
    for (const PlanCandidate &other : smallest.others)
      least = std::min(least, fullest(other));
    latest[d].least = least;
    order.emplace_back(least, d);
  }
  std::stable_sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kInFull));
  for (const auto &[bytes, d] : order)
    add(search.plan(d, policy, false));
  reduce();
  if (pool.empty())
    return;
  const double least = fullest(pool.front());
  const double all =
      memoryBytes > 0 ? memoryBytes : std::numeric_limits<double>::max();
  double bytes = within(all);
  const double ratio =
      std::min(0.95, std::pow(least / std::max(bytes, least), 1.0 / kLimits));
  while (bytes * ratio > least)
    bytes = std::min(bytes * ratio, std::max(within(bytes * ratio), least));
  refine();
}

// Thinned from the fastest on; both ends stay.
std::vector<PlanCandidate> ParetoSearch::take(size_t most) const {
  std::vector<size_t> kept;
  for (double near = kNear; kept.empty() || kept.size() > most; near *= 1.5) {
    kept.clear();
    for (size_t i = pool.size(); i-- > 0;)
      if (kept.empty() ||
          fullest(pool[i]) <= (1 - near) * fullest(pool[kept.back()]))
        kept.push_back(i);
    if (pool.empty())
      break;
    if (kept.back() != 0)
      kept.push_back(0);
    if (near > 1)
      break;
  }
  std::vector<PlanCandidate> taken;
  for (size_t i : kept)
    taken.push_back(pool[i]);
  return taken;
}

std::vector<PlanCandidate> paretoPlans(PlanSearch &search, SearchPolicy policy,
                                       double memoryBytes,
                                       const std::vector<PlanCandidate> &known,
                                       size_t most) {
  ParetoSearch pareto(search, std::move(policy), memoryBytes);
  for (const PlanCandidate &candidate : known)
    pareto.add(candidate);
  pareto.run();
  search.limitMemory(memoryBytes);
  std::vector<PlanCandidate> found = pareto.take(most);
  // What the usual search would compile is compared with the others in any
  // case: prices tell them apart less surely than simulation.
  for (const PlanCandidate &candidate : known)
    if (std::none_of(found.begin(), found.end(), [&](const auto &other) {
          return costOf(other) == costOf(candidate) &&
                 other.degrees == candidate.degrees;
        }))
      found.push_back(candidate);
  return found;
}

} // namespace merak::planning
