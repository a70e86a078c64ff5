// Which degrees are planned: the most promising first, by bounds that no plan
// with them is below (LeastSeconds.h), until no others can be among the best.
#include "passes/Planning/LeastPlan.h"
#include "passes/Planning/PlanSearch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

namespace merak::planning {

// What is planned before the next bound is looked at, and threads: each has
// shardings of its own.
constexpr size_t kAtOnce = 12, kMostThreads = 2;

// Where one of the next bounds is rough, so many are refined at once: more of
// them share shardings, and threads wait less for each other.
constexpr size_t kLookAhead = 2 * kAtOnce;

// Deeper pipelines come last: a schedule of theirs takes as long as dozens of
// others, and by then others have set a limit.
constexpr int64_t kDeep = 32;

// Combinations of techniques planned in full at the same degrees.
constexpr size_t kMostPromising = 3;

// Levels of overlap are compared at the first level of ZeRO; at the others
// those are planned that were at most so many times as slow there as the best.
constexpr double kAsFast = 1.01;

// Layouts that differ between parts of the model are looked for on so many
// meshes, and on each with so many sizes of a microbatch.
constexpr size_t kMixedMeshes = 12, kMixedSizes = 2;

// What a bound from larger microbatches is multiplied by: per sample they are
// faster, but fusion and cuts may differ a little.
constexpr double kSurely = 0.97;

// And one of a level of ZeRO by the sharding of a lower one, whose only cuts
// may be others.
constexpr double kWithOtherCuts = 0.95;

void PlanSearch::setBound(const Degrees &d, const Degrees &like,
                          const SearchPolicy &policy, bool quick,
                          Bound &bound) {
  const double share = double(samplesOf(d)) / double(samplesOf(like));
  const PipelineShape shape = commonShape(d);
  const bool asPlanned = inCommon(d) == inCommon(like);
  bound.seconds = std::numeric_limits<double>::infinity();
  bound.misfits = true;
  bound.rough = false;
  // What has no place is no way to be fast.
  const auto take = [&](const LeastSeconds &sums, double seconds) {
    const bool misfits = sums.misfits(shape);
    if (misfits == bound.misfits)
      bound.seconds = std::min(bound.seconds, seconds);
    else if (bound.misfits)
      bound.seconds = seconds;
    bound.misfits &= misfits;
  };
  const auto least = [&](const LeastSeconds &sums) {
    return input.pinned.stageBegins ? sums.of(shape)
                                    : leastSeconds(policy, quick, sums, shape);
  };
  const bool isMixed = bound.techniques.mixed > 0;
  const std::vector<Techniques> levels = levelsOf(d, bound.techniques, policy);
  const bool inParts = isSharedByDegrees() && levels.back().zero > 0;
  std::vector<Techniques> made = levels; // of which there are shardings
  if (isSharedByDegrees())
    for (Techniques &level : made)
      level = isMixed
                  ? Techniques()
                  : Techniques{level.overlap, 0, level.sequence, level.context};
  made.erase(std::unique(made.begin(), made.end()), made.end());
  for (const Techniques &techniques : made) {
    Result<const Sharding *> shard = sharding(like, techniques);
    if (!shard.ok())
      continue;
    const LeastSeconds &sums = *(*shard)->least;
    if (isMixed && isSharedByDegrees()) {
      // The ranks of a stage share all work evenly at best.
      const LeastSeconds shared =
          sums.scaledBy(share / double(d.tp)).storedInParts(d.dp * d.tp);
      take(shared, kSurely * shared.of(shape));
      continue;
    }
    if (!inParts) {
      bound.rough |= !asPlanned;
      take(sums,
           asPlanned ? least(sums) : kSurely * least(sums.scaledBy(share)));
      continue;
    }
    // What is stored otherwise has the same ops, and messages.
    const LeastSeconds scaled = asPlanned ? sums : sums.scaledBy(share);
    bound.rough |= !asPlanned;
    for (const Techniques &level : levels) {
      if (level.overlap != techniques.overlap)
        continue;
      const LeastSeconds of =
          level.zero > 0 ? asStored(d, level, scaled) : scaled;
      const double seconds = (asPlanned ? 1 : kSurely) *
                             (level.zero > 0 ? kWithOtherCuts : 1) * least(of);
      take(of, seconds);
      if (asPlanned && level.zero > 0)
        bound.ofLevel[level] = of.misfits(shape)
                                   ? std::numeric_limits<double>::infinity()
                                   : seconds;
    }
  }
}

// Of one mesh, whatever the size of a microbatch and the level of overlap.
static std::pair<Degrees, Techniques> storedKey(const Degrees &d,
                                                Techniques level) {
  level.zero = level.overlap = 0;
  return {Degrees{d.pp, d.dp, d.tp, 0}, level};
}

// The same of all meshes with a tp.
static std::pair<int64_t, Techniques> messagesKey(int64_t tp,
                                                  Techniques level) {
  level.zero = level.overlap = 0;
  return {tp, level};
}

LeastSeconds PlanSearch::asStored(const Degrees &d, const Techniques &level,
                                  const LeastSeconds &sums) const {
  if (const auto like = storedParts.find(storedKey(d, level));
      like != storedParts.end())
    return sums.storedInParts(d.dp, like->second, level.zero);
  const LeastSeconds stored = sums.storedInParts(d.dp, level.zero);
  const LeastSeconds::Stored *sent =
      level.zero > 1 ? messagesOf(d, level) : nullptr;
  return sent ? stored.sending(*sent,
                               parameterLinks(costsOf(d, level.overlap), d.dp),
                               level.zero)
              : stored;
}

// What more replicas store in parts these store in parts, too.
const LeastSeconds::Stored *
PlanSearch::messagesOf(const Degrees &d, const Techniques &level) const {
  const auto sent = messages->find(messagesKey(d.tp, level));
  return sent == messages->end() || sent->second.replicas % d.dp != 0
             ? nullptr
             : &sent->second.of;
}

void PlanSearch::findMessages(const std::vector<Degrees> &degrees,
                              const SearchPolicy &policy) {
  std::map<std::pair<int64_t, Techniques>, size_t> most;
  for (size_t i = 0; i < degrees.size(); ++i)
    for (const Techniques &techniques : techniquesOf(degrees[i], policy)) {
      if (techniques.zero < 2 || techniques.mixed > 0)
        continue;
      size_t &best = most.try_emplace(messagesKey(degrees[i].tp, techniques), i)
                         .first->second;
      if (degrees[i].dp > degrees[best].dp)
        best = i;
    }
  const std::vector<std::pair<std::pair<int64_t, Techniques>, size_t>> work(
      most.begin(), most.end());
  std::vector<std::optional<Messages>> found(work.size());
  share(
      work.size(), [&](size_t i) { return homeOf(degrees[work[i].second]); },
      [&](PlanSearch &own, size_t i) {
        const Degrees &d = degrees[work[i].second];
        Techniques first = work[i].first.second;
        first.zero = 1;
        if (Result<const Sharding *> shard = own.sharding(d, first); shard.ok())
          found[i] = Messages{(*shard)->least->stored(), d.dp};
      });
  for (size_t i = 0; i < work.size(); ++i)
    if (found[i])
      messages->insert_or_assign(work[i].first, std::move(*found[i]));
}

std::vector<Techniques> PlanSearch::levelsOf(const Degrees &d,
                                             const Techniques &techniques,
                                             const SearchPolicy &policy) const {
  std::vector<Techniques> levels;
  for (const Techniques &other : techniquesOf(d, policy)) {
    Techniques alike = other;
    alike.zero = techniques.zero;
    alike.overlap = techniques.overlap;
    if (alike == techniques)
      levels.push_back(other);
  }
  std::stable_sort(
      levels.begin(), levels.end(),
      [](const Techniques &a, const Techniques &b) { return a.zero < b.zero; });
  return levels;
}

std::vector<PlanSearch::Bound>
PlanSearch::withTechniques(const std::vector<Degrees> &degrees,
                           const SearchPolicy &policy) const {
  std::vector<Bound> all;
  for (size_t i = 0; i < degrees.size(); ++i)
    for (const Techniques &techniques : techniquesOf(degrees[i], policy))
      if (levelsOf(degrees[i], techniques, policy).front() == techniques) {
        all.emplace_back();
        all.back().index = i;
        all.back().techniques = techniques;
      }
  return all;
}

// Each by the degrees with the same tp and the most samples a microbatch: a
// sharding costs a hundred times what a bound does.
std::vector<PlanSearch::Bound>
PlanSearch::roughBounds(const std::vector<Degrees> &degrees,
                        const SearchPolicy &policy, bool quick) {
  std::map<int64_t, size_t> most; // by tp
  for (size_t i = 0; i < degrees.size(); ++i) {
    size_t &best = most.try_emplace(degrees[i].tp, i).first->second;
    if (samplesOf(degrees[i]) > samplesOf(degrees[best]))
      best = i;
  }
  const auto likeOf = [&](const Bound &bound) {
    if (!isSharedByDegrees())
      return bound.index;
    if (bound.techniques.mixed > 0)
      return most.begin()->second;
    return isFasterOnMore() ? most.at(degrees[bound.index].tp) : bound.index;
  };
  std::vector<Bound> bounds = withTechniques(degrees, policy);
  std::map<size_t, std::vector<size_t>> byHome;
  for (size_t i = 0; i < bounds.size(); ++i)
    byHome[homeOf(degrees[likeOf(bounds[i])])].push_back(i);
  std::vector<std::pair<size_t, std::vector<size_t>>> work(byHome.begin(),
                                                           byHome.end());
  share(
      work.size(), [&](size_t w) { return work[w].first; },
      [&](PlanSearch &own, size_t w) {
        for (size_t i : work[w].second)
          own.setBound(degrees[bounds[i].index], degrees[likeOf(bounds[i])],
                       policy, quick, bounds[i]);
        own.keepLatest(input.kept);
      });
  return bounds;
}

std::vector<std::vector<size_t>>
PlanSearch::meshesToMix(const std::vector<Degrees> &degrees,
                        const std::vector<size_t> &fastest) {
  std::vector<std::vector<size_t>> meshes;
  std::map<std::tuple<int64_t, int64_t, int64_t>, size_t> known;
  for (const size_t index : fastest) {
    const Degrees &d = degrees[index];
    const auto [mesh, isNew] =
        known.try_emplace({d.pp, d.dp, d.tp}, meshes.size());
    if (isNew && meshes.size() < kMixedMeshes)
      meshes.emplace_back();
    if (mesh->second >= meshes.size())
      continue;
    std::vector<size_t> &sizes = meshes[mesh->second];
    if (sizes.size() < kMixedSizes &&
        std::find(sizes.begin(), sizes.end(), index) == sizes.end())
      sizes.push_back(index);
  }
  return meshes;
}

bool PlanSearch::refine(std::span<Bound> next, std::span<Bound> all,
                        const std::vector<Degrees> &degrees,
                        const SearchPolicy &policy, bool quick) {
  // Those of one sharding together.
  std::map<std::tuple<size_t, Techniques>, std::vector<Bound *>> alike;
  const auto keyOf = [&](const Bound &bound) {
    return std::tuple(homeOf(degrees[bound.index]), bound.techniques);
  };
  for (const Bound &bound : next)
    if (bound.rough)
      alike[keyOf(bound)];
  if (alike.empty())
    return false;
  for (Bound &bound : all)
    if (auto found = alike.find(keyOf(bound));
        bound.rough && found != alike.end())
      found->second.push_back(&bound);
  std::vector<std::pair<size_t, std::vector<Bound *>>> work;
  for (auto &[key, bounds] : alike)
    work.emplace_back(std::get<size_t>(key), std::move(bounds));
  share(
      work.size(), [&](size_t i) { return work[i].first; },
      [&](PlanSearch &own, size_t i) {
        for (Bound *bound : work[i].second)
          own.setBound(degrees[bound->index], degrees[bound->index], policy,
                       quick, *bound);
        own.keepLatest(input.kept);
      });
  return true;
}

// What is asked for again is made again. Shardings that store everything whole
// stay longest: bounds of many degrees and of all levels of ZeRO are theirs.
void PlanSearch::keepLatest(size_t most) {
  using Use = std::pair<bool, int64_t>; // whether whole, when
  const auto useOf = [](const Techniques &techniques, const Sharding &made) {
    return Use(techniques.zero == 0 && techniques.mixed == 0, made.lastUse);
  };
  std::vector<Use> uses;
  for (const auto &[key, made] : shardings)
    if (made.second)
      uses.push_back(useOf(std::get<Techniques>(key), *made.second));
  if (uses.size() <= most)
    return;
  std::sort(uses.rbegin(), uses.rend());
  for (auto &[key, made] : shardings)
    if (made.second &&
        useOf(std::get<Techniques>(key), *made.second) < uses[most - 1])
      made.second.reset();
}

size_t PlanSearch::homeOf(const Degrees &d) {
  first->try_emplace(inCommon(d), d);
  return homes.try_emplace(inCommon(d), homes.size()).first->second;
}

void PlanSearch::share(size_t count, const std::function<size_t(size_t)> &home,
                       const std::function<void(PlanSearch &, size_t)> &work) {
  const size_t threads = std::min<size_t>(
      {kMostThreads, std::max(1u, std::thread::hardware_concurrency()), count});
  while (helpers.size() + 1 < threads) {
    equalLayers(); // once for all
    helpers.push_back(std::make_unique<PlanSearch>(input));
    helpers.back()->first = first;
    helpers.back()->mixed = mixed;
    helpers.back()->messages = messages;
    helpers.back()->common = common;
    helpers.back()->commonOfFew = commonOfFew;
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
    if (own.few)
      own.few->applied = {};
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

std::vector<PlanCandidate>
PlanSearch::plans(const std::vector<Degrees> &degrees,
                  const SearchPolicy &policy, bool quick) {
  for (const Degrees &d : degrees)
    homeOf(d);
  std::vector<PlanCandidate> all(degrees.size());
  share(
      degrees.size(), [&](size_t i) { return homeOf(degrees[i]); },
      [&](PlanSearch &own, size_t i) {
        all[i] = own.plan(degrees[i], policy, quick);
      });
  return all;
}

static bool hasMixed(const std::vector<PlanCandidate> &made) {
  return std::any_of(made.begin(), made.end(), [](const PlanCandidate &one) {
    return one.problem.empty() && one.techniques.mixed > 0;
  });
}

// What a level of overlap hides does not depend on who stores parameters. True
// where none of them has a plan that fits.
static bool isAmongFastest(std::span<const PlanCandidate> all, int overlap) {
  double best = std::numeric_limits<double>::infinity(), own = best;
  for (const PlanCandidate &candidate : all)
    if (candidate.fits()) {
      best = std::min(best, candidate.plan.cost.seconds);
      if (candidate.techniques.overlap == overlap)
        own = std::min(own, candidate.plan.cost.seconds);
    }
  return std::isinf(best) || own <= kAsFast * best;
}

// Of levels of overlap those that were among the fastest of the same seams with
// everything stored whole; all where none of these fits.
static void keepFastestOverlap(const std::vector<PlanCandidate> &made,
                               const Techniques &techniques,
                               std::vector<int> &overlap) {
  std::vector<PlanCandidate> whole;
  for (const PlanCandidate &candidate : made) {
    Techniques alike = candidate.techniques;
    alike.overlap = techniques.overlap;
    if (alike == techniques)
      whole.push_back(candidate);
  }
  std::erase_if(overlap,
                [&](int level) { return !isAmongFastest(whole, level); });
}

// Whether it may store parts or everything whole.
static bool choosesParts(const SearchPolicy &policy) {
  const auto [least, most] =
      std::minmax_element(policy.zero.begin(), policy.zero.end());
  return *least == 0 && *most > 0;
}

// By a bound of the level itself, that no plan of it fits or is as fast. Of a
// higher level of ZeRO by a sharding of a lower one, if that says so.
bool PlanSearch::cannotWin(const Degrees &d, const Techniques &techniques,
                           const SearchPolicy &policy, bool quick,
                           double limit) {
  const PipelineShape shape = commonShape(d);
  const auto loses = [&](const LeastSeconds &least, double surely) {
    // The bound of any cuts is no higher than that of those to be planned.
    return least.misfits(shape) || least.of(shape) * surely > limit ||
           leastSeconds(policy, quick, least, shape) * surely > limit;
  };
  const Techniques level = usable(d, techniques);
  const bool inParts =
      level.zero > 0 && level.mixed == 0 && isSharedByDegrees();
  const std::pair key = storedKey(d, level);
  const auto learn = [&](const LeastSeconds &firstLevel) {
    if (!storedParts.contains(key))
      storedParts.emplace(key, firstLevel.stored());
  };
  if (inParts && level.zero > 1) {
    Techniques lower = level;
    lower.zero = 1;
    const auto made = shardings.find({d, lower});
    const bool isMade = made != shardings.end() && made->second.second;
    if (!isMade && (storedParts.contains(key) || messagesOf(d, level)))
      lower.zero = 0; // which costs no sharding of these degrees
    if (Result<const Sharding *> like = sharding(d, lower); like.ok()) {
      if (lower.zero == 1)
        learn(*(*like)->least);
      if (loses(asStored(d, level, *(*like)->least), kWithOtherCuts))
        return true;
    }
  }
  // Devices of several kinds have stages, and memory, of their own.
  if (inParts && quick && !input.pinned.stageBegins &&
      input.pinned.pipelines.empty() && input.machine.kindOf.empty()) {
    Techniques whole = level;
    whole.zero = 0;
    if (Result<const Sharding *> like = sharding(d, whole);
        like.ok() &&
        isSlowerInParts(policy, asStored(d, level, *(*like)->least),
                        StoredShares::of(level.zero, d.dp), shape,
                        limit / kWithOtherCuts))
      return true;
  }
  Result<const Sharding *> shard = sharding(d, techniques);
  if (!shard.ok())
    return false;
  if (inParts && level.zero == 1)
    learn(*(*shard)->least);
  return loses(*(*shard)->least, 1 - 1e-9);
}

std::vector<PlanCandidate> PlanSearch::planLevels(const Degrees &d,
                                                  const Bound &bound,
                                                  const SearchPolicy &policy,
                                                  bool quick, double limit) {
  std::vector<PlanCandidate> all;
  SearchPolicy one = policy;
  std::vector<Techniques> levels = levelsOf(d, bound.techniques, policy);
  // What has no place whole is not planned whole where parts could have it.
  if (levels.front().zero == 0 && levels.back().zero > 0 &&
      input.pinned.stored.empty())
    if (Result<const Sharding *> shard = sharding(d, levels.front());
        shard.ok() && (*shard)->least->misfits(commonShape(d)))
      std::erase_if(levels,
                    [](const Techniques &level) { return level.zero == 0; });
  const bool limited = limit > 0 && std::isfinite(limit);
  // Of the level: whether any fits, and none wants for memory.
  bool fits = false, needsMore = false;
  size_t ofFirst = 0; // plans of the first level of ZeRO
  for (size_t i = 0; i < levels.size(); ++i) {
    // What is stored in smaller parts sends more and takes less memory.
    if (i > 0 && levels[i].zero != levels[i - 1].zero) {
      if (levels[i - 1].zero > 0 && fits && !needsMore)
        break;
      fits = needsMore = false;
      if (ofFirst == 0)
        ofFirst = all.size();
    }
    if (ofFirst > 0 &&
        !isAmongFastest(std::span(all).first(ofFirst), levels[i].overlap))
      continue;
    const auto least = bound.ofLevel.find(levels[i]);
    if (limited && ((least != bound.ofLevel.end() && least->second > limit) ||
                    cannotWin(d, levels[i], policy, quick, limit))) {
      needsMore = true;
      continue;
    }
    one.chosen = {levels[i]};
    all.push_back(plan(d, one, quick, limit, /*rough=*/true));
    const PlanCandidate &found = all.back();
    needsMore |= found.noPlace;
    if (found.leftOut)
      continue;
    fits |= found.fits();
    needsMore |= !found.fits() || found.plan.recomputes();
    if (limit > 0 && found.fits())
      limit = std::min(limit, found.plan.cost.seconds);
  }
  return all;
}

// Of the same degrees: the best, and its techniques and those of others that
// are not much slower, nor than `limit`; where none fits, of those that lack
// least.
PlanCandidate PlanSearch::joined(std::vector<PlanCandidate> all, double limit) {
  std::stable_sort(all.begin(), all.end(), better);
  PlanCandidate best = all.front();
  for (const PlanCandidate &other : all) {
    if (!other.problem.empty() || best.promising.size() == kMostPromising ||
        (best.fits() && !best.promising.empty() &&
         (!other.fits() ||
          other.plan.cost.seconds >
              std::min(limit, kWorthKeeping * best.plan.cost.seconds))))
      break;
    best.promising.push_back(other.techniques);
  }
  return best;
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
  for (const Degrees &d : degrees)
    homeOf(d);
  std::vector<Bound> order;
  if (bounded) {
    if (isSharedByDegrees())
      findMessages(degrees, policy);
    order = roughBounds(degrees, policy, quick);
  } else if (rough) {
    order = withTechniques(degrees, policy);
  } else {
    order.resize(degrees.size()); // with all techniques at once
    for (size_t i = 0; i < degrees.size(); ++i)
      order[i].index = i;
  }
  std::map<size_t, std::vector<PlanCandidate>> made; // by degrees
  std::map<size_t, double> fitting;                  // seconds of the best
  // Of the slowest that is still among the best.
  double limit = std::numeric_limits<double>::infinity();
  const auto setLimit = [&] {
    std::vector<double> seconds;
    for (const auto &[index, best] : fitting)
      seconds.push_back(best);
    std::sort(seconds.begin(), seconds.end());
    if (rough && seconds.size() >= most)
      limit = seconds[most - 1];
  };
  // Of each degrees the best plan alone is asked for.
  const bool limited = bounded && (quick || !policy.cutters.empty());
  const auto isLeftOut = [&](const Bound &bound) {
    return bounded && std::isfinite(limit) &&
           (bound.misfits || bound.seconds * (1 - 1e-9) > limit);
  };
  // Of the same degrees what was found decides what else is worth planning: by
  // the plans that store all of it whole, levels of overlap of those that store
  // parts; by the best one, how layouts that differ between parts of the model
  // are stored.
  const auto policyOf = [&](const Bound &bound, const SearchPolicy &policy) {
    SearchPolicy own = policy;
    const auto known = made.find(bound.index);
    if (known == made.end())
      return own;
    if (bound.techniques.mixed == 0) {
      keepFastestOverlap(known->second, bound.techniques, own.overlap);
      return own;
    }
    const PlanCandidate &best =
        *std::min_element(known->second.begin(), known->second.end(), better);
    if (best.fits())
      own.zero = {best.techniques.zero};
    return own;
  };
  const auto planInOrder = [&](std::vector<Bound> order,
                               const SearchPolicy &policy) {
    std::sort(order.begin(), order.end());
    for (size_t begin = 0; begin < order.size() && !isLeftOut(order[begin]);) {
      size_t end = begin;
      while (end < order.size() && end < begin + kAtOnce &&
             !isLeftOut(order[end]))
        ++end;
      // Rough bounds are no higher: what is first by bounds that are none is
      // first of all.
      const std::span<Bound> next =
          std::span(order).subspan(begin, end - begin);
      const std::span<Bound> rest = std::span(order).subspan(begin);
      const bool isRough = std::any_of(
          next.begin(), next.end(), [](const Bound &of) { return of.rough; });
      if (isRough && refine(rest.first(std::min(kLookAhead, rest.size())), rest,
                            degrees, policy, quick)) {
        std::sort(order.begin() + begin, order.end());
        continue;
      }
      std::vector<std::vector<PlanCandidate>> found(end - begin);
      const double wanted = limited ? limit : 0;
      // What is much slower than another plan of the same degrees is not
      // planned in full.
      const auto isOutdone = [&](const Bound &bound) {
        const auto known = fitting.find(bound.index);
        return limited && known != fitting.end() &&
               bound.seconds * (1 - 1e-9) > kWorthKeeping * known->second;
      };
      share(
          found.size(),
          [&](size_t i) { return homeOf(degrees[next[i].index]); },
          [&](PlanSearch &own, size_t i) {
            const Degrees &d = degrees[next[i].index];
            if (isOutdone(next[i]))
              return;
            if (rough)
              found[i] = own.planLevels(d, next[i], policyOf(next[i], policy),
                                        quick, wanted);
            else
              found[i] = {own.plan(d, policy, quick, wanted)};
            own.keepLatest(input.kept);
          });
      for (size_t i = 0; i < found.size(); ++i)
        for (PlanCandidate &candidate : found[i]) {
          if (candidate.leftOut)
            continue;
          const double seconds = candidate.plan.cost.seconds;
          if (candidate.fits()) {
            double &best =
                fitting.try_emplace(next[i].index, seconds).first->second;
            best = std::min(best, seconds);
          }
          made[next[i].index].push_back(std::move(candidate));
        }
      setLimit();
      begin = end;
    }
  };
  const auto mixed =
      std::stable_partition(order.begin(), order.end(), [](const Bound &bound) {
        return bound.techniques.mixed == 0;
      });
  // What stores everything whole first. Its bounds are close, and what is found
  // is a limit for the others.
  std::vector<std::pair<std::vector<Bound>, SearchPolicy>> turns;
  if (bounded && choosesParts(policy) && isSharedByDegrees()) {
    SearchPolicy whole = policy, parts = policy;
    whole.zero = whole.mixed = {0};
    std::erase(parts.zero, 0);
    std::vector<Bound> first = roughBounds(degrees, whole, quick), then;
    const auto hasReplicas = [&](const Bound &bound) {
      return degrees[bound.index].dp > 1;
    };
    // What has no place whole is not planned whole where parts could have it.
    std::erase_if(first, [&](const Bound &bound) {
      return bound.misfits && hasReplicas(bound);
    });
    std::copy_if(order.begin(), mixed, std::back_inserter(then), hasReplicas);
    turns = {{std::move(first), std::move(whole)},
             {std::move(then), std::move(parts)}};
  } else {
    turns.emplace_back(std::vector<Bound>(order.begin(), mixed), policy);
  }
  std::vector<std::vector<Bound>> deep;
  for (auto &[bounds, of] : turns) {
    const auto first = std::stable_partition(
        bounds.begin(), bounds.end(), [&](const Bound &bound) {
          return !bounded || degrees[bound.index].pp <= kDeep;
        });
    deep.emplace_back(first, bounds.end());
    bounds.erase(first, bounds.end());
    planInOrder(std::move(bounds), of);
  }
  for (size_t i = 0; i < turns.size(); ++i)
    planInOrder(std::move(deep[i]), turns[i].second);
  std::vector<Bound> last(mixed, order.end());
  if (bounded) {
    // By what was planned, and the bounds of what was not.
    std::sort(order.begin(), mixed);
    std::vector<std::pair<double, size_t>> planned;
    for (const auto &[index, seconds] : fitting)
      planned.emplace_back(seconds, index);
    std::sort(planned.begin(), planned.end());
    std::vector<size_t> fastest;
    for (const auto &[seconds, index] : planned)
      fastest.push_back(index);
    for (auto bound = order.begin(); bound != mixed; ++bound)
      fastest.push_back(bound->index);
    std::vector<std::vector<size_t>> meshes = meshesToMix(degrees, fastest);
    for (size_t size = 0; size < kMixedSizes; ++size) {
      std::set<size_t> asked;
      for (const std::vector<size_t> &sizes : meshes)
        if (size < sizes.size())
          asked.insert(sizes[size]);
      std::vector<Bound> next;
      std::copy_if(last.begin(), last.end(), std::back_inserter(next),
                   [&](const Bound &bound) {
                     return asked.contains(bound.index) && !isLeftOut(bound);
                   });
      leaveOutSlowMixed(degrees, limit, next);
      planInOrder(std::move(next), policy);
      // A mesh on which nothing could be among the best is left alone.
      std::erase_if(meshes, [&](const std::vector<size_t> &sizes) {
        if (size >= sizes.size())
          return true;
        const auto of = made.find(sizes[size]);
        return of == made.end() || !hasMixed(of->second);
      });
    }
  } else {
    planInOrder(std::move(last), policy);
  }
  std::vector<PlanCandidate> all;
  for (auto &[index, candidates] : made)
    all.push_back(rough ? joined(std::move(candidates), limit)
                        : std::move(candidates.front()));
  return all;
}

// Plans `count` of the candidates in full, and up to as many again that would
// be worth it if they gained the most that one of these did: with equal cuts
// those that move cuts far seem slow. What is certainly slower than the best
// one as it is now by more than kWorthKeeping is left out of them.
void PlanSearch::planInFull(std::vector<PlanCandidate> &all, size_t count,
                            const SearchPolicy &policy) {
  const bool limited = !input.exhaustive && !policy.frontier && !policy.price;
  double best = std::numeric_limits<double>::infinity(), gain = 1;
  const auto planBatch = [&](std::span<const size_t> chosen) {
    const double limit = limited ? kWorthKeeping * best : 0;
    std::vector<PlanCandidate> full(chosen.size());
    share(
        chosen.size(), [&](size_t i) { return homeOf(all[chosen[i]].degrees); },
        [&](PlanSearch &own, size_t i) {
          SearchPolicy promising = policy;
          promising.chosen = all[chosen[i]].promising;
          full[i] = own.plan(all[chosen[i]].degrees, promising, false, limit);
        });
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (full[i].leftOut)
        continue;
      PlanCandidate &quick = all[chosen[i]];
      if (quick.fits() && full[i].fits()) {
        best = std::min(best, full[i].plan.cost.seconds);
        gain =
            std::min(gain, full[i].plan.cost.seconds / quick.plan.cost.seconds);
      }
      quick = std::move(full[i]);
    }
  };
  // What the first ones gain is a limit for all others.
  const auto planSome = [&](std::span<const size_t> chosen) {
    const size_t first =
        std::min(limited ? kMostThreads : chosen.size(), chosen.size());
    planBatch(chosen.first(first));
    planBatch(chosen.subspan(first));
  };
  std::vector<size_t> chosen;
  for (size_t i = 0; i < std::min(count, all.size()); ++i) {
    if (!all[i].full && all[i].problem.empty())
      chosen.push_back(i);
    if (all[i].fits())
      best = std::min(best, all[i].plan.cost.seconds);
  }
  planSome(chosen);
  if (!limited || !policy.cutters.empty())
    return;
  chosen.clear();
  for (size_t i = count; i < std::min(2 * count, all.size()); ++i)
    if (!all[i].full && all[i].fits() &&
        gain * all[i].plan.cost.seconds < kWorthKeeping * best)
      chosen.push_back(i);
  planSome(chosen);
}

} // namespace merak::planning
