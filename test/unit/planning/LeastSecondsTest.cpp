// What a search leaves out: bounds that no plan is below, and the same choice
// with and without them.
#include "passes/Planning/LeastPlan.h"
#include "passes/Planning/PlanSearch.h"

#include "test/unit/planning/ModelGraphs.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <tuple>

namespace merak::planning {
namespace {

struct Case {
  test::TrainGraph model;
  Classes classes;
  SearchInput input;
};

// Random layers, links and techniques; `memory`: a part of what the best plan
// without a limit needs, 0: not limited.
std::unique_ptr<Case> makeCase(unsigned seed, double memory, int batch = 16) {
  std::mt19937 random(seed);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  test::GptOptions options;
  options.layers = pick(3, 6);
  options.batch = batch;
  auto out = std::make_unique<Case>();
  out->model = test::makeGpt(options);
  out->classes = unify(out->model.graph);
  SearchInput &input = out->input;
  input.graph = &out->model.graph;
  input.classes = &out->classes;
  input.batched = {out->model.find("input_ids"), out->model.find("labels")};
  input.cluster = costmodel::defaultCluster(pick(0, 1) ? 8 : 4);
  input.cluster.perNode = 4;
  for (costmodel::Link *link : {&input.cluster.intra, &input.cluster.inter})
    link->bandwidth /= pick(1, 20);
  input.globalBatch = options.batch;
  input.pinned.tpOverlap = pick(0, 1) ? "auto" : "0";
  if (pick(0, 1))
    input.pinned.zero = Strategy::kAuto;
  if (pick(0, 1))
    input.pinned.sequence = Strategy::kAuto;
  input.reduction.early = pick(0, 1);
  if (memory > 0) {
    PlanCandidate open =
        PlanSearch(input).search(ownPolicy(input.pinned), 1).front();
    for (double bytes : open.plan.cost.memory)
      input.memoryBytes = std::max(input.memoryBytes, memory * bytes);
  }
  return out;
}

TEST(LeastSeconds, NoPlanIsFaster) {
  int plans = 0, ofDegrees = 0;
  double closest = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, seed % 2 ? 0.7 : 0);
    PlanSearch search(made->input);
    SearchPolicy policy = ownPolicy(made->input.pinned);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every)
      for (bool quick : {true, false}) {
        if (!quick && d.microbatches > 4)
          continue; // the same, slower
        PlanCandidate found = search.plan(d, policy, quick);
        if (!found.problem.empty())
          continue;
        const PipelineShape shape =
            makePipelineShape(made->input.cluster, d, made->input.memoryBytes,
                              made->input.reduction);
        std::vector<const PlanCandidate *> all{&found};
        for (const PlanCandidate &other : found.others)
          all.push_back(&other);
        double least = std::numeric_limits<double>::infinity(), best = least;
        for (int overlap : d.tp > 1 ? policy.overlap : std::vector<int>{0})
          if (Result<const PlanSearch::Sharding *> sharding =
                  search.sharding(d, {.overlap = overlap});
              sharding.ok() && policy.zero.size() + policy.sequence.size() == 2)
            least = std::min(
                least, leastSeconds(policy, quick, *(*sharding)->least, shape));
        for (const PlanCandidate *plan : all) {
          best = std::min(best, plan->plan.cost.seconds);
          const PlanSearch::Sharding &sharding =
              **search.sharding(d, plan->techniques);
          const double seconds = plan->plan.cost.seconds;
          const double whole = sharding.least->of(shape);
          const double cut =
              sharding.least->of(shape, plan->plan.begin,
                                 traitsOf(plan->plan.schedule.name).weights);
          EXPECT_LE(sharding.least->of(shape, plan->plan.begin),
                    cut * (1 + 1e-9));
          EXPECT_LE(whole, cut * (1 + 1e-9)) << d.str();
          EXPECT_LE(cut, seconds * (1 + 1e-9))
              << seed << " " << d.str() << " " << plan->plan.schedule.name
              << plan->techniques.str();
          if (sharding.least->misfits(shape)) {
            EXPECT_FALSE(plan->fits()) << d.str();
          }
          closest = std::max(closest, cut / seconds);
          ++plans;
        }
        if (std::isfinite(least)) {
          EXPECT_LE(least, best * (1 + 1e-9)) << seed << " " << d.str();
          ++ofDegrees;
        }
      }
  }
  EXPECT_GT(plans, 300);
  EXPECT_GT(ofDegrees, 10);
  EXPECT_GT(closest, 0.9); // or it would leave out nothing
}

