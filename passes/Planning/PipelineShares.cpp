#include "passes/Planning/PipelineShares.h"

#include "passes/Planning/ClassPipelines.h"
#include "passes/Planning/MicrobatchLimit.h"
#include "passes/Planning/PipelineSums.h"
#include "passes/Planning/StageNames.h"
#include "passes/Planning/SteadyTimes.h"
#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <numeric>

namespace merak::planning {

// Drafts that are planned, of each origin; times that one is shared anew, and
// microbatches that are moved then.
constexpr size_t kPlanned = 2;
constexpr int kRounds = 4, kMoves = 32;
// Pipelines by class of devices that are cut. Drafts may be off by so much.
constexpr size_t kCut = 24;
constexpr double kRough = 1.1;
// Of the backward pass of ops, a guess before there is a plan: what makes
// gradients of parameters.
constexpr double kWeightShare = 1.0 / 3;
// What another plan must gain to be worth moving layers for.
constexpr double kWorthMoving = 0.01;

std::string SharedPlan::str() const {
  std::vector<std::string> shares;
  for (const PipelineStages &pipeline : pipelines) {
    const PipelineStages::Stage &first = pipeline.stages.front();
    shares.push_back(std::to_string(pipeline.microbatches.value_or(0)));
    if (!haveOneMesh())
      shares.back() += fmt::format(" on pp={},dp={},tp={}",
                                   pipeline.stages.size(), first.dp, first.tp);
  }
  return fmt::format("{} microbatches, layers {}", fmt::join(shares, " + "),
                     movesLayers ? "cut for each pipeline" : "as they are");
}

bool SharedPlan::haveOneMesh() const {
  return std::all_of(pipelines.begin(), pipelines.end(), [&](const auto &of) {
    return int64_t(of.stages.size()) == plan.degrees.pp &&
           of.stages.front().dp == 1 && of.stages.front().tp == plan.degrees.tp;
  });
}

// What is tried where it can be, and what degrees and cuts were, no longer
// holds.
static Strategy openFor(const Strategy &pinned,
                        const std::vector<PipelineStages> &pipelines,
                        int64_t microbatches, int64_t globalBatch) {
  Strategy out = pinned;
  out.setPipelines(pipelines);
  out.microbatch = globalBatch / (microbatches * out.mesh[kDataAxis]);
  out.stageBegins.reset();
  out.zero.reset();
  out.sequence.reset();
  out.context.reset();
  out.mixed.reset();
  if (out.tpOverlap)
    out.tpOverlap = "0";
  return out;
}

Strategy strategyOf(const Strategy &pinned, const SharedPlan &plan,
                    int64_t globalBatch) {
  return openFor(pinned, plan.pipelines, plan.plan.degrees.microbatches,
                 globalBatch);
}

namespace {

class SharesSearch {
public:
  SharesSearch(const SearchInput &input, StageMeshes &meshes,
               const SharesQuestion &question)
      : input(input), meshes(meshes), question(question), sums(input) {}

  void draftAll();
  std::vector<SharedPlan> run(double limit, size_t most);

private:
  // What pipelines are made of: replicas with the cuts of the question or cuts
  // of their own, or classes of devices.
  enum class Origin { Kept, Cut, Classes };
  // Pipelines that differ in none of these take the same.
  struct Kind {
    std::vector<std::array<int64_t, 2>> degrees; // dp, tp of its stages
    int64_t microbatches;                        // of the step
    std::vector<int> begin;                      // cuts; empty: its own
    std::vector<double> slowness;                // of its stages
    std::vector<int64_t> nodes; // of its devices, as they appear
    std::vector<int> kinds;     // of these
    auto operator<=>(const Kind &) const = default;
  };
  struct Draft {
    Origin origin = Origin::Cut;
    double bound = 0; // of classes: none of their plans is faster
    double seconds = 0;
    int64_t microbatches = 1; // of the step
    std::vector<PipelineStages> pipelines;
    std::vector<int> begin;         // of all; empty: each has its own
    std::vector<Kind> kinds;        // of the pipelines
    std::vector<SteadyTimes> times; // of these
    int64_t unit = 1; // of shares: what interleaved parts can divide
  };
  // A pipeline as it is planned.
  struct Planned {
    PipelinePlan plan;
    std::string recompute;
  };

