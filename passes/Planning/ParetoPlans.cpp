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

// After these limits, more of them where neighbours lie furthest apart.
constexpr int kBetween = 8;

// Degrees planned in full under each limit. Under the limit before they are
// planned as well: what is faster there may need more than its price says.
constexpr size_t kInFull = 3;

// Plans whose times differ by less than this part of them are as fast as each
// other: which of them recomputes less is seen when they are simulated.
constexpr double kSameTime = 0.002;

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

// Plans that may be worth having.
class ParetoPool {
public:
  // `memoryBytes`: of a device; 0: not limited.
  explicit ParetoPool(double memoryBytes) : memoryBytes(memoryBytes) {}

  void add(const PlanCandidate &candidate);
  void reduce();
  std::vector<PlanCandidate> frontier() const;
  std::vector<PlanCandidate> take(size_t most) const;
  // Fastest first after reduce().
  const std::vector<PlanCandidate> &plans() const { return pool; }

private:
  std::vector<PlanCandidate> thinned(size_t most) const;

  double memoryBytes;
  std::vector<PlanCandidate> pool;
};

class ParetoSearch {
public:
  ParetoSearch(PlanSearch &search, SearchPolicy policy, double memoryBytes)
      : pool(memoryBytes), search(search), policy(std::move(policy)),
        memoryBytes(memoryBytes) {
    this->policy.frontier = true;
  }

  void run();
  ParetoPool pool;

private:
  // The best plan of given degrees under the latest limit.
  struct Within {
    std::optional<PlanCandidate> plan;
    double limit = 0;
  };
  struct Latest {
    Within quick, full;
    double least = 0; // bytes below which these degrees have no plan
    Within &of(bool isQuick) { return isQuick ? quick : full; }
  };
  void plan(const std::vector<Degrees> &all, bool quick, double limit);
  double within(double limit);
  void closeGaps();
  void refine();

  PlanSearch &search;
  SearchPolicy policy;
  double memoryBytes;
  std::map<Degrees, Latest> latest;
  double before = 0;        // the limit before, if there was one
  std::set<Degrees> inFull; // what was planned so under it
};

double fullest(const PlanCandidate &candidate) {
  return candidate.plan.cost.fullest();
}

} // namespace

// What fits into a device, whatever the limit was that it was found under.
void ParetoPool::add(const PlanCandidate &candidate) {
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
std::vector<PlanCandidate> ParetoPool::frontier() const {
  std::vector<Cost> costs;
  for (const PlanCandidate &candidate : pool)
    costs.push_back(costOf(candidate));
  std::vector<PlanCandidate> found;
  for (size_t i : undominated(costs))
    found.push_back(pool[i]);
  return found;
}

// Drops what another one beats with the same stages and schedule, whose prices
// are off alike, or with any others by more than prices are sure of.
void ParetoPool::reduce() {
  std::stable_sort(pool.begin(), pool.end(), [](const auto &a, const auto &b) {
    const Cost x = costOf(a), y = costOf(b);
    return std::pair(x.nanoseconds, x.bytes) <
           std::pair(y.nanoseconds, y.bytes);
  });
  // The least bytes of all that are faster, and of those that are so with the
  // same stages and schedule.
  double least = std::numeric_limits<double>::infinity();
  std::map<std::tuple<Degrees, Techniques, bool, std::vector<int>, std::string>,
           double>
      ofStages;
  const auto stagesOf = [](const PlanCandidate &of) {
    return std::tuple(of.degrees, of.techniques, of.convertOnce, of.plan.begin,
                      of.plan.schedule.name);
  };
  std::vector<PlanCandidate> kept;
  size_t faster = 0; // of these
  for (PlanCandidate &candidate : pool) {
    for (; faster < kept.size() &&
           kept[faster].plan.cost.seconds <
               (1 - kSameTime) * candidate.plan.cost.seconds;
         ++faster) {
      const double bytes = fullest(kept[faster]);
      least = std::min(least, bytes);
      double &alike =
          ofStages.try_emplace(stagesOf(kept[faster]), bytes).first->second;
      alike = std::min(alike, bytes);
    }
    const double bytes = fullest(candidate);
    const auto alike = ofStages.find(stagesOf(candidate));
    const bool isKnown =
        std::any_of(kept.begin() + std::ptrdiff_t(faster), kept.end(),
                    [&](const PlanCandidate &other) {
                      return costOf(other) == costOf(candidate) &&
                             stagesOf(other) == stagesOf(candidate);
                    });
    if (isKnown || bytes >= kMayFit * least ||
        (alike != ofStages.end() && bytes >= alike->second))
      continue;
    kept.push_back(std::move(candidate));
  }
  pool = std::move(kept);
}

// The same plan answers every smaller limit that it fits.
void ParetoSearch::plan(const std::vector<Degrees> &all, bool quick,
                        double limit) {
  std::vector<Degrees> wanting;
  for (const Degrees &degrees : all) {
    const auto &[of, within] = latest[degrees].of(quick);
    if (!of || (of->problem.empty() &&
                (!of->fits() || fullest(*of) > limit || limit > within)))
      wanting.push_back(degrees);
  }
  search.limitMemory(limit);
  std::vector<PlanCandidate> found = search.plans(wanting, policy, quick);
  for (size_t i = 0; i < wanting.size(); ++i) {
    pool.add(found[i]);
    latest[wanting[i]].of(quick) = {std::move(found[i]), limit};
  }
}

// Bytes of the fastest plan under a limit; 0: none.
double ParetoSearch::within(double limit) {
  std::vector<Degrees> all;
  for (const auto &[degrees, known] : latest)
    if (known.least <= limit)
      all.push_back(degrees);
  plan(all, /*quick=*/true, limit);
  std::vector<std::pair<double, Degrees>> order;
  for (const Degrees &degrees : all)
    if (const PlanCandidate &found = *latest[degrees].quick.plan; found.fits())
      order.emplace_back(found.plan.cost.seconds, degrees);
  std::stable_sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kInFull));
  std::vector<Degrees> chosen, isNew;
  for (const auto &[seconds, degrees] : order) {
    chosen.push_back(degrees);
    if (before > 0 && !inFull.contains(degrees))
      isNew.push_back(degrees);
  }
  plan(isNew, /*quick=*/false, before);
  plan(chosen, /*quick=*/false, limit);
  const PlanCandidate *best = nullptr;
  for (const Degrees &degrees : chosen)
    if (const PlanCandidate &found = *latest[degrees].full.plan;
        found.fits() &&
        (!best || found.plan.cost.seconds < best->plan.cost.seconds))
      best = &found;
  before = limit;
  inFull = {chosen.begin(), chosen.end()};
  pool.reduce();
  return best ? fullest(*best) : 0;
}

