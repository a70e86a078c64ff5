// Layouts that differ between parts of the model, in the search for degrees:
// those of their frontier (LayoutSearch.h) that are planned with, in full.
#include "passes/Planning/PlanSearch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace merak::planning {

// Sums of pieces are a quarter too high or too low at most on small models, and
// without parts of tp a narrow layer has no lower degree.
constexpr double kSumsMayErr = 0.7, kWithoutParts = 0.5;
constexpr int64_t kRoughBuckets = 64;

// `roughly`: over all of tp alone, the fastest.
Result<std::vector<FoundLayout>> PlanSearch::searchMixed(const Degrees &d,
                                                         Mixed effort) {
  Result<Assignment> base = assignSamples(d, input.pinned.parts);
  if (!base.ok())
    return base.status();
  LayoutSearchOptions options;
  options.costs = costsOf(d, 0);
  const PipelineShape shape = commonShape(d);
  options.reduce = shape.reduce;
  options.microbatches = d.microbatches;
  options.inFlight = std::min(d.pp, d.microbatches);
  options.memoryBytes = double(d.pp) * input.memoryBytes;
  options.most = kMixedLayouts;
  if (effort != Mixed::Whole) {
    options.most = 1;
    options.named = options.parts = false;
    options.conversions = effort == Mixed::Rough;
    options.buckets = kRoughBuckets;
  }
  const LayoutModel *model = nullptr;
  {
    std::lock_guard lock(mixed->mutex);
    if (!mixed->model)
      mixed->model = LayoutModel::make(*input.graph, *input.classes);
    if (!mixed->model->ok())
      return mixed->model->status();
    model = &**mixed->model;
  }
  Result<LayoutFrontier> frontier = searchLayouts(*model, *base, options);
  if (!frontier.ok())
    return frontier.status();
  // Without seams it is a plan as all others are.
  if (options.conversions)
    std::erase_if(frontier->points,
                  [](const FoundLayout &point) { return point.isUniform; });
  return std::move(frontier->points);
}

const Result<std::vector<FoundLayout>> &
PlanSearch::mixedLayouts(const Degrees &d) {
  {
    std::lock_guard lock(mixed->mutex);
    if (auto known = mixed->found.find(d); known != mixed->found.end())
      return known->second;
  }
  Result<std::vector<FoundLayout>> found = searchMixed(d);
  std::lock_guard lock(mixed->mutex);
  return mixed->found.emplace(d, std::move(found)).first->second;
}

bool PlanSearch::mayWin(const Degrees &d, const FoundLayout &layout,
                        double limit) const {
  return kSumsMayErr * layout.seconds / double(d.pp) <= limit;
}

bool PlanSearch::mixedMayWin(const Degrees &d, double limit) {
  for (Mixed effort : {Mixed::WithoutConversions, Mixed::Rough}) {
    const Result<std::vector<FoundLayout>> rough = searchMixed(d, effort);
    if (rough.ok() && !rough->empty() &&
        !mayWin(d, rough->front(), limit / kWithoutParts))
      return false;
  }
  return true;
}

const FoundLayout *PlanSearch::mixedLayout(const Degrees &d,
                                           const Techniques &techniques) {
  if (techniques.mixed == 0)
    return nullptr;
  const Result<std::vector<FoundLayout>> &all = mixedLayouts(d);
  return all.ok() && size_t(techniques.mixed) <= all->size()
             ? &(*all)[size_t(techniques.mixed) - 1]
             : nullptr;
}

Result<Assignment> PlanSearch::assignMixed(const Degrees &d,
                                           const Techniques &techniques) {
  Result<Assignment> out = assignSamples(d, partsNamed(d, techniques));
  const FoundLayout *layout = mixedLayout(d, techniques);
  if (!out.ok() || !layout || !layout->seams.empty())
    return out;
  for (const Strategy::SplitClass &split : layout->classes)
    MERAK_RETURN_IF_ERROR(
        splitBy(*input.graph, *input.classes, split, /*samples=*/true, *out));
  return out;
}

PlanSearch::AxisParts PlanSearch::partsNamed(const Degrees &d,
                                             const Techniques &techniques) {
  AxisParts parts = input.pinned.parts;
  if (const FoundLayout *layout = mixedLayout(d, techniques))
    parts.insert(layout->parts.begin(), layout->parts.end());
  return parts;
}

std::vector<Strategy::SeamUse>
PlanSearch::seamsOf(const Degrees &d, const Techniques &techniques) {
  const FoundLayout *layout = mixedLayout(d, techniques);
  return layout ? layout->seams : input.pinned.seams;
}

// The fastest layouts of the pieces of a large model, whose parameters have to
// be split to have a place, may be slower than what is known already. Each mesh
// is asked by its first size of a microbatch in order of bounds.
void PlanSearch::leaveOutSlowMixed(const std::vector<Degrees> &degrees,
                                   double limit, std::vector<Bound> &bounds) {
  using Mesh = std::tuple<int64_t, int64_t, int64_t>;
  const auto meshOf = [&](const Bound &bound) {
    const Degrees &d = degrees[bound.index];
    return Mesh(d.pp, d.dp, d.tp);
  };
  std::sort(bounds.begin(), bounds.end());
  std::map<Mesh, size_t> first;
  for (const Bound &bound : bounds)
    first.try_emplace(meshOf(bound), bound.index);
  const std::vector<std::pair<Mesh, size_t>> meshes(first.begin(), first.end());
  std::vector<char> maySkip(meshes.size(), 0);
  if (std::isfinite(limit))
    share(
        meshes.size(),
        [&](size_t i) { return homeOf(degrees[meshes[i].second]); },
        [&](PlanSearch &own, size_t i) {
          maySkip[i] = !own.mixedMayWin(degrees[meshes[i].second], limit);
        });
  for (size_t i = 0; i < meshes.size(); ++i)
    if (maySkip[i])
      first.erase(meshes[i].first);
  std::erase_if(bounds, [&](const Bound &bound) {
    return !first.contains(meshOf(bound));
  });
  std::set<size_t> different;
  for (const Bound &bound : bounds)
    different.insert(bound.index);
  const std::vector<size_t> asked(different.begin(), different.end());
  share(
      asked.size(), [&](size_t i) { return homeOf(degrees[asked[i]]); },
      [&](PlanSearch &own, size_t i) { own.mixedLayouts(degrees[asked[i]]); });
  if (std::isfinite(limit))
    std::erase_if(bounds, [&](const Bound &bound) {
      const Degrees &d = degrees[bound.index];
      const FoundLayout *layout = mixedLayout(d, bound.techniques);
      return layout ? !mayWin(d, *layout, limit) : mixedLayouts(d).ok();
    });
}

} // namespace merak::planning