  std::optional<PipelineShape> shapeOf(const PipelineStages &pipeline,
                                       int64_t microbatches);
  Kind kindOf(const PipelineStages &pipeline, const PipelineShape &shape,
              int64_t microbatches, const std::vector<int> &begin) const;
  std::optional<std::vector<int>> cutsOf(const PipelineShape &shape,
                                         const Kind &kind) const;
  std::optional<SteadyTimes> timesOf(const PipelineShape &shape,
                                     const Kind &kind);
  void setCuts(PipelineStages &pipeline, const std::vector<int> &begin) const;
  bool share(Draft &draft) const;
  bool price(Draft &draft);
  void draft(Origin origin, std::vector<PipelineStages> pipelines,
             int64_t microbatches, const std::vector<int> &begin,
             double bound = 0);
  void leaveOut(Draft draft);
  void draftReplicas(const Degrees &degrees);
  void draftClasses();
  double roughSums(const Draft &draft);
  const Planned *planOf(const Draft &draft, size_t pipeline, int64_t share);
  bool keepBest(const Draft &draft, std::optional<SharedPlan> &best);
  bool moveUnit(Draft &draft);
  double plannedSums(const Draft &draft, size_t longest);
  // Where `fill` says the cuts of each pipeline and its weight gradients.
  double sumsOf(const Draft &draft, size_t longest,
                const std::function<void(size_t, CutPipeline &)> &fill);
  std::optional<SharedPlan> plan(Draft draft);
  // Whether nothing is planned that certainly takes longer than what is known.
  bool isLimited(Origin origin) const {
    return origin == Origin::Classes || hasSeveralKinds(input.cluster);
  }
  bool mustBeSlower(const Draft &draft, double limit) const;

