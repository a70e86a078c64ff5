#include "passes/Planning/PartsSearch.h"

#include "passes/Planning/DeviceClasses.h"
#include "passes/Planning/MicrobatchLimit.h"
#include "passes/Planning/StageMeshes.h"
#include "passes/Planning/StageMix.h"
#include "passes/Planning/SteadyTimes.h"
#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace merak::planning {

// Mixes kept of each number of stages; mixes that are ordered and cut, plans
// made quickly and in full.
constexpr size_t kMixes = 6, kOrdered = 96, kQuick = 16, kFull = 4;
// More stages than this are not looked at.
constexpr int kMostStages = 64;
constexpr double kRough = 1.1; // quick prices may be off by so much

bool hasUnlikeDevices(const costmodel::Cluster &cluster) {
  const auto differs = [](const auto &of) {
    return !of.empty() && std::any_of(of.begin(), of.end(), [&](auto value) {
      return value != of.front();
    });
  };
  return (cluster.count & (cluster.count - 1)) != 0 ||
         differs(cluster.kindOf) || differs(cluster.rateOf);
}

// Of a stage that is one device.
static PipelineStages::Stage alone(int64_t device) {
  PipelineStages::Stage stage;
  stage.devices = {device};
  return stage;
}

costmodel::Cluster onFastestKind(const SearchInput &input) {
  costmodel::Cluster out = input.cluster;
  StageMeshes meshes(input, input.cluster);
  double least = std::numeric_limits<double>::infinity();
  std::set<int> seen;
  for (int64_t device = 0; device < out.count; ++device)
    if (const int kind = input.cluster.kindOf[size_t(device)];
        seen.insert(kind).second)
      if (Result<const StageModel *> model =
              meshes.modelOf(alone(device), /*microbatches=*/1);
          model.ok())
        if (const double seconds = (*model)->seconds(0, (*model)->count());
            seconds < least) {
          least = seconds;
          out.kinds = {input.cluster.kinds[size_t(kind)]};
        }
  out.kindOf.clear();
  return out;
}

namespace {

class PartsSearch {
public:
  PartsSearch(const SearchInput &input, StageMeshes &meshes, double limit)
      : input(input), machine(input.cluster), meshes(meshes), limit(limit),
        policy(ownPolicy(input.pinned)), deviceClasses(input, meshes) {}

  std::vector<PlanCandidate> run(size_t most);

private:
  // A kind of stage with its degrees.
  struct Kind : StageKind {
    int64_t dp = 1, tp = 1;
    double share = 1; // of the model's parameters that fit into its devices
  };
  // Stages to be cut and planned.
  struct Draft {
    double seconds = 0; // a bound first, then with the cuts found
    int64_t microbatches = 1;
    std::vector<Kind> stages;
    PipelineStages pipeline;
  };

  std::vector<int64_t> sizesOf(const DeviceClass &of) const;
  std::optional<Kind> price(int deviceClass, int64_t dp, int64_t tp,
                            int64_t microbatches);
  std::vector<Kind> kindsFor(int64_t microbatches, int64_t most);
  void draftAll();
  bool place(Draft &draft) const;
  std::optional<double> secondsOf(const Draft &draft);
  void order(Draft &draft);
  std::optional<PlanCandidate> plan(const Draft &draft, bool quick);

  const SearchInput &input;
  const costmodel::Cluster &machine;
  StageMeshes &meshes;
  const double limit;
  const SearchPolicy policy;
  DeviceClasses deviceClasses;
  const std::vector<DeviceClass> &classes = deviceClasses.all();
  std::vector<int64_t> degrees; // of tp, that are worth something
  std::vector<Draft> drafts;
};

} // namespace

// Of stages: up to a node, or whole nodes, all of one size.
std::vector<int64_t> PartsSearch::sizesOf(const DeviceClass &of) const {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= of.largest; ++size)
    sizes.push_back(size);
  if (std::all_of(of.nodes.begin(), of.nodes.end(), [&](const auto &node) {
        return int64_t(node.size()) == of.largest;
      }))
    for (int64_t size = 2 * of.largest; size <= of.devices; size += of.largest)
      sizes.push_back(size);
  return sizes;
}

std::optional<PartsSearch::Kind> PartsSearch::price(int deviceClass, int64_t dp,
                                                    int64_t tp,
                                                    int64_t microbatches) {
  const auto priced = deviceClasses.price(deviceClass, dp, tp, microbatches);
  if (!priced)
    return std::nullopt;
  Kind kind;
  kind.deviceClass = deviceClass;
  kind.devices = dp * tp;
  kind.dp = dp;
  kind.tp = tp;
  kind.speed = 1 / priced->seconds;
  kind.share = priced->share;
  return kind;
}