// Rough bounds of a search: kernels are no slower for a sample of many.
TEST(LeastSeconds, FewSamplesTakeTheirShareOfMany) {
  int compared = 0;
  for (unsigned seed = 10; seed < 18; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0);
    PlanSearch search(made->input);
    const SearchPolicy policy = ownPolicy(made->input.pinned);
    const std::vector<Degrees> every = *search.degrees();
    const auto samples = [&](const Degrees &d) {
      return made->input.globalBatch / (d.dp * d.microbatches);
    };
    for (const Degrees &few : every)
      for (const Degrees &many : every)
        for (int overlap : policy.overlap) {
          if (many.tp != few.tp || samples(many) <= samples(few) ||
              (overlap > 0 && few.tp == 1))
            continue;
          Result<const PlanSearch::Sharding *> a =
              search.sharding(few, {.overlap = overlap});
          Result<const PlanSearch::Sharding *> b =
              search.sharding(many, {.overlap = overlap});
          if (!a.ok() || !b.ok())
            continue;
          const PipelineShape shape = makePipelineShape(
              made->input.cluster, few, 0, made->input.reduction);
          const LeastSeconds scaled = (*b)->least->scaledBy(
              double(samples(few)) / double(samples(many)));
          const double exact = leastSeconds(policy, true, *(*a)->least, shape);
          const double rough = leastSeconds(policy, true, scaled, shape);
          EXPECT_LE(0.97 * rough, exact)
              << seed << " " << few.str() << " by " << many.str() << " overlap "
              << overlap;
          ++compared;
        }
  }
  EXPECT_GT(compared, 1000);
}

// Bounds made of another one have sums in common with it, which stay as they
// are.
TEST(LeastSeconds, BoundsMadeOfOneLeaveItAsItIs) {
  std::unique_ptr<Case> made = makeCase(3, 0);
  PlanSearch search(made->input);
  const Degrees d{1, 2, 2, 2};
  const PlanSearch::Sharding *whole = *search.sharding(d, {});
  const PlanSearch::Sharding *parts = *search.sharding(d, {.zero = 3});
  const PipelineShape shape = makePipelineShape(made->input.cluster, d, 0, {});
  const std::vector<int> all = {0, whole->model->count()};
  const LeastSeconds &least = *whole->least;
  const double before = least.of(shape, all);
  const LeastSeconds::Stored stored = parts->least->stored();
  const LeastSeconds inParts = least.storedInParts(2, stored, 3);
  const double ofParts = inParts.of(shape, all);
  EXPECT_NE(ofParts, before);
  EXPECT_LT(inParts.scaledBy(0.5).of(shape, all), ofParts);
  EXPECT_EQ(least.storedInParts(2, stored, 3).of(shape, all), ofParts);
  EXPECT_EQ(inParts.of(shape, all), ofParts);
  EXPECT_EQ(least.of(shape, all), before);
}

