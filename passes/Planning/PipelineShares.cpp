#include "passes/Planning/PipelineShares.h"

#include "passes/Planning/MicrobatchLimit.h"
#include "passes/Planning/PartsSearch.h"
#include "passes/Planning/StageMeshes.h"
#include "passes/Planning/StageNames.h"
#include "passes/Planning/SteadyTimes.h"
#include "passes/Planning/Submicrobatches.h"
#include "passes/Stragglers/StageLayers.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

namespace merak::planning {

// Drafts that are planned, of each kind of cuts; times that one is shared anew,
// and microbatches that are moved then.
constexpr size_t kPlanned = 2;
constexpr int kRounds = 4, kMoves = 32;
// Numbers of reductions that no stage's own replicas have (GradientReduction).
constexpr int kPlaces = 1 << 20;
// What another plan must gain to be worth moving layers for.
constexpr double kWorthMoving = 0.01;

bool hasSlowDevices(const costmodel::Cluster &cluster) {
  if (cluster.rateOf.empty())
    return false;
  const auto [slowest, fastest] =
      std::minmax_element(cluster.rateOf.begin(), cluster.rateOf.end());
  return *fastest / *slowest >= kSlow;
}

std::vector<PipelineStages> replicasOf(const Degrees &d) {
  std::vector<PipelineStages> replicas;
  for (int64_t r = 0; r < d.dp; ++r) {
    PipelineStages &replica = replicas.emplace_back();
    for (int64_t s = 0; s < d.pp; ++s) {
      PipelineStages::Stage &stage = replica.stages.emplace_back();
      stage.tp = d.tp;
      for (int64_t i = 0; i < d.tp; ++i)
        stage.devices.push_back((s * d.dp + r) * d.tp + i);
    }
  }
  return replicas;
}

// The nodes of its devices, numbered as they appear.
static std::vector<int64_t> nodesOf(const PipelineStages &pipeline,
                                    const costmodel::Cluster &machine) {
  std::vector<int64_t> nodes, seen;
  for (const PipelineStages::Stage &stage : pipeline.stages)
    for (int64_t device : stage.devices) {
      const int64_t node = machine.node(device);
      const auto it = std::find(seen.begin(), seen.end(), node);
      nodes.push_back(it - seen.begin());
      if (it == seen.end())
        seen.push_back(node);
    }
  return nodes;
}

bool areAlike(const PipelineStages &a, const PipelineStages &b,
              const costmodel::Cluster &machine) {
  PipelineStages moved = b;
  moved.spares = a.spares;
  if (a.stages.size() != b.stages.size())
    return false;
  const auto of = [](const auto &values, int64_t device) {
    return values.empty() ? 0 : values[size_t(device)];
  };
  for (size_t s = 0; s < a.stages.size(); ++s) {
    const std::vector<int64_t> &here = a.stages[s].devices;
    std::vector<int64_t> &there = moved.stages[s].devices;
    if (here.size() != there.size())
      return false;
    for (size_t i = 0; i < here.size(); ++i)
      if (of(machine.kindOf, here[i]) != of(machine.kindOf, there[i]) ||
          of(machine.rateOf, here[i]) != of(machine.rateOf, there[i]))
        return false;
    there = here;
  }
  return moved == a && nodesOf(a, machine) == nodesOf(b, machine);
}

std::string SharedPlan::str() const {
  std::vector<int64_t> shares;
  for (const PipelineStages &pipeline : pipelines)
    shares.push_back(pipeline.microbatches.value_or(0));
  return fmt::format("{} microbatches, layers {}", fmt::join(shares, " + "),
                     movesLayers ? "cut for each pipeline" : "as they are");
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
      : input(input), meshes(meshes), question(question),
        begins(beginNames(*input.graph, question.begin)) {}

  std::vector<SharedPlan> run(size_t most);

private:
  // Pipelines that differ in none of these take the same.
  struct Kind {
    int64_t pp, tp, microbatches; // of the step
    bool cuts;                    // those of the question
    std::vector<double> slowness; // of its stages
    std::vector<int64_t> nodes;   // of its devices, as they appear
    auto operator<=>(const Kind &) const = default;
  };
  struct Draft {
    double seconds = 0;
    Degrees degrees; // dp: 1
    std::vector<PipelineStages> pipelines;
    std::vector<Kind> kinds;        // of these
    std::vector<SteadyTimes> times; // of these
    int64_t unit = 1; // of shares: what interleaved parts can divide
    bool cuts = false;
  };
  // A pipeline as it is planned.
  struct Planned {
    PipelinePlan plan;
    std::string recompute;
  };

  std::optional<PipelineShape> shapeOf(const PipelineStages &pipeline,
                                       const Degrees &d);
  Kind kindOf(const PipelineStages &pipeline, const PipelineShape &shape,
              const Degrees &d, bool cuts) const;
  std::optional<SteadyTimes> timesOf(const PipelineShape &shape,
                                     const Kind &kind);
  void setCuts(PipelineStages &pipeline) const;
  bool share(Draft &draft) const;
  void draft(const Degrees &degrees, int64_t microbatches, bool cuts);
  void leaveOut(Draft draft);
  void draftAll();
  const Planned *planOf(const Draft &draft, size_t pipeline, int64_t share);
  bool keepBest(const Draft &draft, std::optional<SharedPlan> &best);
  bool moveUnit(Draft &draft);
  double sumSeconds(const Draft &draft, size_t longest,
                    const PipelinePlan &plan);
  std::optional<SharedPlan> plan(Draft draft);

  const SearchInput &input;
  StageMeshes &meshes;
  const SharesQuestion &question;
  const std::vector<std::string> begins; // the question's cuts
  std::map<Kind, std::optional<SteadyTimes>> known;
  std::map<std::vector<int64_t>, size_t> places; // of holders of a stage
  std::map<std::pair<Kind, int64_t>, std::optional<Planned>> planned;
  std::vector<Draft> drafts;
};

} // namespace

