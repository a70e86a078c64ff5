// Which degrees are planned: the most promising first, by bounds that no plan
// with them is below (LeastSeconds.h), until no others can be among the best.
#include "passes/Planning/PlanSearch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

namespace merak::planning {

// Degrees planned before the next bound is looked at, and threads: each has
// shardings of its own.
constexpr size_t kAtOnce = 12, kMostThreads = 2;

PlanSearch::Bound PlanSearch::boundOf(const Degrees &d,
                                      const SearchPolicy &policy, bool quick) {
  Bound bound{std::numeric_limits<double>::infinity(), true};
  for (const Techniques &techniques : techniquesOf(d, policy))
    if (Result<const Sharding *> shard = sharding(d, techniques); shard.ok()) {
      const PipelineShape shape = shapeOf(d);
      const double least =
          input.pinned.stageBegins
              ? (*shard)->least->of(shape)
              : leastSeconds(policy, quick, *(*shard)->least, shape);
      const bool misfits = (*shard)->least->misfits(shape);
      bound.seconds = std::min(bound.seconds, least);
      bound.misfits &= misfits;
      (*shard)->promise =
          std::min((*shard)->promise, std::pair(misfits, least));
    }
  return bound;
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
  return homes.try_emplace({d.tp, samplesOf(d)}, homes.size()).first->second;
}

void PlanSearch::share(size_t count, const std::function<size_t(size_t)> &home,
                       const std::function<void(PlanSearch &, size_t)> &work) {
  const size_t threads = std::min<size_t>(
      {kMostThreads, std::max(1u, std::thread::hardware_concurrency()), count});
  while (helpers.size() + 1 < threads)
    helpers.push_back(std::make_unique<PlanSearch>(input));
  const auto run = [&](size_t thread) {
    PlanSearch &own = thread == 0 ? *this : *helpers[thread - 1];
    for (size_t i = 0; i < count; ++i)
      if (home(i) % threads == thread)
        work(own, i);
    own.applied = {};
  };
  std::vector<std::thread> others;
  for (size_t thread = 1; thread < threads; ++thread)
    others.emplace_back(run, thread);
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
  const bool bounded = !input.exhaustive && !policy.frontier && !policy.price &&
                       most > 0 && degrees.size() > most;
  const bool steady =
      degrees.size() > 1 && most > 0 && !policy.frontier && !policy.price;
  const auto homeOfIndex = [&](size_t i) { return homeOf(degrees[i]); };
  std::vector<Bound> order(degrees.size());
  std::map<size_t, std::vector<size_t>> byHome;
  for (size_t i = 0; i < degrees.size(); ++i)
    byHome[homeOf(degrees[i])].push_back(i);
  std::vector<size_t> homesHere;
  for (const auto &[home, all] : byHome)
    homesHere.push_back(home);
  if (bounded)
    share(
        homesHere.size(), [&](size_t h) { return homesHere[h]; },
        [&](PlanSearch &own, size_t h) {
          for (size_t i : byHome[homesHere[h]])
            order[i] = own.boundOf(degrees[i], policy, quick);
          own.keepPromising(input.kept);
        });
  for (size_t i = 0; i < degrees.size(); ++i)
    order[i].index = i;
  std::stable_sort(order.begin(), order.end(),
                   [](const Bound &a, const Bound &b) {
                     return std::pair(a.misfits, a.seconds) <
                            std::pair(b.misfits, b.seconds);
                   });
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
    std::vector<PlanCandidate> found(end - begin);
    share(
        found.size(),
        [&](size_t i) { return homeOfIndex(order[begin + i].index); },
        [&](PlanSearch &own, size_t i) {
          found[i] = own.plan(degrees[order[begin + i].index], policy, quick,
                              limited ? limitNow() : 0, steady);
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
      chosen.size(), [](size_t i) { return i; },
      [&](PlanSearch &own, size_t i) {
        full[i] = own.plan(all[chosen[i]].degrees, policy, false, limit);
      });
  for (size_t i = 0; i < chosen.size(); ++i)
    if (!full[i].leftOut)
      all[chosen[i]] = std::move(full[i]);
}

} // namespace merak::planning