// Of parameters in parts a bound is known before their layouts are made.
TEST(LeastSeconds, PartsOfParametersTakeNoLessThanTheirShare) {
  int compared = 0;
  for (unsigned seed = 10; seed < 16; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0);
    PlanSearch search(made->input);
    const SearchPolicy policy = ownPolicy(made->input.pinned);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every) {
      if (d.dp == 1)
        continue;
      Result<const PlanSearch::Sharding *> whole = search.sharding(d, {});
      ASSERT_TRUE(whole.ok());
      for (int zero : {1, 2, 3}) {
        const LeastSeconds bound = (*whole)->least->storedInParts(d.dp, zero);
        Result<const PlanSearch::Sharding *> parts =
            search.sharding(d, {.zero = zero});
        ASSERT_TRUE(parts.ok()) << d.str() << ": " << parts.status().str();
        PipelineShape shape =
            makePipelineShape(made->input.cluster, d, 0, made->input.reduction);
        EXPECT_LE(leastSeconds(policy, true, bound, shape),
                  leastSeconds(policy, true, *(*parts)->least, shape) *
                      (1 + 1e-9))
            << seed << " " << d.str() << " zero " << zero;
        for (double bytes = 1 << 10; bytes < 1 << 28; bytes *= 1.3) {
          shape.memoryBytes = bytes;
          EXPECT_LE(bound.misfits(shape), (*parts)->least->misfits(shape))
              << seed << " " << d.str() << " zero " << zero << " " << bytes;
        }
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 100);
}

// Times of tasks that a model has in common with one that stores all of it
// whole are those that it would find alone.
TEST(PlanSearch, TimesOfTheSameTasksAreKnownOnce) {
  int compared = 0, shared = 0;
  for (unsigned seed = 20; seed < 24; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0);
    PlanSearch search(made->input);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every)
      for (int overlap : {0, 3})
        for (int zero : {1, 2, 3}) {
          const Techniques whole{.overlap = overlap};
          const Techniques parts{.overlap = overlap, .zero = zero};
          if (d.dp == 1 || d.tp == 1 || !search.sharding(d, whole).ok())
            continue;
          Result<const PlanSearch::Sharding *> beside =
              search.sharding(d, parts);
          PlanSearch other(made->input);
          Result<const PlanSearch::Sharding *> alone = other.sharding(d, parts);
          ASSERT_TRUE(beside.ok() && alone.ok());
          shared += (*beside)->like != nullptr;
          EXPECT_EQ((*alone)->like, nullptr);
          const StageModel &a = *(*beside)->model, &b = *(*alone)->model;
          for (int begin = 0; begin < a.count(); begin += 7)
            for (int end = begin + 1; end <= a.count(); end += 5) {
              const StageCost &x = a.timesOf(begin, end),
                              &y = b.timesOf(begin, end);
              EXPECT_EQ(
                  std::tuple(x.times.F, x.times.B, x.times.W, x.communication,
                             x.slackForward, x.slackBackward),
                  std::tuple(y.times.F, y.times.B, y.times.W, y.communication,
                             y.slackForward, y.slackBackward))
                  << seed << " " << d.str() << parts.str();
              ++compared;
            }
        }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(shared, 10);
}