std::optional<PipelineShape>
SharesSearch::shapeOf(const PipelineStages &pipeline, const Degrees &d) {
  Result<PipelineShape> shape = meshes.shapeOf(pipeline, d.microbatches);
  if (!shape.ok() || !shape->meshes.front().model->problem.joins.empty())
    return std::nullopt;
  return std::move(*shape);
}

SharesSearch::Kind SharesSearch::kindOf(const PipelineStages &pipeline,
                                        const PipelineShape &shape,
                                        const Degrees &d, bool cuts) const {
  return {d.pp, d.tp,           d.microbatches,
          cuts, shape.slowness, nodesOf(pipeline, input.cluster)};
}

std::optional<SteadyTimes> SharesSearch::timesOf(const PipelineShape &shape,
                                                 const Kind &kind) {
  const auto [it, isNew] = known.try_emplace(kind);
  if (!isNew)
    return it->second;
  const StageModel &model = *shape.meshes.front().model;
  std::vector<int> begin = question.begin;
  if (!kind.cuts) {
    const int chunks = int(input.pinned.chunks.value_or(1));
    Result<std::vector<int>> even =
        balanced(model, shape.stages * (shape.stages > 1 ? chunks : 1), shape);
    if (!even.ok())
      return std::nullopt;
    begin = *even;
  }
  it->second = steadyTimes(model, shape, begin, input.train);
  return it->second;
}

// As a strategy names them.
void SharesSearch::setCuts(PipelineStages &pipeline) const {
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
  const auto whole = [](double seconds) {
    return std::max<int64_t>(1, std::llround(seconds * 1e9));
  };
  std::vector<stragglers::PipelineWork> work;
  for (const SteadyTimes &times : draft.times) {
    stragglers::PipelineWork &one = work.emplace_back();
    one.time.slowest = whole(times.of(1 + draft.unit) - times.of(1));
    one.time.all = whole(times.of(draft.unit));
    one.stages = 1; // so many units at least
  }
  const std::optional<std::vector<int64_t>> units =
      stragglers::shareMicrobatches(work,
                                    draft.degrees.microbatches / draft.unit,
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
    if (share(draft))
      drafts.push_back(draft);
  }
}

void SharesSearch::draft(const Degrees &degrees, int64_t microbatches,
                         bool cuts) {
  Draft out;
  out.degrees = {degrees.pp, 1, degrees.tp, microbatches};
  out.cuts = cuts;
  const int64_t chunks = cuts ? int64_t(question.begin.size() - 1) / degrees.pp
                              : input.pinned.chunks.value_or(1);
  if (chunks > 1)
    out.unit = degrees.pp;
  if (microbatches % out.unit != 0)
    return;
  out.pipelines = replicasOf(degrees);
  for (PipelineStages &pipeline : out.pipelines) {
    const std::optional<PipelineShape> shape = shapeOf(pipeline, out.degrees);
    if (!shape)
      return;
    out.kinds.push_back(kindOf(pipeline, *shape, out.degrees, cuts));
    const std::optional<SteadyTimes> times = timesOf(*shape, out.kinds.back());
    if (!times)
      return;
    out.times.push_back(*times);
    if (cuts)
      setCuts(pipeline);
  }
  if (share(out))
    drafts.push_back(out);
  if (question.leavesOut)
    leaveOut(std::move(out));
}