// Under a limit between two plans those of their degrees may lie between them:
// the widest gaps first, in memory and time by their ratios.
void ParetoSearch::closeGaps() {
  std::set<std::pair<int64_t, int64_t>> tried; // bytes of both
  for (int k = 0; k < kBetween; ++k) {
    const std::vector<PlanCandidate> found = pool.frontier();
    size_t widest = 0;
    double most = 0;
    for (size_t i = 1; i < found.size(); ++i) {
      const Cost small = costOf(found[i - 1]), fast = costOf(found[i]);
      const double gap =
          std::log(double(fast.bytes) / double(small.bytes)) *
          std::log(double(small.nanoseconds) / double(fast.nanoseconds));
      if (gap > most && !tried.contains({small.bytes, fast.bytes})) {
        most = gap;
        widest = i;
      }
    }
    if (widest == 0)
      return;
    const PlanCandidate &small = found[widest - 1], &fast = found[widest];
    tried.emplace(costOf(small).bytes, costOf(fast).bytes);
    const std::set<Degrees> both{small.degrees, fast.degrees};
    search.limitMemory(std::sqrt(fullest(small) * fullest(fast)));
    for (const PlanCandidate &candidate :
         search.plans({both.begin(), both.end()}, policy, /*quick=*/false))
      pool.add(candidate);
    pool.reduce();
  }
}

// Where a limit lies between two that were tried.
void ParetoSearch::refine() {
  if (policy.recompute.empty() || policy.recompute.front() != "auto")
    return;
  const std::vector<PlanCandidate> found = pool.frontier();
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
      pool.add(tighter);
      limit = std::min(limit, fullest(tighter));
    }
  }
  pool.reduce();
}

void ParetoSearch::run() {
  Result<std::vector<Degrees>> degrees = search.degrees();
  if (!degrees.ok())
    return;
  // Under a limit that nothing fits every stage is as small as it can be.
  std::vector<std::pair<double, Degrees>> order;
  search.limitMemory(1);
  const std::vector<PlanCandidate> tightest =
      search.plans(*degrees, policy, /*quick=*/true);
  for (size_t i = 0; i < tightest.size(); ++i) {
    const PlanCandidate &smallest = tightest[i];
    if (!smallest.problem.empty())
      continue;
    pool.add(smallest);
    double least = fullest(smallest);
    for (const PlanCandidate &other : smallest.others)
      least = std::min(least, fullest(other));
    latest[(*degrees)[i]].least = least;
    order.emplace_back(least, (*degrees)[i]);
  }
  std::stable_sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kInFull));
  std::vector<Degrees> small;
  for (const auto &[bytes, d] : order)
    small.push_back(d);
  for (const PlanCandidate &candidate :
       search.plans(small, policy, /*quick=*/false))
    pool.add(candidate);
  pool.reduce();
  if (pool.plans().empty())
    return;
  double least = fullest(pool.plans().front());
  for (const PlanCandidate &candidate : pool.plans())
    least = std::min(least, fullest(candidate));
  const double all =
      memoryBytes > 0 ? memoryBytes : std::numeric_limits<double>::max();
  double bytes = within(all);
  const double ratio =
      std::min(0.95, std::pow(least / std::max(bytes, least), 1.0 / kLimits));
  while (bytes * ratio > least)
    bytes = std::min(bytes * ratio, std::max(within(bytes * ratio), least));
  refine();
  closeGaps();
  refine();
}

// The frontier, thinned from the fastest on; both ends stay.
std::vector<PlanCandidate> ParetoPool::thinned(size_t most) const {
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
std::vector<PlanCandidate> ParetoPool::take(size_t most) const {
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
    pareto.pool.add(candidate);
  pareto.run();
  search.limitMemory(memoryBytes);
  std::vector<PlanCandidate> found = pareto.pool.take(most);
  addKnown(known, found);
  return found;
}

void addKnown(const std::vector<PlanCandidate> &known,
              std::vector<PlanCandidate> &found) {
  for (const PlanCandidate &candidate : known)
    if (std::none_of(found.begin(), found.end(), [&](const auto &other) {
          return costOf(other) == costOf(candidate) &&
                 other.degrees == candidate.degrees;
        }))
      found.push_back(candidate);
}

std::vector<PlanCandidate> mergedPlans(const std::vector<PlanCandidate> &some,
                                       const std::vector<PlanCandidate> &others,
                                       size_t most) {
  ParetoPool pool(/*memoryBytes=*/0);
  for (const std::vector<PlanCandidate> *plans : {&some, &others})
    for (const PlanCandidate &candidate : *plans)
      pool.add(candidate);
  pool.reduce();
  return pool.take(most);
}

} // namespace merak::planning