// And what they send is known by microbatches of another size.
TEST(LeastSeconds, PartsOfParametersSendTheSameForAnySizeOfAMicrobatch) {
  int compared = 0, closer = 0;
  for (unsigned seed = 10; seed < 16; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0, /*batch=*/64);
    PlanSearch search(made->input);
    const SearchPolicy policy = ownPolicy(made->input.pinned);
    std::map<std::tuple<int64_t, int64_t, int>, LeastSeconds::Stored> known;
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every) {
      if (d.dp == 1)
        continue;
      for (int overlap : d.tp > 1 ? policy.overlap : std::vector<int>{0})
        for (int zero : {1, 2, 3}) {
          const Techniques techniques{.overlap = overlap, .zero = zero};
          Result<const PlanSearch::Sharding *> whole = search.sharding(
                                                   d, {.overlap = overlap}),
                                               parts = search.sharding(
                                                   d, techniques);
          ASSERT_EQ(whole.ok(), parts.ok());
          if (!parts.ok())
            continue; // too few samples for two submicrobatches
          const std::tuple key(d.pp, d.dp, overlap);
          if (zero == 1)
            known.try_emplace(key, (*parts)->least->stored());
          PipelineShape shape = makePipelineShape(made->input.cluster, d, 0,
                                                  made->input.reduction);
          const auto seconds = [&](const LeastSeconds &least) {
            return leastSeconds(policy, true, least, shape);
          };
          const LeastSeconds bound =
              (*whole)->least->storedInParts(d.dp, known.at(key), zero);
          // Each with cuts of its own.
          EXPECT_LE(0.95 * seconds(bound), seconds(*(*parts)->least))
              << seed << " " << d.str() << techniques.str();
          EXPECT_LE(bound.of(shape), (*parts)->least->of(shape) * (1 + 1e-9))
              << seed << " " << d.str() << techniques.str();
          closer +=
              seconds(bound) > seconds((*whole)->least->storedInParts(d.dp));
          for (double bytes = 1 << 10; bytes < 1 << 28; bytes *= 1.3) {
            shape.memoryBytes = bytes;
            EXPECT_LE(bound.misfits(shape), (*parts)->least->misfits(shape))
                << seed << " " << d.str() << techniques.str() << " " << bytes;
          }
          ++compared;
        }
    }
  }
  EXPECT_GT(compared, 300);
  EXPECT_GT(closer, 30);
}

// And on a mesh of more replicas, over links of its own.
TEST(LeastSeconds, PartsOfParametersSendTheSameOnAnyMeshOfATp) {
  int compared = 0, closer = 0;
  for (unsigned seed = 10; seed < 16; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0, /*batch=*/64);
    PlanSearch search(made->input);
    const SearchPolicy policy = ownPolicy(made->input.pinned);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every)
      for (int zero : {2, 3}) {
        const auto more =
            std::find_if(every.begin(), every.end(), [&](const Degrees &other) {
              return other.tp == d.tp && other.dp == 2 * d.dp;
            });
        if (d.dp == 1 || more == every.end())
          continue;
        const LeastSeconds::Stored sent =
            (*search.sharding(*more, {.zero = 1}))->least->stored();
        const LeastSeconds whole = *(*search.sharding(d, {}))->least,
                           parts =
                               *(*search.sharding(d, {.zero = zero}))->least;
        const PipelineShape shape =
            makePipelineShape(made->input.cluster, d, 0, made->input.reduction);
        const LeastSeconds stored = whole.storedInParts(d.dp, zero),
                           bound = stored.sending(
                               sent, parameterLinks(search.costsOf(d, 0), d.dp),
                               zero);
        EXPECT_LE(0.95 * leastSeconds(policy, true, bound, shape),
                  leastSeconds(policy, true, parts, shape))
            << seed << " " << d.str() << " zero " << zero;
        EXPECT_LE(bound.of(shape), parts.of(shape) * (1 + 1e-9))
            << seed << " " << d.str() << " zero " << zero;
        closer += bound.of(shape) > stored.of(shape);
        ++compared;
      }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(closer, 30);
}

// What has to be made again to find a place is known without layouts of the
// parts: nothing that a quick plan finds is called slower.
TEST(LeastSeconds, NoQuickPlanInPartsIsCalledSlowerThanItIs) {
  int found = 0, slower = 0, withoutPlace = 0;
  for (unsigned seed = 30; seed < 42; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, seed % 2 ? 0.35 : 0.6);
    PlanSearch search(made->input);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every)
      for (int overlap : d.tp > 1 ? std::vector<int>{0, 3} : std::vector{0})
        for (int zero : {1, 2, 3}) {
          const Techniques techniques{.overlap = overlap, .zero = zero};
          SearchPolicy policy = ownPolicy(made->input.pinned);
          policy.chosen = {techniques};
          Result<const PlanSearch::Sharding *> whole = search.sharding(
                                                   d, {.overlap = overlap}),
                                               first = search.sharding(
                                                   d, {.overlap = overlap,
                                                       .zero = 1});
          if (d.dp == 1 || !whole.ok() || !first.ok())
            continue;
          const PipelineShape shape =
              makePipelineShape(made->input.cluster, d, made->input.memoryBytes,
                                made->input.reduction);
          const LeastSeconds sums = (*whole)->least->storedInParts(
              d.dp, (*first)->least->stored(), zero);
          const auto isSlower = [&](double limit) {
            return isSlowerInParts(policy, sums, StoredShares::of(zero, d.dp),
                                   shape, limit / 0.95);
          };
          const PlanCandidate plan = search.plan(d, policy, /*quick=*/true);
          if (plan.fits()) {
            EXPECT_FALSE(isSlower(plan.plan.cost.seconds))
                << seed << " " << d.str() << techniques.str();
            slower += isSlower(0.5 * plan.plan.cost.seconds);
            ++found;
          } else {
            withoutPlace += isSlower(1e9);
          }
        }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(slower, 30);
  EXPECT_GT(withoutPlace, 10);
}

