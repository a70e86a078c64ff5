// Which degrees are planned: the most promising first, by bounds that no plan
// with them is below (LeastSeconds.h), until no others can be among the best.
#include "passes/Planning/PlanSearch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace merak::planning {

// Degrees planned before the next bound is looked at, and threads: each has
// shardings of its own.
constexpr size_t kAtOnce = 12, kMostThreads = 2;

// What a bound from larger microbatches is multiplied by: per sample they are
// faster, but fusion and cuts may differ a little.
constexpr double kSurely = 0.97;

PlanSearch::Bound PlanSearch::boundOf(const Degrees &d, const Degrees &like,
                                      const SearchPolicy &policy, bool quick) {
  const bool rough = samplesOf(like) != samplesOf(d);
  const double share = double(samplesOf(d)) / double(samplesOf(like));
  const PipelineShape shape = commonShape(d);
  const auto least = [&](const LeastSeconds &sums) {
    return input.pinned.stageBegins ? sums.of(shape)
                                    : leastSeconds(policy, quick, sums, shape);
  };
  Bound bound{std::numeric_limits<double>::infinity(), true, 0, rough};
  for (const Techniques &techniques : techniquesOf(d, policy))
    if (Result<const Sharding *> shard = sharding(like, techniques);
        shard.ok()) {
      const LeastSeconds &sums = *(*shard)->least;
      const double seconds =
          rough ? kSurely * least(sums.scaledBy(share)) : least(sums);
      const bool misfits = sums.misfits(shape);
      bound.seconds = std::min(bound.seconds, seconds);
      bound.misfits &= misfits;
      if (!rough)
        (*shard)->promise =
            std::min((*shard)->promise, std::pair(misfits, seconds));
    }
  return bound;
}

bool PlanSearch::isSharedByDegrees(const Degrees &d,
                                   const SearchPolicy &policy) {
  if (!input.pinned.classes.empty() ||
      !std::all_of(input.cluster.kinds.begin(), input.cluster.kinds.end(),
                   [](auto &kind) { return kind.isFasterOnMore(); }))
    return false;
  for (const Techniques &techniques : techniquesOf(d, policy))
    if (techniques.mixed > 0 || techniques.zero > 0 || techniques.sequence)
      return false;
    else if (Result<const SeamLayouts *> layouts = seamLayouts(d, techniques);
             !layouts.ok() || !(*layouts)->empty())
      return false;
  return true;
}

// Each by the degrees with the same tp and the most samples a microbatch: a
// sharding costs a hundred times what a bound does.
std::vector<PlanSearch::Bound>
PlanSearch::roughBounds(const std::vector<Degrees> &degrees,
                        const SearchPolicy &policy, bool quick) {
  std::map<int64_t, size_t> most; // by tp; of degrees that share shardings
  std::vector<char> shared;
  for (size_t i = 0; i < degrees.size(); ++i) {
    shared.push_back(isSharedByDegrees(degrees[i], policy));
    if (!shared[i])
      continue;
    size_t &best = most.try_emplace(degrees[i].tp, i).first->second;
    if (samplesOf(degrees[i]) > samplesOf(degrees[best]))
      best = i;
  }
  std::vector<size_t> like;
  for (size_t i = 0; i < degrees.size(); ++i)
    like.push_back(shared[i] ? most.at(degrees[i].tp) : i);
  std::map<size_t, std::vector<size_t>> byHome;
  for (size_t i = 0; i < degrees.size(); ++i)
    byHome[homeOf(degrees[like[i]])].push_back(i);
  std::vector<std::pair<size_t, std::vector<size_t>>> work(byHome.begin(),
                                                           byHome.end());
  std::vector<Bound> bounds(degrees.size());
  share(
      work.size(), [&](size_t w) { return work[w].first; },
      [&](PlanSearch &own, size_t w) {
        for (size_t i : work[w].second) {
          bounds[i] = own.boundOf(degrees[i], degrees[like[i]], policy, quick);
          bounds[i].index = i;
        }
        own.keepPromising(input.kept);
      });
  return bounds;
}

bool PlanSearch::refine(std::span<Bound> bounds,
                        const std::vector<Degrees> &degrees,
                        const SearchPolicy &policy, bool quick) {
  std::vector<Bound *> rough;
  for (Bound &bound : bounds)
    if (bound.rough)
      rough.push_back(&bound);
  share(
      rough.size(), [&](size_t i) { return homeOf(degrees[rough[i]->index]); },
      [&](PlanSearch &own, size_t i) {
        const size_t index = rough[i]->index;
        *rough[i] = own.boundOf(degrees[index], degrees[index], policy, quick);
        rough[i]->index = index;
        own.keepPromising(input.kept);
      });
  return !rough.empty();
}

// What is asked for again is made again.
void PlanSearch::keepPromising(size_t most) {
  std::vector<std::pair<bool, double>> promises;
  for (const auto &[key, made] : shardings)
    if (made.second)
      promises.push_back(made.second->promise);
  if (promises.size() <= most)
    return;
  std::sort(promises.begin(), promises.end());
  for (auto &[key, made] : shardings)
    if (made.second && made.second->promise > promises[most - 1])
      made.second.reset();
}

size_t PlanSearch::homeOf(const Degrees &d) {
  first->try_emplace({d.tp, samplesOf(d)}, d);
  return homes.try_emplace({d.tp, samplesOf(d)}, homes.size()).first->second;
}