void SharesSearch::draftAll() {
  for (const Degrees &d : question.degrees)
    for (int64_t samples = 1; samples <= input.globalBatch / d.dp; ++samples) {
      const bool isGiven = input.pinned.microbatch == samples;
      const bool isRound = (samples & (samples - 1)) == 0;
      const int64_t microbatches = input.globalBatch / samples;
      if (input.globalBatch % samples != 0 ||
          (input.pinned.microbatch ? !isGiven : !isRound) ||
          microbatches > kMicrobatchesPerStage * d.pp * d.dp)
        continue;
      if (!question.begin.empty())
        draft(d, microbatches, /*cuts=*/true);
      // Of one stage there is nothing to cut.
      if (!question.onlyThese && (question.begin.empty() || d.pp > 1))
        draft(d, microbatches, /*cuts=*/false);
    }
  std::stable_sort(
      drafts.begin(), drafts.end(),
      [](const Draft &a, const Draft &b) { return a.seconds < b.seconds; });
}

// Null: it has none, or needs more memory than there is.
const SharesSearch::Planned *
SharesSearch::planOf(const Draft &draft, size_t pipeline, int64_t share) {
  const auto [it, isNew] = planned.try_emplace({draft.kinds[pipeline], share});
  if (!isNew)
    return it->second ? &*it->second : nullptr;
  const Strategy own = openFor(input.pinned, draft.pipelines,
                               draft.degrees.microbatches, input.globalBatch)
                           .ofPipeline(pipeline);
  std::optional<PipelineShape> shape =
      shapeOf(draft.pipelines[pipeline], draft.degrees);
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

// Of the stage whose gradients hold up the update longest. With equal cuts they
// are summed beside the last backward pass, as over replicas; else a stage has
// some in common with several others, and none is summed before that.
double SharesSearch::sumSeconds(const Draft &draft, size_t longest,
                                const PipelinePlan &plan) {
  const std::optional<PipelineShape> shape =
      shapeOf(draft.pipelines[longest], draft.degrees);
  const size_t stages = size_t(draft.degrees.pp);
  const bool early = (draft.cuts || stages == 1) && input.reduction.early;
  double most = 0;
  for (size_t s = 0; shape && s < stages; ++s) {
    std::vector<int64_t> holders;
    for (const PipelineStages &pipeline : draft.pipelines)
      holders.push_back(pipeline.stages[s].devices.front());
    GradientReduction reduce;
    reduce.replicas = int64_t(holders.size());
    reduce.place =
        kPlaces + int(places.try_emplace(holders, places.size()).first->second);
    reduce.early = early;
    reduce.seconds = [&](double bytes) {
      return costmodel::collectiveSeconds(
          costmodel::Collective::AllReduce, bytes, holders, input.cluster,
          std::min(input.cluster.perNode, draft.degrees.tp));
    };
    reduce.bucketBytes =
        input.reduction.bucketBytes.value_or(worthJoining(reduce.seconds));
    double seconds = 0;
    for (size_t v = s; v + 1 < plan.begin.size(); v += stages)
      seconds += shape->modelOf(int(v), *shape->meshes.front().model)
                     .exposedReduction(plan.begin[v], plan.begin[v + 1], reduce,
                                       plan.cost.stages[v].times.W);
    most = std::max(most, seconds);
  }
  return most;
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
  const double sums = sumSeconds(draft, number, longest->plan);
  const double seconds = longest->plan.cost.seconds + sums;
  if (best && seconds >= best->plan.plan.cost.seconds)
    return true;
  best.emplace();
  best->plan.degrees = draft.degrees;
  best->plan.plan = longest->plan;
  best->plan.plan.cost.seconds = seconds;
  best->plan.recompute = longest->recompute;
  best->plan.convertOnce = input.convertOnce;
  best->pipelines = draft.pipelines;
  best->movesLayers = !draft.cuts && draft.degrees.pp > 1;
  best->sumSeconds = sums;
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

std::vector<SharedPlan> SharesSearch::run(size_t most) {
  draftAll();
  std::vector<SharedPlan> plans;
  for (bool cuts : {true, false}) {
    size_t tried = 0;
    for (const Draft &draft : drafts)
      if (draft.cuts == cuts && tried < kPlanned) {
        std::optional<SharedPlan> found = plan(draft);
        tried += found.has_value();
        if (found)
          plans.push_back(std::move(*found));
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

std::vector<SharedPlan> searchShares(const SearchInput &input,
                                     StageMeshes &meshes,
                                     const SharesQuestion &question,
                                     size_t most) {
  // Statistics are those of a replica's samples, and kept.
  if (question.degrees.empty() || joinsSamples(*input.graph))
    return {};
  return SharesSearch(input, meshes, question).run(most);
}

} // namespace merak::planning