// With a limit what the first devices make again may be enough to know.
TEST(LeastSeconds, TooMuchMadeAgainIsKnownSoonerAndIsTheSame) {
  int compared = 0, again = 0;
  for (unsigned seed = 30; seed < 42; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, seed % 2 ? 0.35 : 0.6);
    PlanSearch search(made->input);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every) {
      Result<const PlanSearch::Sharding *> whole = search.sharding(d, {});
      if (d.dp == 1 || !whole.ok())
        continue;
      const SearchPolicy policy = ownPolicy(made->input.pinned);
      const PipelineShape shape =
          makePipelineShape(made->input.cluster, d, made->input.memoryBytes,
                            made->input.reduction);
      const LeastSeconds sums = (*whole)->least->storedInParts(d.dp, 1);
      for (int chunks : {1, 2}) {
        if (chunks > 1 && (d.pp == 1 || d.microbatches % d.pp != 0))
          continue;
        PipelineOptions options = pipelineOptions(policy, "auto");
        options.cut = CutRule::MinMax;
        options.fitting = true;
        options.chunks = chunks;
        options.schedules = searchedSchedules(chunks > 1);
        const auto leastWithin = [&](double limit) {
          options.limit = limit;
          return leastOfOnlyCuts(*(*whole)->model, sums,
                                 StoredShares::of(1, d.dp), shape, options);
        };
        const double least = leastWithin(0);
        if (!std::isfinite(least))
          continue;
        for (double limit : {0.5, 0.9, 0.999, 1.001, 2.0})
          EXPECT_EQ(leastWithin(limit * least) > limit * least, limit < 1)
              << seed << " " << d.str() << " " << chunks << " " << limit;
        ++compared;
        again += least > sums.of(shape);
      }
    }
  }
  EXPECT_GT(compared, 40);
  EXPECT_GT(again, 20);
}

// Replicas and stages differ in nothing but their number, with seams in front
// of tokens as without: what one of them costs is made once.
TEST(PlanSearch, SequenceParallelismIsTheSameOnAllReplicas) {
  int compared = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0, /*batch=*/64);
    const std::vector<Degrees> every = *PlanSearch(made->input).degrees();
    PlanSearch together(made->input);
    std::map<std::pair<int64_t, int64_t>, Degrees> first;
    for (const Degrees &d : every) {
      if (d.tp == 1 || d.microbatches == 1 || d.microbatches > 8)
        continue; // sums over microbatches are those of several
      const Techniques techniques{.sequence = true};
      PlanSearch alone(made->input);
      Result<const PlanSearch::Sharding *> a = together.sharding(d, techniques),
                                           b = alone.sharding(d, techniques);
      ASSERT_EQ(a.ok(), b.ok()) << d.str();
      if (!a.ok())
        continue;
      const StageProblem &x = (*a)->problem, &y = (*b)->problem;
      ASSERT_EQ(x.ops.size(), y.ops.size());
      for (size_t i = 0; i < x.ops.size(); ++i) {
        EXPECT_EQ(x.ops[i].forward, y.ops[i].forward) << d.str();
        EXPECT_EQ(x.ops[i].backward, y.ops[i].backward) << d.str();
        EXPECT_EQ(x.ops[i].weight, y.ops[i].weight) << d.str();
        EXPECT_EQ(x.ops[i].kept, y.ops[i].kept) << d.str();
      }
      for (size_t t = 0; t < x.tensors.size(); ++t)
        EXPECT_EQ(x.tensors[t].bytes, y.tensors[t].bytes) << d.str();
      const auto [known, isNew] = first.try_emplace(
          {d.tp, made->input.globalBatch / (d.dp * d.microbatches)}, d);
      compared += !isNew && known->second.dp != d.dp;
    }
  }
  EXPECT_GT(compared, 4);
}