// Kinds of stages whose tp divides `most`. Of each size the fastest degrees,
// and those with the most tp, which need least memory.
std::vector<PartsSearch::Kind> PartsSearch::kindsFor(int64_t microbatches,
                                                     int64_t most) {
  const int64_t samples = input.globalBatch / microbatches;
  std::vector<Kind> kinds;
  for (size_t c = 0; c < classes.size(); ++c)
    for (int64_t size : sizesOf(classes[c])) {
      std::vector<Kind> here; // ascending tp
      for (int64_t tp : degrees)
        if (most % tp == 0 && size % tp == 0 && samples % (size / tp) == 0 &&
            tp <= classes[c].largest &&
            (size == tp || !deviceClasses.isGiven(kDataAxis)))
          if (std::optional<Kind> kind =
                  price(int(c), size / tp, tp, microbatches))
            here.push_back(*kind);
      if (here.empty())
        continue;
      const auto fastest = std::max_element(
          here.begin(), here.end(),
          [](const Kind &a, const Kind &b) { return a.speed < b.speed; });
      kinds.push_back(*fastest);
      if (here.back().tp != fastest->tp && here.back().share > fastest->share)
        kinds.push_back(here.back());
    }
  return kinds;
}

void PartsSearch::draftAll() {
  std::vector<int64_t> devices;
  for (const DeviceClass &of : classes)
    devices.push_back(of.devices);
  const int64_t forwards = std::count_if(
      input.graph->ops.begin(), input.graph->ops.end(),
      [](const GraphOp &op) { return op.phase == Phase::Forward; });
  std::set<std::pair<int64_t, std::vector<std::array<int64_t, 3>>>> seen;
  for (int64_t m = 1; m <= input.globalBatch; ++m) {
    if (input.globalBatch % m != 0)
      continue;
    const int mostStages = int(std::min<int64_t>(
        {machine.count, forwards, kMostStages, std::max<int64_t>(1, 2 * m)}));
    double fastest = 0; // mix of any number of stages
    for (int64_t tp : degrees) {
      const std::vector<Kind> kinds = kindsFor(m, tp);
      const auto mixes = fastestMixes(devices, {kinds.begin(), kinds.end()},
                                      mostStages, kMixes);
      for (size_t stages = 1; stages < mixes.size(); ++stages)
        for (const StageMix &mix : mixes[stages]) {
          fastest = std::max(fastest, mix.speed);
          if (m > kMicrobatchesPerStage * int64_t(stages))
            continue;
          Draft draft;
          draft.microbatches = m;
          draft.seconds = double(m + int64_t(stages) - 1) / mix.speed;
          double share = 0;
          std::vector<std::array<int64_t, 3>> key;
          for (size_t k = 0; k < kinds.size(); ++k)
            for (int i = 0; i < mix.counts[k]; ++i) {
              draft.stages.push_back(kinds[k]);
              share += kinds[k].share;
              key.push_back({kinds[k].deviceClass, kinds[k].dp, kinds[k].tp});
            }
          if (share >= 1 && (limit <= 0 || draft.seconds < limit) &&
              seen.insert({m, key}).second)
            drafts.push_back(std::move(draft));
        }
    }
    // Of fewer samples kernels are no faster for each of them.
    if (limit > 0 && double(m) > limit * fastest)
      break;
  }
  std::stable_sort(
      drafts.begin(), drafts.end(),
      [](const Draft &a, const Draft &b) { return a.seconds < b.seconds; });
  drafts.resize(std::min(drafts.size(), kOrdered));
}

// Gives stages their devices; what no stage has is spare.
bool PartsSearch::place(Draft &draft) const {
  draft.pipeline = {};
  draft.pipeline.microbatches = draft.microbatches;
  draft.pipeline.stages.resize(draft.stages.size());
  std::set<int64_t> used;
  for (size_t c = 0; c < classes.size(); ++c) {
    std::vector<int64_t> sizes;
    for (const Kind &kind : draft.stages)
      if (kind.deviceClass == int(c))
        sizes.push_back(kind.devices);
    auto placed = placeStages(classes[c].nodes, sizes);
    if (!placed)
      return false;
    size_t next = 0;
    for (size_t s = 0; s < draft.stages.size(); ++s) {
      const Kind &kind = draft.stages[s];
      if (kind.deviceClass != int(c))
        continue;
      PipelineStages::Stage &stage = draft.pipeline.stages[s];
      stage.devices = std::move((*placed)[next++]);
      stage.dp = kind.dp;
      stage.tp = kind.tp;
      used.insert(stage.devices.begin(), stage.devices.end());
    }
  }
  for (int64_t device = 0; device < machine.count; ++device)
    if (!used.count(device))
      draft.pipeline.spares.push_back(device);
  return !draft.pipeline.isUniform();
}