  const SearchInput &input;
  StageMeshes &meshes;
  const SharesQuestion question;
  PipelineSums sums;
  std::map<Kind, std::optional<SteadyTimes>> known;
  std::map<std::pair<Kind, int64_t>, std::optional<Planned>> planned;
  std::vector<Draft> drafts;
};

} // namespace

std::optional<PipelineShape>
SharesSearch::shapeOf(const PipelineStages &pipeline, int64_t microbatches) {
  Result<PipelineShape> shape = meshes.shapeOf(pipeline, microbatches);
  if (!shape.ok() || !shape->meshes.front().model->problem.joins.empty())
    return std::nullopt;
  return std::move(*shape);
}

SharesSearch::Kind SharesSearch::kindOf(const PipelineStages &pipeline,
                                        const PipelineShape &shape,
                                        int64_t microbatches,
                                        const std::vector<int> &begin) const {
  Kind kind{
      {}, microbatches, begin, shape.slowness, nodesOf(pipeline, input.cluster),
      {}};
  for (const PipelineStages::Stage &stage : pipeline.stages) {
    kind.degrees.push_back({stage.dp, stage.tp});
    if (!input.cluster.kindOf.empty())
      for (int64_t device : stage.devices)
        kind.kinds.push_back(input.cluster.kindOf[size_t(device)]);
  }
  return kind;
}

// Those that are given, or as even as can be.
std::optional<std::vector<int>> SharesSearch::cutsOf(const PipelineShape &shape,
                                                     const Kind &kind) const {
  if (!kind.begin.empty())
    return kind.begin;
  const int chunks = int(input.pinned.chunks.value_or(1));
  Result<std::vector<int>> even =
      balanced(*shape.meshes.front().model,
               shape.stages * (shape.stages > 1 ? chunks : 1), shape);
  return even.ok() ? std::optional(*even) : std::nullopt;
}

std::optional<SteadyTimes> SharesSearch::timesOf(const PipelineShape &shape,
                                                 const Kind &kind) {
  const auto [it, isNew] = known.try_emplace(kind);
  if (isNew)
    if (const auto begin = cutsOf(shape, kind))
      it->second =
          steadyTimes(*shape.meshes.front().model, shape, *begin, input.train);
  return it->second;
}

// As a strategy names them.
void SharesSearch::setCuts(PipelineStages &pipeline,
                           const std::vector<int> &begin) const {
  const std::vector<std::string> begins = beginNames(*input.graph, begin);
  const size_t stages = pipeline.stages.size();
  if (begins.size() + 1 == stages) {
    for (size_t s = 1; s < stages; ++s)
      pipeline.stages[s].begin = begins[s - 1];
    return;
  }
  pipeline.chunks = int64_t(begins.size() + 1) / int64_t(stages);
  pipeline.partBegins = begins;
}

// By the times of its pipelines. False: there are too few microbatches.
bool SharesSearch::share(Draft &draft) const {
  std::vector<stragglers::PipelineWork> work;
  for (const SteadyTimes &times : draft.times)
    work.push_back(
        workOf(times.of(draft.unit), times.of(1 + draft.unit) - times.of(1)));
  const std::optional<std::vector<int64_t>> units =
      stragglers::shareMicrobatches(work, draft.microbatches / draft.unit,
                                    stragglers::Objective::Filled);
  if (!units)
    return false;
  draft.seconds = 0;
  for (size_t i = 0; i < units->size(); ++i) {
    const int64_t share = (*units)[i] * draft.unit;
    draft.pipelines[i].microbatches = share;
    draft.seconds = std::max(draft.seconds, draft.times[i].of(share));
  }
  return true;
}

// The slowest replicas are spare, from one to all but two.
void SharesSearch::leaveOut(Draft draft) {
  const auto slownessOf = [&](size_t i) {
    return *std::max_element(draft.kinds[i].slowness.begin(),
                             draft.kinds[i].slowness.end());
  };
  while (draft.pipelines.size() > 2) {
    size_t first = 0, last = 0; // the fastest, the slowest
    for (size_t i = 1; i < draft.pipelines.size(); ++i) {
      if (draft.times[i].slowest > draft.times[last].slowest)
        last = i;
      if (draft.times[i].slowest < draft.times[first].slowest)
        first = i;
    }
    if (slownessOf(last) < kSlow * slownessOf(first))
      return;
    std::vector<int64_t> spares = draft.pipelines.front().spares;
    for (const PipelineStages::Stage &stage : draft.pipelines[last].stages)
      spares.insert(spares.end(), stage.devices.begin(), stage.devices.end());
    std::sort(spares.begin(), spares.end());
    const auto erase = [&](auto &of) {
      of.erase(of.begin() + std::ptrdiff_t(last));
    };
    erase(draft.pipelines);
    erase(draft.kinds);
    erase(draft.times);
    draft.pipelines.front().spares = std::move(spares);
    if (price(draft))
      drafts.push_back(draft);
  }
}

// Where all have the same cuts, gradients are summed beside the last backward
// pass, as over replicas; else a stage has some in common with several others,
// and none is summed before that.
double
SharesSearch::sumsOf(const Draft &draft, size_t longest,
                     const std::function<void(size_t, CutPipeline &)> &fill) {
  if (!input.train)
    return 0;
  std::vector<PipelineShape> shapes;
  std::vector<CutPipeline> all;
  shapes.reserve(draft.pipelines.size());
  for (size_t i = 0; i < draft.pipelines.size(); ++i) {
    std::optional<PipelineShape> shape =
        shapeOf(draft.pipelines[i], draft.microbatches);
    if (!shape)
      return 0;
    shapes.push_back(std::move(*shape));
    all.push_back({&draft.pipelines[i], &shapes.back(), {}, {}});
    fill(i, all.back());
  }
  return sums.seconds(all, longest);
}

// What sums take beside plans that are not made yet.
double SharesSearch::roughSums(const Draft &draft) {
  size_t longest = 0;
  const auto secondsOf = [&](size_t i) {
    return draft.times[i].of(*draft.pipelines[i].microbatches);
  };
  for (size_t i = 1; i < draft.pipelines.size(); ++i)
    if (secondsOf(i) > secondsOf(longest))
      longest = i;
  return sumsOf(draft, longest, [&](size_t i, CutPipeline &cut) {
    const PipelineShape &shape = *cut.shape;
    cut.begin = *cutsOf(shape, draft.kinds[i]);
    for (size_t part = 0; part + 1 < cut.begin.size(); ++part)
      cut.weight.push_back(kWeightShare * shape.slownessOf(int(part)) *
                           shape.modelOf(int(part), *shape.meshes.front().model)
                               .seconds(cut.begin[part], cut.begin[part + 1]));
  });
}

// Shares it. False: there are too few microbatches. What is compared with
// other plans has its sums.
bool SharesSearch::price(Draft &draft) {
  if (!share(draft))
    return false;
  if (isLimited(draft.origin))
    draft.seconds += roughSums(draft);
  return true;
}

void SharesSearch::draft(Origin origin, std::vector<PipelineStages> pipelines,
                         int64_t microbatches, const std::vector<int> &begin,
                         double bound) {
  Draft out;
  out.origin = origin;
  out.bound = bound;
  out.microbatches = microbatches;
  out.begin = begin;
  out.pipelines = std::move(pipelines);
  for (PipelineStages &pipeline : out.pipelines) {
    const int64_t stages = int64_t(pipeline.stages.size());
    const int64_t chunks = begin.empty() ? input.pinned.chunks.value_or(1)
                                         : int64_t(begin.size() - 1) / stages;
    if (chunks > 1)
      out.unit = std::lcm(out.unit, stages);
    const std::optional<PipelineShape> shape = shapeOf(pipeline, microbatches);
    if (!shape)
      return;
    out.kinds.push_back(kindOf(pipeline, *shape, microbatches, begin));
    const std::optional<SteadyTimes> times = timesOf(*shape, out.kinds.back());
    if (!times)
      return;
    out.times.push_back(*times);
    if (!begin.empty())
      setCuts(pipeline, begin);
  }
  if (microbatches % out.unit != 0)
    return;
  if (price(out))
    drafts.push_back(out);
  if (question.leavesOut && origin != Origin::Classes)
    leaveOut(std::move(out));
}

// Replicas on devices of several kinds: those that are alike are one pipeline,
// if samples can be split over them.
void SharesSearch::draftReplicas(const Degrees &d) {
  // As in a search for one mesh.
  if (hasSeveralKinds(input.cluster) && d.tp > input.cluster.perNode &&
      !input.pinned.mesh.contains(kTensorAxis))
    return;
  std::vector<PipelineStages> replicas = replicasOf(d);
  int64_t samplesAtOnce = 1; // of a replica each
  if (hasSeveralKinds(input.cluster)) {
    std::vector<PipelineStages> few = joinedReplicas(replicas, input.cluster);
    int64_t split = 1;
    for (const PipelineStages &pipeline : few)
      split = std::lcm(split, pipeline.stages.front().dp);
    if (few.size() == 1)
      return;
    if (input.globalBatch % split == 0) {
      replicas = std::move(few);
      samplesAtOnce = split;
    }
  }
  if (int64_t(replicas.size()) > kMostPipelines)
    return;
  const int64_t stages = d.pp * int64_t(replicas.size());
  for (int64_t samples = 1; samples * samplesAtOnce <= input.globalBatch;
       ++samples) {
    const bool isGiven = input.pinned.microbatch == samples;
    const bool isRound = (samples & (samples - 1)) == 0;
    const int64_t microbatches = input.globalBatch / (samples * samplesAtOnce);
    if (input.globalBatch % (samples * samplesAtOnce) != 0 ||
        (input.pinned.microbatch ? !isGiven : !isRound) ||
        microbatches < int64_t(replicas.size()) ||
        microbatches > kMicrobatchesPerStage * stages)
      continue;
    if (!question.begin.empty())
      draft(Origin::Kept, replicas, microbatches, question.begin);
    // Of one stage there is nothing to cut.
    if (!question.onlyThese && (question.begin.empty() || d.pp > 1))
      draft(Origin::Cut, replicas, microbatches, {});
  }
}

// With cuts of their own, and with those of the first where others could have
// them: gradients are then summed beside the backward pass.
void SharesSearch::draftClasses() {
  for (ClassPipelines &of : classPipelines(input, meshes, kCut)) {
    if (question.limit > 0 && of.seconds >= question.limit)
      continue;
    const PipelineStages &first = of.pipelines.front();
    if (of.isAlike() && first.stages.size() > 1)
      if (const auto shape = shapeOf(first, of.microbatches))
        if (const auto begin =
                cutsOf(*shape, kindOf(first, *shape, of.microbatches, {})))
          draft(Origin::Classes, of.pipelines, of.microbatches, *begin,
                of.seconds);
    draft(Origin::Classes, std::move(of.pipelines), of.microbatches, {},
          of.seconds);
  }
}

// Null: it has none, or needs more memory than there is.
const SharesSearch::Planned *
SharesSearch::planOf(const Draft &draft, size_t pipeline, int64_t share) {
  const auto [it, isNew] = planned.try_emplace({draft.kinds[pipeline], share});
  if (!isNew)
    return it->second ? &*it->second : nullptr;
  const Strategy own = openFor(input.pinned, draft.pipelines,
                               draft.microbatches, input.globalBatch)
                           .ofPipeline(pipeline);
  std::optional<PipelineShape> shape =
      shapeOf(draft.pipelines[pipeline], draft.microbatches);
  if (!shape)
    return nullptr;
  shape->microbatches = int(share);
  const SearchPolicy policy = ownPolicy(own);
  CandidateSet set(policy, /*quick=*/true, own.stageBegins);
  set.steady = true;
  set.add(*shape->meshes.front().model, *shape, {});
  set.improve();
  const TriedPlan *best = set.best();
  if (!best || !best->plan.cost.fits())
    return nullptr;
  it->second = Planned{best->plan, best->recompute};
  return &*it->second;
}

double SharesSearch::plannedSums(const Draft &draft, size_t longest) {
  return sumsOf(draft, longest, [&](size_t i, CutPipeline &cut) {
    const PipelinePlan &plan =
        planOf(draft, i, *draft.pipelines[i].microbatches)->plan;
    cut.begin = plan.begin;
    for (const StageCost &stage : plan.cost.stages)
      cut.weight.push_back(stage.times.W);
  });
}

// As its pipelines are planned, if that is better than `best`. False: one of
// them has no plan.
bool SharesSearch::keepBest(const Draft &draft,
                            std::optional<SharedPlan> &best) {
  const Planned *longest = nullptr;
  size_t number = 0; // of that
  for (size_t i = 0; i < draft.pipelines.size(); ++i) {
    const Planned *one = planOf(draft, i, *draft.pipelines[i].microbatches);
    if (!one)
      return false;
    if (!longest || one->plan.cost.seconds > longest->plan.cost.seconds) {
      longest = one;
      number = i;
    }
  }
  const double summing = plannedSums(draft, number);
  const double seconds = longest->plan.cost.seconds + summing;
  if (best && seconds >= best->plan.plan.cost.seconds)
    return true;
  best.emplace();
  best->plan.degrees.microbatches = draft.microbatches;
  for (const PipelineStages &pipeline : draft.pipelines) {
    const PipelineStages::Stage &stage = pipeline.stages.front();
    Degrees &d = best->plan.degrees;
    d.pp = std::max(d.pp, int64_t(pipeline.stages.size()));
    d.dp = std::lcm(d.dp, stage.dp);
    d.tp = std::lcm(d.tp, stage.tp);
  }
  best->plan.plan = longest->plan;
  best->plan.plan.cost.seconds = seconds;
  best->plan.recompute = longest->recompute;
  best->plan.convertOnce = input.convertOnce;
  best->pipelines = draft.pipelines;
  best->movesLayers = draft.origin != Origin::Kept && best->plan.degrees.pp > 1;
  best->sumSeconds = summing;
  return true;
}

// A unit from the longest pipeline to where it ends first, if that is sooner.
bool SharesSearch::moveUnit(Draft &draft) {
  std::vector<double> seconds;
  for (size_t i = 0; i < draft.pipelines.size(); ++i)
    seconds.push_back(
        planOf(draft, i, *draft.pipelines[i].microbatches)->plan.cost.seconds);
  const size_t from = size_t(std::max_element(seconds.begin(), seconds.end()) -
                             seconds.begin());
  size_t to = from;
  double least = seconds[from];
  for (size_t i = 0; i < draft.pipelines.size(); ++i)
    if (const Planned *one =
            i == from ? nullptr
                      : planOf(draft, i,
                               *draft.pipelines[i].microbatches + draft.unit);
        one && one->plan.cost.seconds < least) {
      to = i;
      least = one->plan.cost.seconds;
    }
  if (to == from || *draft.pipelines[from].microbatches <= draft.unit)
    return false;
  *draft.pipelines[from].microbatches -= draft.unit;
  *draft.pipelines[to].microbatches += draft.unit;
  return true;
}

std::optional<SharedPlan> SharesSearch::plan(Draft draft) {
  std::optional<SharedPlan> best;
  // What plans say of the filling and draining that the sums did not.
  for (int round = 0; round < kRounds; ++round) {
    if (!keepBest(draft, best))
      return best;
    for (size_t i = 0; i < draft.pipelines.size(); ++i) {
      const int64_t share = *draft.pipelines[i].microbatches;
      SteadyTimes &times = draft.times[i];
      times.exchange +=
          planOf(draft, i, share)->plan.cost.seconds - times.of(share);
    }
    const std::vector<PipelineStages> before = draft.pipelines;
    if (!share(draft) || draft.pipelines == before)
      break;
  }
  // Times are not quite linear.
  draft.pipelines = best->pipelines;
  for (int move = 0; move < kMoves && moveUnit(draft); ++move)
    if (!keepBest(draft, best))
      break;
  return best;
}

bool SharesSearch::mustBeSlower(const Draft &draft, double limit) const {
  return limit > 0 &&
         (draft.bound >= limit ||
          (isLimited(draft.origin) && draft.seconds >= kRough * limit));
}

// Under the question's limit, which may fall before they are planned.
void SharesSearch::draftAll() {
  for (const Degrees &d : question.degrees)
    draftReplicas(d);
  if (question.classes)
    draftClasses();
  std::stable_sort(
      drafts.begin(), drafts.end(),
      [](const Draft &a, const Draft &b) { return a.seconds < b.seconds; });
}

std::vector<SharedPlan> SharesSearch::run(double limit, size_t most) {
  std::vector<SharedPlan> plans;
  std::vector<const Draft *> done;
  for (Origin origin : {Origin::Kept, Origin::Cut, Origin::Classes}) {
    size_t tried = 0;
    for (const Draft &draft : drafts) {
      if (draft.origin != origin || tried == kPlanned ||
          mustBeSlower(draft, limit) ||
          std::any_of(done.begin(), done.end(), [&](const Draft *other) {
            return other->pipelines == draft.pipelines;
          }))
        continue;
      std::optional<SharedPlan> found = plan(draft);
      tried += found.has_value();
      if (found)
        plans.push_back(std::move(*found));
      done.push_back(&draft);
    }
  }
  const auto worth = [](const SharedPlan &plan) {
    return plan.plan.plan.cost.seconds *
           (plan.movesLayers ? 1 : 1 - kWorthMoving);
  };
  std::stable_sort(plans.begin(), plans.end(),
                   [&](const SharedPlan &a, const SharedPlan &b) {
                     return worth(a) < worth(b);
                   });
  plans.resize(std::min(plans.size(), most));
  return plans;
}

struct DraftedShares::Impl {
  SharesSearch search;
  Impl(const SearchInput &input, StageMeshes &meshes,
       const SharesQuestion &question)
      : search(input, meshes, question) {}
};

DraftedShares::DraftedShares(const SearchInput &input, StageMeshes &meshes,
                             const SharesQuestion &question) {
  // Statistics are those of a replica's samples, and kept.
  if (joinsSamples(*input.graph))
    return;
  impl = std::make_unique<Impl>(input, meshes, question);
  impl->search.draftAll();
}

DraftedShares::~DraftedShares() = default;

std::vector<SharedPlan> DraftedShares::plans(double limit, size_t most) {
  return impl ? impl->search.run(limit, most) : std::vector<SharedPlan>();
}

} // namespace merak::planning