// The same plans in the same order, of fewer that were looked at.
TEST(LeastSeconds, WhatIsLeftOutWouldNotBeTaken) {
  int64_t fewer = 0, all = 0;
  for (unsigned seed = 10; seed < 18; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, seed % 3 == 0   ? 0
                                                : seed % 3 == 1 ? 0.8
                                                                : 0.5);
    if (seed % 4 == 0)
      made->input.pinned.mixed = Strategy::kAuto;
    SearchPolicy policy = ownPolicy(made->input.pinned);
    made->input.kept = seed % 2 ? 1 : 40;
    PlanSearch bounded(made->input);
    made->input.exhaustive = true;
    PlanSearch exhaustive(made->input);
    const size_t most = 2;
    std::vector<PlanCandidate> found = bounded.search(policy, most),
                               expected = exhaustive.search(policy, most);
    all += int64_t(expected.size());
    fewer += int64_t(found.size());
    ASSERT_GE(found.size(), most);
    // In full they would be planned with these techniques, not with all.
    for (const PlanCandidate &candidate : found)
      if (candidate.problem.empty() && !candidate.full) {
        EXPECT_FALSE(candidate.promising.empty())
            << seed << " " << candidate.degrees.str();
      }
    for (size_t i = 0; i < most; ++i) {
      EXPECT_EQ(found[i].degrees, expected[i].degrees) << seed;
      EXPECT_EQ(found[i].techniques, expected[i].techniques) << seed;
      EXPECT_EQ(found[i].plan.schedule, expected[i].plan.schedule) << seed;
      EXPECT_EQ(found[i].plan.begin, expected[i].plan.begin) << seed;
      EXPECT_EQ(found[i].plan.marks, expected[i].plan.marks) << seed;
      EXPECT_EQ(found[i].plan.cost.seconds, expected[i].plan.cost.seconds);
    }
    for (const SearchPolicy &plain : plainPolicies()) {
      PlanCandidate a = bounded.search(plain, 1).front(),
                    b = exhaustive.search(plain, 1).front();
      EXPECT_EQ(a.degrees, b.degrees) << seed << " " << plain.name;
      EXPECT_EQ(a.plan.cost.seconds, b.plan.cost.seconds) << plain.name;
    }
  }
  EXPECT_LT(fewer, all * 3 / 4);
}