// Of the most even cuts, with transfers, as if every stage were always busy
// once the first microbatch has come to it.
std::optional<double> PartsSearch::secondsOf(const Draft &draft) {
  Result<PipelineShape> shape =
      meshes.shapeOf(draft.pipeline, draft.microbatches);
  if (!shape.ok())
    return std::nullopt;
  const StageModel &first = *shape->meshes.front().model;
  Result<std::vector<int>> begin = balanced(first, shape->stages, *shape);
  if (!begin.ok())
    return std::nullopt;
  return steadyTimes(first, *shape, *begin, input.train).of(draft.microbatches);
}

// The order of its stages that takes least; infinite where none has a place.
void PartsSearch::order(Draft &draft) {
  const Draft given = draft;
  draft.seconds = std::numeric_limits<double>::infinity();
  const auto byClass = [](const Kind &a, const Kind &b) {
    return std::pair(a.deviceClass, -a.devices) <
           std::pair(b.deviceClass, -b.devices);
  };
  const auto bySpeed = [](const Kind &a, const Kind &b) {
    return a.speed > b.speed;
  };
  for (int way = 0; way < 4; ++way) {
    Draft next = given;
    if (way < 2)
      std::stable_sort(next.stages.begin(), next.stages.end(), byClass);
    else
      std::stable_sort(next.stages.begin(), next.stages.end(), bySpeed);
    if (way % 2 == 1)
      std::reverse(next.stages.begin(), next.stages.end());
    if (!place(next))
      continue;
    if (std::optional<double> seconds = secondsOf(next);
        seconds && *seconds < draft.seconds) {
      draft = std::move(next);
      draft.seconds = *seconds;
    }
  }
}

std::optional<PlanCandidate> PartsSearch::plan(const Draft &draft, bool quick) {
  Result<PipelineShape> shape =
      meshes.shapeOf(draft.pipeline, draft.microbatches);
  if (!shape.ok())
    return std::nullopt;
  const std::optional<std::vector<std::string>> none;
  CandidateSet set(policy, quick, none);
  set.steady = quick;
  set.add(*shape->meshes.front().model, *shape, {});
  set.improve();
  if (!quick)
    set.completeBest(1);
  const TriedPlan *best = set.best();
  if (!best || !best->plan.cost.fits())
    return std::nullopt;
  PlanCandidate found;
  found.degrees = {shape->stages, 1, 1, draft.microbatches};
  for (const PipelineStages::Stage &stage : draft.pipeline.stages) {
    found.degrees.dp = std::lcm(found.degrees.dp, stage.dp);
    found.degrees.tp = std::lcm(found.degrees.tp, stage.tp);
  }
  found.plan = best->plan;
  found.recompute = best->recompute;
  found.convertOnce = input.convertOnce;
  found.full = !quick;
  found.tried = quick ? "" : set.str(*best);
  found.stages = draft.pipeline;
  return found;
}

std::vector<PlanCandidate> PartsSearch::run(size_t most) {
  std::vector<PlanCandidate> plans;
  degrees = deviceClasses.tensorDegrees();
  draftAll();
  for (Draft &draft : drafts)
    order(draft);
  std::stable_sort(
      drafts.begin(), drafts.end(),
      [](const Draft &a, const Draft &b) { return a.seconds < b.seconds; });
  std::vector<std::pair<double, const Draft *>> quick;
  for (const Draft &draft : drafts) {
    if (quick.size() == kQuick || !std::isfinite(draft.seconds))
      break;
    if (std::optional<PlanCandidate> found = plan(draft, /*quick=*/true))
      quick.emplace_back(found->plan.cost.seconds, &draft);
  }
  std::stable_sort(
      quick.begin(), quick.end(),
      [](const auto &a, const auto &b) { return a.first < b.first; });
  for (const auto &[seconds, draft] : quick)
    if (plans.size() < kFull && (limit <= 0 || seconds < kRough * limit))
      if (std::optional<PlanCandidate> found = plan(*draft, /*quick=*/false);
          found && (limit <= 0 || found->plan.cost.seconds < limit))
        plans.push_back(std::move(*found));
  std::stable_sort(plans.begin(), plans.end(),
                   [](const PlanCandidate &a, const PlanCandidate &b) {
                     return a.plan.cost.seconds < b.plan.cost.seconds;
                   });
  plans.resize(std::min(plans.size(), most));
  return plans;
}

std::vector<PlanCandidate> searchParts(const SearchInput &input,
                                       StageMeshes &meshes, double limit,
                                       size_t most) {
  // Statistics are those of a replica's samples, which all stages would have to
  // have in common.
  if (input.cluster.count < 2 || joinsSamples(*input.graph))
    return {};
  return PartsSearch(input, meshes, limit).run(most);
}

} // namespace merak::planning
