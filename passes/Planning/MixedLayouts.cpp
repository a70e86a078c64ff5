// Layouts that differ between parts of the model, in the search for degrees:
// those of their frontier (LayoutSearch.h) that are planned with, in full.
#include "passes/Planning/PlanSearch.h"

#include <algorithm>

namespace merak::planning {

Result<std::vector<FoundLayout>> PlanSearch::searchMixed(const Degrees &d) {
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
  if (!layoutModel)
    layoutModel = LayoutModel::make(*input.graph, *input.classes);
  if (!layoutModel->ok())
    return layoutModel->status();
  Result<LayoutFrontier> frontier =
      searchLayouts(**layoutModel, *base, options);
  if (!frontier.ok())
    return frontier.status();
  // Without seams it is a plan as all others are.
  std::erase_if(frontier->points,
                [](const FoundLayout &point) { return point.seams.empty(); });
  return std::move(frontier->points);
}

const Result<std::vector<FoundLayout>> &
PlanSearch::mixedLayouts(const Degrees &d) {
  auto known = mixed.find(d);
  if (known == mixed.end())
    known = mixed.emplace(d, searchMixed(d)).first;
  return known->second;
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

} // namespace merak::planning