void PlanSearch::share(size_t count, const std::function<size_t(size_t)> &home,
                       const std::function<void(PlanSearch &, size_t)> &work) {
  const size_t threads = std::min<size_t>(
      {kMostThreads, std::max(1u, std::thread::hardware_concurrency()), count});
  while (helpers.size() + 1 < threads) {
    helpers.push_back(std::make_unique<PlanSearch>(input));
    helpers.back()->first = first;
  }
  std::vector<size_t> homeOfItem, left;
  for (size_t i = 0; i < count; ++i) {
    homeOfItem.push_back(home(i));
    left.push_back(i);
  }
  std::mutex mutex;
  // The next item of a thread, `count` if none is left: one whose home is its
  // own or nobody's, else any.
  const auto next = [&](size_t thread) {
    std::lock_guard lock(mutex);
    if (left.empty())
      return count;
    auto found = std::find_if(left.begin(), left.end(), [&](size_t i) {
      return threadOf.try_emplace(homeOfItem[i], thread).first->second ==
             thread;
    });
    if (found == left.end())
      found = left.begin();
    const size_t item = *found;
    left.erase(found);
    return item;
  };
  const auto run = [&](size_t thread) {
    PlanSearch &own = thread == 0 ? *this : *helpers[thread - 1];
    for (size_t i = next(thread); i < count; i = next(thread))
      work(own, i);
    own.applied = {};
  };
  std::vector<std::thread> others;
  for (size_t thread = 1; thread < threads; ++thread)
    others.emplace_back(run, thread);
  if (threads > 0)
    run(0);
  for (std::thread &other : others)
    other.join();
  for (const std::unique_ptr<PlanSearch> &helper : helpers) {
    times.add(std::exchange(helper->times, {}));
    evaluated += std::exchange(helper->evaluated, 0);
  }
}

// The most promising degrees first, until no others can be among the best
// `most` that fit. What is planned at once is not less on fewer threads.
std::vector<PlanCandidate>
PlanSearch::quickPlans(const std::vector<Degrees> &degrees,
                       const SearchPolicy &policy, bool quick, size_t most) {
  if (quick)
    times.considered += int64_t(degrees.size());
  // Another system's prices have other bounds.
  const bool rough =
      degrees.size() > 1 && most > 0 && !policy.frontier && !policy.price;
  const bool bounded = rough && !input.exhaustive && degrees.size() > most;
  const auto homeOfIndex = [&](size_t i) { return homeOf(degrees[i]); };
  std::vector<Bound> order(degrees.size());
  for (size_t i = 0; i < degrees.size(); ++i) {
    order[i].index = i;
    homeOf(degrees[i]);
  }
  if (bounded)
    order = roughBounds(degrees, policy, quick);
  std::sort(order.begin(), order.end());
  std::vector<std::pair<size_t, PlanCandidate>> made;
  std::vector<double> fitting; // seconds, ascending
  // Of the slowest that is still among the best.
  const auto limitNow = [&] {
    return bounded && fitting.size() >= most
               ? fitting[most - 1]
               : std::numeric_limits<double>::infinity();
  };
  // Of each degrees the best plan alone is asked for.
  const bool limited = bounded && (quick || !policy.cutters.empty());
  const auto isLeftOut = [&](const Bound &bound) {
    return std::isfinite(limitNow()) &&
           (bound.misfits || bound.seconds * (1 - 1e-9) > limitNow());
  };
  for (size_t begin = 0; begin < order.size() && !isLeftOut(order[begin]);) {
    size_t end = begin;
    while (end < order.size() && end < begin + kAtOnce &&
           !isLeftOut(order[end]))
      ++end;
    // Rough bounds are no higher: what is first by bounds that are none is
    // first of all.
    const std::span<Bound> next = std::span(order).subspan(begin, end - begin);
    if (refine(next, degrees, policy, quick)) {
      std::sort(order.begin() + begin, order.end());
      continue;
    }
    std::vector<PlanCandidate> found(end - begin);
    share(
        found.size(),
        [&](size_t i) { return homeOfIndex(order[begin + i].index); },
        [&](PlanSearch &own, size_t i) {
          found[i] = own.plan(degrees[order[begin + i].index], policy, quick,
                              limited ? limitNow() : 0, rough);
        });
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].leftOut)
        continue;
      const double seconds = found[i].plan.cost.seconds;
      if (found[i].fits())
        fitting.insert(
            std::upper_bound(fitting.begin(), fitting.end(), seconds), seconds);
      made.emplace_back(order[begin + i].index, std::move(found[i]));
    }
    begin = end;
  }
  // Of equals the first.
  std::sort(made.begin(), made.end(),
            [](const auto &a, const auto &b) { return a.first < b.first; });
  std::vector<PlanCandidate> all;
  for (auto &[index, candidate] : made)
    all.push_back(std::move(candidate));
  return all;
}

// Plans `count` of the candidates in full. What is certainly slower than the
// best one as it is now by more than kWorthKeeping is left out of them.
void PlanSearch::planInFull(std::vector<PlanCandidate> &all, size_t count,
                            const SearchPolicy &policy) {
  double limit = input.exhaustive || policy.frontier || policy.price
                     ? 0
                     : std::numeric_limits<double>::infinity();
  std::vector<size_t> chosen;
  for (size_t i = 0; i < std::min(count, all.size()); ++i) {
    if (!all[i].full && all[i].problem.empty())
      chosen.push_back(i);
    if (all[i].fits())
      limit = std::min(limit, kWorthKeeping * all[i].plan.cost.seconds);
  }
  std::vector<PlanCandidate> full(chosen.size());
  share(
      chosen.size(), [&](size_t i) { return homeOf(all[chosen[i]].degrees); },
      [&](PlanSearch &own, size_t i) {
        full[i] = own.plan(all[chosen[i]].degrees, policy, false, limit);
      });
  for (size_t i = 0; i < chosen.size(); ++i)
    if (!full[i].leftOut)
      all[chosen[i]] = std::move(full[i]);
}

} // namespace merak::planning