// Pipelines of many stages come last, but they come: where parameters find a
// place on the deepest alone, it is found.
TEST(LeastSeconds, TheDeepestPipelineIsFoundToo) {
  test::GptOptions options;
  options.layers = 64;
  options.batch = 64;
  options.vocabulary = 64;
  options.width = 256;
  options.tokens = 8;
  options.tied = false;
  Case made;
  made.model = test::makeGpt(options);
  made.classes = unify(made.model.graph);
  SearchInput &input = made.input;
  input.graph = &made.model.graph;
  input.classes = &made.classes;
  input.batched = {made.model.find("input_ids"), made.model.find("labels")};
  input.cluster = costmodel::defaultCluster(64);
  input.globalBatch = options.batch;
  input.pinned.mesh = {{"tp", 1}};
  input.pinned.microbatch = 1;
  input.pinned.recompute = "none";
  input.pinned.schedule = "1f1b";
  const SearchPolicy policy = ownPolicy(input.pinned);
  double least = std::numeric_limits<double>::infinity(), deepest = least;
  input.exhaustive = true;
  for (const PlanCandidate &plan : PlanSearch(input).search(policy, 100)) {
    double &of = plan.degrees.pp == 64 ? deepest : least;
    of = std::min(of, plan.plan.cost.fullest());
  }
  ASSERT_LT(deepest, least);
  for (const double bytes : {0.0, (deepest + least) / 2}) {
    input.memoryBytes = bytes;
    std::vector<PlanCandidate> found[2];
    for (const bool exhaustive : {false, true}) {
      input.exhaustive = exhaustive;
      found[exhaustive] = PlanSearch(input).search(policy, 2);
    }
    const PlanCandidate &best = found[0].front();
    EXPECT_TRUE(best.fits());
    EXPECT_EQ(best.degrees, found[1].front().degrees) << bytes;
    EXPECT_EQ(best.plan.cost.seconds, found[1].front().plan.cost.seconds);
    EXPECT_EQ(best.degrees.pp == 64, bytes > 0);
  }
}

// What may be written has lists of all microbatches, not only a price from few.
TEST(PlanSearch, PlansInFullHaveTheirLists) {
  int many = 0;
  for (unsigned seed = 0; seed < 3; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, /*memory=*/0, /*batch=*/128);
    made->input.pinned.mesh = {{"pp", 2}};
    made->input.pinned.microbatch = 1;
    PlanSearch search(made->input);
    for (const PlanCandidate &plan :
         finalists(search.search(ownPolicy(made->input.pinned)), 100)) {
      const Schedule &schedule = plan.plan.schedule;
      many += steadyLengths(schedule.stages, schedule.microbatches).has_value();
      ASSERT_EQ(schedule.order.size(), size_t(schedule.stages))
          << plan.degrees.str() << " " << schedule.name;
      EXPECT_EQ(plan.plan.cost.seconds,
                pipelineCost(
                    *(*search.sharding(plan.degrees, plan.techniques))->model,
                    search.shapeOf(plan.degrees, plan.techniques), schedule,
                    plan.plan.begin, plan.plan.marks)
                    .seconds)
          << plan.degrees.str() << " " << schedule.name;
    }
  }
  EXPECT_GT(many, 0);
}

// Threads ask in any order, and a decision asks alone.
TEST(PlanSearch, LayoutsDoNotDependOnWhatWasAskedBefore) {
  int compared = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0);
    PlanSearch forward(made->input), backward(made->input);
    std::vector<Degrees> every = *forward.degrees();
    std::map<Degrees, Assignment> expected;
    for (const Degrees &d : every)
      if (Result<Assignment> found = forward.assign(d, Techniques{});
          found.ok())
        expected[d] = *found;
    std::reverse(every.begin(), every.end());
    for (const Degrees &d : every)
      if (Result<Assignment> found = backward.assign(d, Techniques{});
          found.ok()) {
        EXPECT_TRUE(expected.at(d) == *found) << seed << " " << d.str();
        ++compared;
      }
  }
  EXPECT_GT(compared, 50);
}

// `compared`: ranges of ops so far.
static void expectSameCosts(const PlanSearch::Sharding &a,
                            const PlanSearch::Sharding &b, int &compared) {
  const StageModel &x = *a.model, &y = *b.model;
  ASSERT_EQ(x.count(), y.count());
  for (int begin = 0; begin < x.count(); begin += 3)
    for (int end : {begin + 1, (begin + x.count() + 1) / 2, x.count()}) {
      const StageCost &one = x.cost(begin, end, {}),
                      &other = y.cost(begin, end, {});
      for (Action action :
           {Action::P, Action::F, Action::R, Action::B, Action::W, Action::U})
        EXPECT_EQ(one.times.of(action), other.times.of(action));
      EXPECT_EQ(one.keptBytes, other.keptBytes);
      EXPECT_EQ(one.workspace, other.workspace);
      EXPECT_EQ(one.communication, other.communication);
      ++compared;
    }
}

