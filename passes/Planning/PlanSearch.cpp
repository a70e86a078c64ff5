#include "passes/Planning/PlanSearch.h"
#include "passes/Planning/ContextTokens.h"
#include "passes/Planning/MicrobatchLimit.h"
#include "passes/Planning/StageMeshes.h"
#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>

namespace merak::planning {

// Plans kept of the same degrees: as many as are written out and compared.
constexpr size_t kFinalists = 4;

std::vector<SearchPolicy> plainPolicies() {
  SearchPolicy data;
  data.name = "data parallel";
  data.schedules = {"1f1b"};
  data.recompute = {"none", "full"};
  data.cutters = {equalLayers};
  data.dataOnly = true;
  SearchPolicy equal = data;
  equal.name = "equal layers";
  equal.dataOnly = false;
  return {data, equal};
}

std::vector<SearchPolicy> singleAxisPolicies() {
  SearchPolicy tensor = plainPolicies().back();
  tensor.name = "tensor parallel";
  tensor.only = kTensorAxis;
  SearchPolicy pipeline = tensor;
  pipeline.name = "pipeline";
  pipeline.only = kPipelineAxis;
  return {tensor, pipeline};
}

SearchPolicy ownPolicy(const Strategy &pinned) {
  SearchPolicy policy;
  std::string overlap = pinned.tpOverlap.value_or("0");
  // No level is slower than a lower one but 0 (TwoStream.h).
  policy.overlap = overlap == "auto" ? std::vector<int>{0, 3}
                                     : std::vector<int>{overlap[0] - '0'};
  policy.zero = {int(pinned.zero.value_or(0))};
  if (pinned.zero == Strategy::kAuto)
    policy.zero = {0, 1, 2, 3};
  policy.sequence = {int(pinned.sequence.value_or(0))};
  if (pinned.sequence == Strategy::kAuto)
    policy.sequence = {0, 1};
  policy.context = {int(pinned.context.value_or(0))};
  if (pinned.context == Strategy::kAuto)
    policy.context = {0, 1};
  if (pinned.mixed == Strategy::kAuto && pinned.seams.empty() &&
      pinned.classes.empty() && pinned.parameters.empty())
    for (int n = 1; n <= int(kMixedLayouts); ++n)
      policy.mixed.push_back(n);
  std::string name = pinned.schedule.value_or("auto");
  policy.chunks =
      int(pinned.chunks.value_or(traitsOf(name).takesChunks ? 2 : 1));
  // Lists of an earlier search are all there is; a schedule of the user's own,
  // which need not say everything, is priced as 1F1B.
  const bool searched = pinned.lists && name == "auto";
  if ((pinned.lists && !searched) || name.ends_with(".json"))
    name = searchedSchedules(policy.chunks > 1).front();
  if (searched)
    policy.concrete = {*pinned.lists};
  else if (name != "auto")
    policy.schedules = {name};
  else
    policy.schedules = searchedSchedules(policy.chunks > 1);
  policy.lists = name == "auto" && !searched;
  if (policy.lists && policy.chunks == 1 && !pinned.chunks)
    policy.otherChunks = {2, 4};
  policy.recompute = {pinned.recompute.value_or("auto")};
  if (policy.recompute[0] == "auto") {
    policy.recompute.push_back("none");
    policy.otherRecompute = {"full", "0.75", "0.5", "0.25"};
  }
  return policy;
}

PlanSearch::PlanSearch(const SearchInput &input)
    : input(input), together(joinsSamples(*input.graph)) {}

PlanSearch::~PlanSearch() = default;

void PlanSearch::limitMemory(double bytes) {
  input.memoryBytes = bytes;
  meshes.reset();
  for (const std::unique_ptr<PlanSearch> &helper : helpers)
    helper->limitMemory(bytes);
}

StageMeshes &PlanSearch::stageMeshes() {
  const bool pins = !input.pinned.pipelines.empty();
  const bool isOther = pins || !input.machine.kindOf.empty();
  if (!meshes)
    meshes = std::make_unique<StageMeshes>(
        input, isOther ? input.machine : input.cluster, pins ? nullptr : this);
  return *meshes;
}

PipelineShape PlanSearch::shapeOf(const Degrees &d,
                                  const Techniques &techniques) {
  const std::vector<PipelineStages> &pinned = input.pinned.pipelines;
  if (pinned.empty() && input.machine.kindOf.empty())
    return commonShape(d);
  Result<PipelineShape> shape =
      stageMeshes().shapeOf(pinned.empty() ? uniformStages(d) : pinned.front(),
                            d.microbatches, techniques);
  // Of several pipelines each has a share of them.
  if (shape.ok() && !pinned.empty())
    shape->microbatches =
        int(pinned.front().microbatches.value_or(d.microbatches));
  return shape.ok() ? std::move(*shape) : commonShape(d);
}

Result<std::vector<Degrees>> PlanSearch::degrees() const {
  int64_t devices = input.cluster.count;
  auto pinned = [&](const char *axis) -> int64_t {
    auto it = input.pinned.mesh.find(axis);
    return it == input.pinned.mesh.end() ? 0 : it->second;
  };
  int64_t product = 1;
  for (const char *axis : {kPipelineAxis, kDataAxis, kTensorAxis})
    product *= std::max<int64_t>(1, pinned(axis));
  bool allPinned =
      pinned(kPipelineAxis) && pinned(kDataAxis) && pinned(kTensorAxis);
  if (devices % product != 0 || (allPinned && product != devices))
    return Status::error(fmt::format(
        "mesh needs {} ranks, which does not fit the {} of the cluster",
        product, devices));
  std::vector<Degrees> all;
  Status problems;
  for (int64_t pp = 1; pp <= devices; ++pp)
    for (int64_t tp = 1; tp <= devices / pp; ++tp) {
      if (devices % (pp * tp) != 0)
        continue;
      Degrees d{pp, devices / (pp * tp), tp, 1};
      auto agrees = [&](const char *axis, int64_t degree) {
        return pinned(axis) == 0 || pinned(axis) == degree;
      };
      if (!agrees(kPipelineAxis, d.pp) || !agrees(kDataAxis, d.dp) ||
          !agrees(kTensorAxis, d.tp))
        continue;
      if (!pinned(kTensorAxis) && tp > input.cluster.perNode)
        continue;
      if (input.globalBatch % d.dp != 0) {
        problems.merge(Status::error(
            fmt::format("global batch {} does not divide over dp={}",
                        input.globalBatch, d.dp)));
        continue;
      }
      int64_t samples = input.globalBatch / d.dp;
      if (input.pinned.microbatch) {
        int64_t size = *input.pinned.microbatch;
        if (samples % size != 0) {
          problems.merge(Status::error(fmt::format(
              "microbatch {} does not divide the {} samples of a replica "
              "(global batch {}, dp={})",
              size, samples, input.globalBatch, d.dp)));
          continue;
        }
        d.microbatches = samples / size;
        all.push_back(d);
        continue;
      }
      // Few microbatches first: of equals the one with fewer is taken.
      for (int64_t m = 1; m <= samples; ++m) {
        int64_t size = samples / m;
        bool round = (size & (size - 1)) == 0 || m == 1;
        if (samples % m != 0 || !round || m > kMicrobatchesPerStage * pp)
          continue;
        d.microbatches = m;
        all.push_back(d);
      }
    }
  if (all.empty())
    return problems;
  return all;
}

// Techniques make their seams out of classes without any; only a strategy's own
// seams have classes of their own.
std::vector<Strategy::SplitClass>
PlanSearch::classesOf(const Degrees &d, const Techniques &techniques) {
  std::vector<Strategy::SplitClass> splits;
  auto add = [&](const Classes &classes, const Result<Assignment> &assignment) {
    if (!assignment.ok())
      return;
    const std::vector<ClassAnchor> anchors = anchorsOf(*input.graph, classes);
    for (const auto &[cls, axes] : assignment->axes)
      if (!anchors[size_t(cls)].tensor.empty())
        splits.push_back({anchors[size_t(cls)], axes});
  };
  SearchReport unused;
  if (techniques.mixed > 0) {
    if (Result<const SeamLayouts *> layouts = seamLayouts(d, techniques);
        layouts.ok())
      add((*layouts)->empty() ? *input.classes : (*layouts)->classes(),
          assign(d, techniques));
  } else if (input.pinned.seams.empty())
    add(*input.classes, assign(d, techniques.context, unused));
  else if (Result<const SeamLayouts *> layouts = seamLayouts(d, techniques);
           layouts.ok())
    add((*layouts)->classes(), assign(d, techniques));
  return splits;
}

Result<const SeamLayouts *>
PlanSearch::seamLayouts(const Degrees &d, const Techniques &techniques) {
  // Where the layouts of a replica say where seams are, they depend on its
  // degrees.
  Techniques all = techniques; // at all levels of overlap
  all.overlap = 0;
  const Degrees of = techniques.mixed > 0 || !isSharedByDegrees() ? d
                     : techniques.sequence ? Degrees{0, 0, d.tp, samplesOf(d)}
                                           : Degrees();
  const FoundLayout *layout = mixedLayout(d, techniques);
  if (techniques.mixed > 0 && !layout)
    return mixedLayouts(d).ok()
               ? Status::error("there are fewer layouts that differ between "
                               "parts of the model")
               : mixedLayouts(d).status();
  const auto make = [&]() -> Result<SeamLayouts> {
    Strategy strategy = input.pinned;
    if (layout) {
      strategy.seams = layout->seams;
      strategy.classes = layout->classes;
    }
    strategy.zero = techniques.zero;
    strategy.sequence = techniques.sequence;
    SearchReport unused;
    Result<Assignment> base = techniques.sequence
                                  ? assign(d, techniques.context, unused)
                                  : Assignment();
    if (!base.ok())
      return base.status();
    return SeamLayouts::make(*input.graph, *input.classes, strategy,
                             input.batched, *base);
  };
  const Result<SeamLayouts> &layouts = common->seams.of({of, all}, make);
  if (!layouts.ok())
    return layouts.status();
  return &*layouts;
}

Result<Assignment> PlanSearch::assign(const Degrees &d,
                                      const Techniques &techniques) {
  SearchReport unused;
  Result<Assignment> unified = techniques.mixed > 0
                                   ? assignMixed(d, techniques)
                                   : assign(d, techniques.context, unused);
  if (!unified.ok())
    return unified.status();
  Result<const SeamLayouts *> layouts = seamLayouts(d, techniques);
  if (!layouts.ok())
    return layouts.status();
  return (*layouts)->assign(*unified);
}

Result<Assignment> PlanSearch::assignSamples(const Degrees &d,
                                             const AxisParts &parts) const {
  Assignment out;
  MERAK_RETURN_IF_ERROR(assignBatch(*input.graph, *input.classes, input.batched,
                                    batchAxes(d), out));
  for (const AxisSize &axis : inParts(kTensorAxis, d.tp, parts))
    out.mesh.push_back(axis);
  return out;
}

std::vector<AxisSize> PlanSearch::inParts(const char *axis, int64_t degree,
                                          const AxisParts &of) {
  auto known = of.find(axis);
  if (known == of.end())
    return {{axis, degree}};
  std::vector<AxisSize> parts;
  for (size_t part = 0; part < known->second.size(); ++part)
    parts.push_back({partOf(axis, part), known->second[part]});
  return parts;
}

std::vector<AxisSize> PlanSearch::batchAxes(const Degrees &d) const {
  std::vector<AxisSize> axes = partsOf(kDataAxis, d.dp);
  axes.insert(axes.begin(), {kMicrobatchAxis, d.microbatches});
  return axes;
}

// What a strategy file names. The batch is split by its axes.
Status PlanSearch::splitPinned(const Degrees &d, Assignment &out) const {
  Status status;
  for (const auto &[axis, degree] :
       {std::pair(kDataAxis, d.dp), std::pair(kTensorAxis, d.tp)})
    if (out.sizeOf(axis) != degree)
      status.merge(Status::error(
          fmt::format("parts of {} in the strategy make {}, the mesh has {}={}",
                      axis, out.sizeOf(axis), axis, degree)));
  // With seams the strategy's classes are those of their sides.
  if (input.pinned.seams.empty())
    for (const Strategy::SplitClass &split : input.pinned.classes)
      status.merge(splitBy(*input.graph, *input.classes, split,
                           /*samples=*/false, out));
  return status;
}

// The classes that tp splits: those of tokens, or what the search takes.
Result<SearchResult> PlanSearch::searchSplits(const Assignment &base,
                                              int64_t tp, bool context) const {
  SearchOptions search;
  search.axis = kTensorAxis;
  search.size = tp;
  if (context) {
    Result<int> tokens = contextTokens(*input.graph, *input.classes, base, tp);
    if (!tokens.ok())
      return tokens.status();
    search.only = {*tokens};
  }
  for (const auto &[name, axes] : input.pinned.parameters)
    for (size_t dim = 0; dim < axes.dims.size(); ++dim)
      search.pins.push_back(
          {name, static_cast<int>(dim),
           hasAxisOn(axes.dims[dim], kTensorAxis) ? kTensorAxis : ""});
  return searchTensorParallel(*input.graph, *input.classes, base, search);
}

Degrees PlanSearch::chosenBy(const Degrees &d) {
  if (firstOfTp.empty())
    if (Result<std::vector<Degrees>> all = degrees(); all.ok())
      for (const Degrees &other : *all)
        firstOfTp.try_emplace(other.tp, other);
  return firstOfTp.try_emplace(d.tp, d).first->second;
}

Result<const PlanSearch::Choice *> PlanSearch::choose(const Degrees &d,
                                                      bool context) {
  const auto make = [&]() -> Result<Choice> {
    Assignment batch;
    MERAK_RETURN_IF_ERROR(assignBatch(*input.graph, *input.classes,
                                      input.batched, batchAxes(chosenBy(d)),
                                      batch));
    Result<SearchResult> found = searchSplits(batch, d.tp, context);
    if (!found.ok())
      return found.status();
    std::vector<int> chosen;
    for (const auto &[cls, axes] : found->assignment.axes)
      if (hasAxisOn(axes, kTensorAxis))
        chosen.push_back(cls);
    return Choice(std::move(chosen), found->report);
  };
  const Result<Choice> &chosen = common->choices.of({d.tp, context}, make);
  if (!chosen.ok())
    return chosen.status();
  return &*chosen;
}

// Classes that a strategy file names, else the search's choice.
Result<Assignment> PlanSearch::assign(const Degrees &d, bool context,
                                      SearchReport &report) {
  Assignment out;
  MERAK_RETURN_IF_ERROR(assignBatch(*input.graph, *input.classes, input.batched,
                                    batchAxes(d), out));
  for (const AxisSize &axis : partsOf(kTensorAxis, d.tp))
    out.mesh.push_back(axis);
  MERAK_RETURN_IF_ERROR(splitPinned(d, out));
  if (d.tp <= 1 || !input.pinned.classes.empty())
    return out;
  Result<const Choice *> chosen = choose(d, context);
  if (!chosen.ok())
    return chosen.status();
  const std::vector<std::string> axes = out.axesOn(kTensorAxis);
  for (int cls : (*chosen)->first) {
    std::vector<std::string> &of = out.axes[cls];
    of.insert(of.end(), axes.begin(), axes.end());
  }
  report = (*chosen)->second;
  return out;
}

StageCostOptions PlanSearch::costsOf(const Degrees &d, int overlap) const {
  StageCostOptions costs;
  costs.cluster = input.cluster;
  costs.tp = d.tp;
  costs.microbatches = d.microbatches;
  costs.train = input.train;
  costs.statePerParameter = input.statePerParameter;
  costs.updateKernel = input.updateKernel;
  costs.updateTraffic = input.updateTraffic;
  costs.overlap = overlap;
  costs.reduction = input.reduction;
  costs.convertOnce = input.convertOnce;
  return costs;
}

Techniques PlanSearch::usable(const Degrees &d, Techniques techniques) {
  if (d.tp <= 1) {
    techniques.overlap = 0;
    techniques.sequence = techniques.context = false;
  }
  if (d.dp <= 1)
    techniques.zero = 0;
  return techniques;
}

Result<const PlanSearch::Sharding *>
PlanSearch::sharding(const Degrees &given, const Techniques &asked) {
  Degrees d = given;
  const Techniques techniques = usable(given, asked);
  // Without seams and classes of one's own replicas differ in nothing.
  const bool shares = isSharedByDegrees() && techniques.mixed == 0;
  const Degrees common = inCommon(d);
  Degrees key = d;
  if (shares && techniques.zero == 0) {
    key = common;
    if (auto it = first->find(key); it != first->end())
      d = it->second;
  }
  auto &[status, known] = shardings[{key, techniques}];
  if (known) {
    known->lastUse = ++uses;
    return known.get();
  }
  if (!status.ok())
    return status;
  Stopwatch watch(times.shardings);
  auto made = std::make_shared<Sharding>();
  if (shares && techniques.zero > 0) {
    Techniques whole = techniques;
    whole.zero = 0;
    if (auto it = shardings.find({common, whole}); it != shardings.end())
      made->like = it->second.second;
  }
  if (std::optional<StageProblem> problem = problemByFew(d, techniques)) {
    made->problem = std::move(*problem);
    ++times.byFew;
  } else {
    Result<StageProblem> whole = problemOf(d, techniques);
    if (!whole.ok()) {
      status = whole.status();
      return status;
    }
    made->problem = std::move(*whole);
  }
  if (d.tp > 1 && techniques.mixed == 0 && input.pinned.classes.empty())
    if (Result<const Choice *> choice = choose(d, techniques.context);
        choice.ok())
      made->report = (*choice)->second;
  made->model = std::make_unique<StageModel>(
      made->problem, made->like ? made->like->model.get() : nullptr);
  made->least.emplace(*made->model);
  made->lastUse = ++uses;
  known = std::move(made);
  return known.get();
}

Result<Assignment> PlanSearch::layoutsOf(const Degrees &d,
                                         const Techniques &asked) {
  const Techniques techniques = usable(d, asked);
  Result<const SeamLayouts *> seams = seamLayouts(d, techniques);
  if (!seams.ok())
    return seams.status();
  SearchReport unused;
  Result<Assignment> unified =
      techniques.mixed > 0 ? assignMixed(d, techniques)
      : techniques.overlap > 0 && submicrobatchesByAxis(d)
          ? halve(d, techniques.context)
          : assign(d, techniques.context, unused);
  return unified.ok() ? (*seams)->assign(*unified) : unified;
}

Result<StageProblem> PlanSearch::problemOf(const Degrees &d,
                                           const Techniques &techniques) {
  Result<Assignment> assignment = layoutsOf(d, techniques);
  if (!assignment.ok())
    return assignment.status();
  const Classes &classes = (*seamLayouts(d, techniques))->classes();
  if (!applied.outcome || applied.classes != &classes ||
      !(applied.assignment == *assignment))
    applied = {
        &classes, *assignment, apply(*input.graph, classes, *assignment), {}};
  if (!applied.outcome->ok())
    return applied.outcome->status();
  return makeStageProblem(*input.graph, applied.assignment, **applied.outcome,
                          costsOf(d, techniques.overlap), &applied.listed);
}

const EqualLayers *PlanSearch::equalLayers() {
  if (!input.layers)
    input.layers = EqualLayers::find(*input.graph, *input.classes);
  return input.layers->get();
}

bool PlanSearch::fewFor(const Degrees &d, const Techniques &techniques) {
  // What a strategy names may be a layer that is left out.
  if (!isSharedByDegrees() || techniques.mixed > 0)
    return false;
  const EqualLayers *layers = equalLayers();
  if (!layers)
    return false;
  if (!few) {
    SearchInput ofFew = input;
    ofFew.graph = &layers->graph();
    ofFew.classes = &layers->classes();
    ofFew.batched = layers->tensorsOf(input.batched);
    ofFew.layers = nullptr;
    few = std::make_unique<PlanSearch>(ofFew);
    few->common = commonOfFew;
  }
  if (d.tp <= 1)
    return true;
  Result<const Choice *> whole = choose(d, techniques.context);
  if (!whole.ok())
    return false;
  const auto make = [&]() -> Result<Choice> {
    std::optional<std::vector<int>> chosen = layers->classesOf((*whole)->first);
    if (!chosen)
      return Status::error("layers that are left out split others");
    return Choice(std::move(*chosen), SearchReport());
  };
  if (commonOfFew->choices.of({d.tp, techniques.context}, make).ok())
    return true;
  input.layers = nullptr;
  return false;
}

std::optional<StageProblem>
PlanSearch::problemByFew(const Degrees &d, const Techniques &techniques) {
  if (!fewFor(d, techniques))
    return std::nullopt;
  const Result<StageProblem> &problem = commonOfFew->problems.of(
      {d, techniques}, [&] { return few->problemOf(d, techniques); });
  return problem.ok() ? equalLayers()->expand(*problem) : std::nullopt;
}

// Two submicrobatches of a microbatch need samples, or tokens, to divide.
Status PlanSearch::checkOverlap(const Degrees &d,
                                const Techniques &techniques) {
  if (techniques.overlap == 0)
    return {};
  if (!submicrobatchesByAxis(d))
    return {};
  // Of many equal layers a few say it.
  PlanSearch &asked = fewFor(d, techniques) ? *few : *this;
  const Result<Assignment> &submicrobatches =
      asked.halve(d, techniques.context);
  if (submicrobatches.ok())
    return {};
  int64_t samples = samplesOf(d);
  return Status::error(fmt::format(
      "tensor-parallel overlap {} splits a microbatch into two "
      "submicrobatches, found "
      "{} sample{} a microbatch (global batch {}, dp={}, {} microbatches): {}",
      techniques.overlap, samples, samples == 1 ? "" : "s", input.globalBatch,
      d.dp, d.microbatches, submicrobatches.status().str()));
}

const Result<Assignment> &PlanSearch::halve(const Degrees &d, bool context) {
  std::optional<Result<Assignment>> &known = submicrobatches[{d, context}];
  if (!known) {
    SearchReport unused;
    known = assign(d, context, unused);
    if (known->ok())
      known =
          samplesOf(d) % 2 == 0
              ? splitBatch(*input.graph, *input.classes, input.batched, **known)
              : splitTokens(*input.graph, *input.classes, **known);
  }
  return *known;
}

// With tp = 1 there is nothing to hide, with dp = 1 nothing to divide: planned
// once, without.
std::vector<Techniques>
PlanSearch::techniquesOf(const Degrees &d, const SearchPolicy &policy) const {
  if (!policy.chosen.empty())
    return policy.chosen;
  const std::vector<int> none = {0};
  std::vector<Techniques> all;
  for (int overlap : d.tp <= 1 ? none : policy.overlap)
    for (int zero : d.dp <= 1 ? none : policy.zero)
      for (int sequence : d.tp <= 1 ? none : policy.sequence)
        for (int context : d.tp <= 1 ? none : policy.context)
          all.push_back({overlap, zero, sequence > 0, context > 0});
  // These are layouts of their own, of whole microbatches.
  for (int n : d.dp *d.tp <= 1 ? none : policy.mixed)
    if (n > 0)
      for (int zero : d.dp <= 1 ? none : policy.zero)
        all.push_back({.zero = zero, .mixed = n});
  return all;
}

PlanCandidate PlanSearch::plan(const Degrees &d, const SearchPolicy &policy,
                               bool quick, double limit, bool rough) {
  Stopwatch watch(!policy.name.empty() ? times.plain
                  : quick              ? times.quick
                                       : times.full);
  PlanCandidate best;
  best.degrees = d;
  best.policy = policy.name;
  best.convertOnce = input.convertOnce;
  best.full = !quick && !rough;
  Status problems;
  CandidateSet candidateSet(policy, quick, input.pinned.stageBegins);
  candidateSet.limit = limit;
  candidateSet.steady = !policy.frontier && !policy.price;
  const bool limited = limit > 0 && std::isfinite(limit);
  candidateSet.fitting = limited && rough && !policy.frontier;
  if (!quick && policy.cutters.empty() && !policy.frontier)
    candidateSet.margin = kWorthKeeping;
  auto tryWith = [&](const Techniques &techniques) {
    if (Status status = checkOverlap(d, techniques); !status.ok()) {
      problems.merge(status);
      return;
    }
    Result<const Sharding *> shard = sharding(d, techniques);
    if (!shard.ok()) {
      problems.merge(shard.status());
      return;
    }
    candidateSet.add(*(*shard)->model, shapeOf(d, techniques), techniques);
  };
  for (const Techniques &techniques : techniquesOf(d, policy))
    tryWith(techniques);
  candidateSet.improve();
  if (best.full)
    candidateSet.completeBest(kFinalists);
  evaluated += candidateSet.evaluations;
  problems.merge(candidateSet.problems);
  std::vector<const TriedPlan *> found =
      candidateSet.finalists(quick ? 1 : kFinalists);
  if (policy.frontier)
    for (const TriedPlan *tried : candidateSet.frontier())
      if (std::find(found.begin(), found.end(), tried) == found.end())
        found.push_back(tried);
  best.noPlace = !found.empty() && found.front()->plan.noPlace;
  if (found.empty() || best.noPlace) {
    best.problem = problems.ok() ? "nothing to plan" : problems.str();
    best.leftOut = limited;
    return best;
  }
  auto take = [&](const TriedPlan &tried, PlanCandidate &into) {
    into.plan = tried.plan;
    into.recompute = tried.recompute;
    into.techniques = tried.techniques;
    if (!quick)
      into.tried = candidateSet.str(tried);
  };
  std::vector<PlanCandidate> all(found.size(), best);
  for (size_t i = 0; i < found.size(); ++i)
    take(*found[i], all[i]);
  best = std::move(all.front());
  best.others.assign(std::make_move_iterator(all.begin() + 1),
                     std::make_move_iterator(all.end()));
  return best;
}

PlanCandidate PlanSearch::refit(const PlanCandidate &like) {
  PlanCandidate out = like;
  out.others.clear();
  Result<const Sharding *> shard = sharding(like.degrees, like.techniques);
  if (!shard.ok()) {
    out.problem = shard.status().str();
    return out;
  }
  const Schedule &schedule = like.plan.schedule;
  PipelineOptions options;
  options.schedules.clear();
  if (schedule.name == "auto")
    options.concrete = {schedule};
  else
    options.schedules = {schedule.name};
  options.chunks = schedule.chunks;
  options.begin = like.plan.begin;
  out.recompute = options.recompute;
  out.problem = "nothing fits";
  // Parts of one stage get equal shares of its memory, whatever they need.
  for (double share : {1.0, 1.05, 1.1, 1.2, 1.4}) {
    Status status;
    PipelineShape shape = shapeOf(like.degrees, like.techniques);
    shape.memoryBytes *= share;
    for (StageMesh &mesh : shape.meshes)
      mesh.memoryBytes *= share;
    for (PipelinePlan &found :
         planSchedules(*(*shard)->model, shape, options, status)) {
      evaluated += found.evaluations;
      found.cost.excessBytes = 0;
      if ((input.memoryBytes <= 0 ||
           found.cost.fullest() <= input.memoryBytes) &&
          (!out.problem.empty() ||
           found.cost.seconds < out.plan.cost.seconds)) {
        out.problem.clear();
        out.plan = std::move(found);
      }
    }
    if (options.chunks == 1)
      break;
  }
  return out;
}

bool PlanSearch::better(const PlanCandidate &a, const PlanCandidate &b) {
  if (a.problem.empty() != b.problem.empty())
    return a.problem.empty();
  const PipelineCost &x = a.plan.cost, &y = b.plan.cost;
  if (x.excessBytes != y.excessBytes)
    return x.excessBytes < y.excessBytes;
  return x.seconds < y.seconds * (1 - 1e-9);
}

std::vector<PlanCandidate> PlanSearch::search(const SearchPolicy &policy,
                                              size_t inFull) {
  std::vector<PlanCandidate> all;
  Result<std::vector<Degrees>> every = degrees();
  if (!every.ok())
    return all;
  // More stages than ops have no plan: of several degrees these are none.
  const int64_t most = std::count_if(
      input.graph->ops.begin(), input.graph->ops.end(),
      [](const GraphOp &op) { return op.phase == Phase::Forward; });
  const bool bounded = std::any_of(every->begin(), every->end(),
                                   [&](auto &d) { return d.pp <= most; });
  std::vector<Degrees> eligible;
  for (const Degrees &d : *every) {
    // Where the degree is given there is no other to choose.
    bool outside = policy.tensorInsideNode &&
                   !input.pinned.mesh.contains(kTensorAxis) &&
                   d.tp > input.cluster.perNode;
    const int64_t alone = policy.only == kTensorAxis ? d.tp : d.pp;
    bool other = (policy.dataOnly && (d.pp > 1 || d.tp > 1)) ||
                 (!policy.only.empty() && alone != input.cluster.count);
    if (!outside && !other && (!bounded || d.pp <= most))
      eligible.push_back(d);
  }
  all = quickPlans(eligible, policy,
                   policy.cutters.empty() && every->size() > 1, inFull);
  std::stable_sort(all.begin(), all.end(), better);
  planInFull(all, inFull, policy);
  std::stable_sort(all.begin(), all.end(), better);
  return all;
}

std::vector<PlanCandidate>
finalists(const std::vector<PlanCandidate> &candidates, size_t most) {
  std::vector<PlanCandidate> all;
  auto add = [&](const PlanCandidate &candidate) {
    if (candidate.full && candidate.fits())
      all.push_back(candidate);
  };
  for (const PlanCandidate &candidate : candidates) {
    add(candidate);
    for (const PlanCandidate &other : candidate.others)
      add(other);
  }
  std::stable_sort(all.begin(), all.end(), PlanSearch::better);
  all.resize(std::min(all.size(), most));
  for (PlanCandidate &candidate : all)
    candidate.others.clear();
  return all;
}

} // namespace merak::planning
