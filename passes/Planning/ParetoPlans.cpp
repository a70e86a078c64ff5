#include "passes/Planning/ParetoPlans.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace merak::planning {

// Limits that are tried between the memory of the fastest plan and the least.
constexpr int kLimits = 8;

// Between two of these the same stages recompute more: limits that are smaller
// by this part each, at most so many for a plan.
constexpr double kFiner = 0.03;
constexpr int kRefits = 10;

// Degrees planned in full under each limit. Under the limit before they are
// planned as well: what is faster there may need more than its price says.
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
  std::vector<PlanCandidate> thinned(size_t most) const;
  // The best plan of given degrees under the latest limit.
  struct Latest {
    std::optional<PlanCandidate> quick, full;
    double quickWithin = 0, fullWithin = 0; // the limits of these
    double least = 0; // bytes below which these degrees have no plan
  };
  const PlanCandidate &plan(const Degrees &degrees, bool quick, double limit);
  double within(double limit);
  void refine();
  void reduce();
  std::vector<PlanCandidate> frontier() const;

  PlanSearch &search;
  SearchPolicy policy;
  double memoryBytes;
  std::map<Degrees, Latest> latest;
  double before = 0;               // the limit before, if there was one
  std::set<Degrees> inFull;        // what was planned so under it
  std::vector<PlanCandidate> pool; // fastest first after reduce()
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

// Those that none beats, bytes ascending.
std::vector<PlanCandidate> ParetoSearch::frontier() const {
  std::vector<Cost> costs;
  for (const PlanCandidate &candidate : pool)
    costs.push_back(costOf(candidate));
  std::vector<PlanCandidate> found;
  for (size_t i : undominated(costs))
    found.push_back(pool[i]);
  return found;
}

// Drops what another one beats with the same stages, whose prices are off
// alike, or with any others by more than prices are sure of.
void ParetoSearch::reduce() {
  std::stable_sort(pool.begin(), pool.end(), [](const auto &a, const auto &b) {
    const Cost x = costOf(a), y = costOf(b);
    return std::pair(x.nanoseconds, x.bytes) <
           std::pair(y.nanoseconds, y.bytes);
  });
  double least = std::numeric_limits<double>::infinity();
  std::map<std::tuple<Degrees, Techniques, std::vector<int>>, double> ofStages;
  std::vector<PlanCandidate> kept;
  for (PlanCandidate &candidate : pool) {
    const double bytes = fullest(candidate);
    const auto [alike, isNew] = ofStages.try_emplace(
        {candidate.degrees, candidate.techniques, candidate.plan.begin}, bytes);
    if (bytes >= kMayFit * least || (!isNew && bytes >= alike->second))
      continue;
    alike->second = bytes;
    least = std::min(least, bytes);
    kept.push_back(std::move(candidate));
  }
  pool = std::move(kept);
}

// The same plan answers every smaller limit that it fits.
const PlanCandidate &ParetoSearch::plan(const Degrees &degrees, bool quick,
                                        double limit) {
  Latest &known = latest[degrees];
  std::optional<PlanCandidate> &of = quick ? known.quick : known.full;
  double &within = quick ? known.quickWithin : known.fullWithin;
  if (of && (!of->problem.empty() ||
             (of->fits() && fullest(*of) <= limit && limit <= within)))
    return *of;
  within = limit;
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
  std::set<Degrees> planned;
  for (const auto &[seconds, degrees] : order) {
    if (before > 0 && !inFull.contains(degrees))
      plan(degrees, false, before);
    planned.insert(degrees);
    if (const PlanCandidate &found = plan(degrees, false, limit);
        found.fits() &&
        (!best || found.plan.cost.seconds < best->plan.cost.seconds))
      best = &found;
  }
  before = limit;
  inFull = std::move(planned);
  reduce();
  return best ? fullest(*best) : 0;
}

// Where a limit lies between two that were tried.
void ParetoSearch::refine() {
  if (policy.recompute.empty() || policy.recompute.front() != "auto")
    return;
  const std::vector<PlanCandidate> found = frontier();
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
  double least = fullest(pool.front());
  for (const PlanCandidate &candidate : pool)
    least = std::min(least, fullest(candidate));
  const double all =
      memoryBytes > 0 ? memoryBytes : std::numeric_limits<double>::max();
  double bytes = within(all);
  const double ratio =
      std::min(0.95, std::pow(least / std::max(bytes, least), 1.0 / kLimits));
  while (bytes * ratio > least)
    bytes = std::min(bytes * ratio, std::max(within(bytes * ratio), least));
  refine();
}

// The frontier, thinned from the fastest on; both ends stay.
std::vector<PlanCandidate> ParetoSearch::thinned(size_t most) const {
  const std::vector<PlanCandidate> all = frontier();
  std::vector<size_t> kept;
  for (double near = kNear; kept.empty() || kept.size() > most; near *= 1.5) {
    kept.clear();
    for (size_t i = all.size(); i-- > 0;)
      if (kept.empty() ||
          fullest(all[i]) <= (1 - near) * fullest(all[kept.back()]))
        kept.push_back(i);
    if (all.empty())
      break;
    if (kept.back() != 0)
      kept.push_back(0);
    if (near > 1)
      break;
  }
  std::vector<PlanCandidate> taken;
  for (size_t i : kept)
    taken.push_back(all[i]);
  return taken;
}

// The others thinned among those of the same degrees, the fastest first.
std::vector<PlanCandidate> ParetoSearch::take(size_t most) const {
  const std::vector<PlanCandidate> points = thinned(most);
  std::vector<PlanCandidate> taken;
  for (double near = kNear; taken.empty() || taken.size() > most; near *= 1.5) {
    taken = points;
    for (const PlanCandidate &candidate : pool)
      if (std::none_of(taken.begin(), taken.end(), [&](const auto &one) {
            return one.degrees == candidate.degrees &&
                   std::abs(fullest(one) - fullest(candidate)) <
                       near * fullest(one);
          }))
        taken.push_back(candidate);
    if (near > 1)
      taken.resize(std::min(taken.size(), most));
    if (pool.empty())
      break;
  }
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