// What a level of overlap takes over from the one before is what it would make.
TEST(PlanSearch, LevelsOfOverlapShareWhatDoesNotDependOnThem) {
  int compared = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0);
    const std::vector<Degrees> every = *PlanSearch(made->input).degrees();
    for (const Degrees &d : every) {
      if (d.tp == 1 || d.microbatches > 4)
        continue;
      PlanSearch both(made->input), alone(made->input);
      for (int overlap : {0, 3}) {
        Result<const PlanSearch::Sharding *> a =
            both.sharding(d, {.overlap = overlap});
        Result<const PlanSearch::Sharding *> b =
            overlap == 0 ? a : alone.sharding(d, {.overlap = overlap});
        ASSERT_EQ(a.ok(), b.ok());
        if (!a.ok() || overlap == 0)
          continue;
        expectSameCosts(**a, **b, compared);
      }
    }
  }
  EXPECT_GT(compared, 100);
}

// What degrees have in common is what each would have alone.
TEST(PlanSearch, DegreesShareWhatIsTheSame) {
  int compared = 0;
  for (unsigned seed = 0; seed < 3; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, 0, /*batch=*/64);
    PlanSearch all(made->input), asked(made->input);
    const std::vector<Degrees> every = *all.degrees();
    std::set<const PlanSearch::Sharding *> different;
    for (const Degrees &d : every) {
      Result<const PlanSearch::Sharding *> shared = all.sharding(d, {});
      Result<const PlanSearch::Sharding *> own = asked.shardingFor(d, {});
      ASSERT_EQ(shared.ok(), own.ok());
      if (!shared.ok())
        continue;
      different.insert(*shared);
      if (d.microbatches > kManyMicrobatches)
        continue; // the same but for little
      expectSameCosts(**shared, **own, compared);
    }
    EXPECT_LT(different.size(), every.size());
  }
  EXPECT_GT(compared, 1000);
}

// A price of somebody's own keeps the search from leaving out cuts before it
// knows what they recompute.
TEST(PipelinePlan, CutsLeftOutEarlyWouldNotBeTaken) {
  int plans = 0;
  for (unsigned seed = 20; seed < 26; ++seed) {
    std::unique_ptr<Case> made = makeCase(seed, seed % 2 ? 0.8 : 0.6);
    PlanSearch search(made->input);
    const std::vector<Degrees> every = *search.degrees();
    for (const Degrees &d : every) {
      if (d.pp == 1 || d.microbatches < 2)
        continue;
      Result<const PlanSearch::Sharding *> sharding =
          search.sharding(d, {.overlap = d.tp > 1 ? 3 : 0});
      if (!sharding.ok())
        continue;
      const PipelineShape shape =
          makePipelineShape(made->input.cluster, d, made->input.memoryBytes,
                            made->input.reduction);
      PipelineOptions options, priced;
      options.schedules = priced.schedules = {"1f1b", "zb", "scp"};
      priced.price = [](const StageModel &model, const PipelineShape &,
                        int begin, int end, Marks marks) -> const StageCost & {
        return model.cost(begin, end, marks);
      };
      Status status;
      std::vector<PipelinePlan> found = planSchedules(*(*sharding)->model,
                                                      shape, options, status),
                                expected = planSchedules(*(*sharding)->model,
                                                         shape, priced, status);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].begin, expected[i].begin) << d.str();
        EXPECT_EQ(found[i].marks, expected[i].marks) << d.str();
        EXPECT_EQ(found[i].cost.seconds, expected[i].cost.seconds);
        EXPECT_EQ(found[i].evaluations, expected[i].evaluations);
        ++plans;
      }
    }
  }
  EXPECT_GT(plans, 50);
}

} // namespace
} // namespace merak::planning
