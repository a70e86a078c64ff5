// The search for the degrees of a mesh and all that follows from them: every
// (pp, dp, tp, microbatch) of the cluster's size that agrees with what the
// user pinned is priced by the plan it leads to (PipelinePlan.h). The plain
// ways to train are always among the candidates.
//
//   sharding and op times          per (tp, samples of a microbatch)
//   stages, recomputation, schedule per candidate: quickly for all, then in
//                                  full for the best ones
#pragma once

#include "passes/Planning/CandidateSet.h"
#include "passes/Planning/EqualLayers.h"
#include "passes/Planning/LayoutSearch.h"
#include "passes/Planning/LeastSeconds.h"
#include "passes/Planning/OnceForEach.h"
#include "passes/Planning/SeamLayouts.h"
#include "passes/Planning/SearchTimes.h"
#include "passes/Planning/StageCosts.h"
#include "passes/Planning/TensorParallel.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace merak::planning {

// Pure data parallelism; tensor parallelism inside the node with equal layers
// and 1F1B, without and with full recomputation.
std::vector<SearchPolicy> plainPolicies();
// Tensor parallelism alone, and a pipeline alone, as equal layers have them.
std::vector<SearchPolicy> singleAxisPolicies();

// A plan that is slower than the best by more than this part is not one of the
// next best, with which the best is compared when it is written.
inline constexpr double kWorthKeeping = 1.05;

// Layouts that differ between parts of the model that are planned with at each
// degrees, most.
inline constexpr size_t kMixedLayouts = 3;

// Sums over microbatches are read in each but the first, which with so many no
// longer counts.
inline constexpr int64_t kManyMicrobatches = 16;

class StageMeshes;

struct SearchInput {
  const Graph *graph = nullptr;
  const Classes *classes = nullptr;
  std::vector<int> batched; // tensors with a batch dimension
  costmodel::Cluster cluster;
  Strategy pinned;
  // Where `cluster` only stands for them: the devices of pinned.pipelines,
  // whose common mesh it is, or those of several kinds, of which it has the
  // fastest.
  costmodel::Cluster machine;
  int64_t globalBatch = 1;
  bool train = true;
  double statePerParameter = 2;
  std::string updateKernel = "adamw_update"; // see StageCostOptions
  double updateTraffic = 4;
  double memoryBytes = 0;     // of a device; 0: not limited
  bool convertOnce = false;   // see StageCostOptions
  ReductionOptions reduction; // of gradients over replicas
  // Plan all degrees, even where it is certain that others are faster.
  bool exhaustive = false;
  // Of the graph: stage problems are made of few of them where that is the
  // same. Null: there are none, or none are wanted; nothing: a search looks for
  // them.
  std::optional<std::shared_ptr<const EqualLayers>> layers;
  // Shardings that a thread keeps while it looks for the most promising
  // degrees; the others are made again when they are asked for.
  size_t kept = 48;
};

struct PlanCandidate {
  Degrees degrees;
  std::string policy; // name
  std::string recompute;
  Techniques techniques;
  PipelinePlan plan;
  bool convertOnce = false; // see SearchInput
  bool full = false;        // planned in full, not only quickly
  std::string problem;      // no plan: why
  std::string tried;        // lines: what else was planned with these degrees
  // No plan, since each takes longer than the limit, or has a stage without a
  // place.
  bool leftOut = false, noPlace = false;
  // Planned on a graph whose split ops are decomposed (passes/Staging/Planner).
  bool decomposed = false;
  std::vector<PlanCandidate> others; // next best with these degrees
  // By quick plans: those worth planning in full; empty: all.
  std::vector<Techniques> promising;
  // Of stages on meshes of their own, which the degrees are common multiples
  // of.
  std::optional<PipelineStages> stages;
  bool fits() const { return problem.empty() && plan.cost.fits(); }
};

class PlanSearch {
public:
  explicit PlanSearch(const SearchInput &input);
  ~PlanSearch();

  // Degrees that agree with the pins and divide the batch. Errors: no mesh of
  // the cluster's size does (all reasons).
  Result<std::vector<Degrees>> degrees() const;
  // The best plan of a policy with the given degrees. `quick`: without a search
  // for cuts. `limit`: seconds from which on a plan is not wanted; 0: none.
  // `rough`: schedules of many microbatches have no lists and a price from few
  // (PipelineOptions::steady); such a plan is not one in full.
  PlanCandidate plan(const Degrees &degrees, const SearchPolicy &policy,
                     bool quick, double limit = 0, bool rough = false);
  // The same of several degrees, on all threads.
  std::vector<PlanCandidate> plans(const std::vector<Degrees> &degrees,
                                   const SearchPolicy &policy, bool quick);
  // The same stages and schedule: they recompute what the limit asks for.
  PlanCandidate refit(const PlanCandidate &like);
  // What a device has from here on; what was priced before stays as it was.
  void limitMemory(double bytes);
  // The order of search().
  static bool better(const PlanCandidate &a, const PlanCandidate &b);
  SearchTimes times; // so far
  // Plans simulated so far, without list schedules.
  int64_t evaluations() const { return evaluated; }
  // Best first; what does not fit comes last. At most `inFull` are planned in
  // full, and only those are certain to be in order. Where so many fit, degrees
  // with which no plan is as fast are left out.
  std::vector<PlanCandidate> search(const SearchPolicy &policy,
                                    size_t inFull = 6);

  // The sharding for a tp degree with this batch.
  struct Sharding {
    SearchReport report;
    StageProblem problem;
    std::unique_ptr<StageModel> model;
    std::optional<LeastSeconds> least;    // of the model
    std::shared_ptr<const Sharding> like; // of the same ops, stored whole
    int64_t lastUse = 0;                  // see keepLatest
  };
  Result<const Sharding *> sharding(const Degrees &degrees,
                                    const Techniques &techniques);
  // The same made for these degrees alone; that of sharding() is of the first
  // degrees that have it in common.
  Result<const Sharding *> shardingFor(const Degrees &degrees,
                                       const Techniques &techniques) {
    exact = std::make_unique<PlanSearch>(input);
    return exact->sharding(degrees, techniques);
  }
  // The layouts of these degrees, their classes being those of seamLayouts(),
  // with submicrobatches where they are positions.
  Result<Assignment> layoutsOf(const Degrees &degrees,
                               const Techniques &techniques);
  // Without submicrobatches of microbatches, and without seams. `context`: tp
  // splits tokens, not weights.
  Result<Assignment> assign(const Degrees &degrees, bool context,
                            SearchReport &report);
  // The same with seams; its classes are those of seamLayouts().
  Result<Assignment> assign(const Degrees &degrees,
                            const Techniques &techniques);
  Result<const SeamLayouts *> seamLayouts(const Degrees &degrees,
                                          const Techniques &techniques);
  // The seams of a plan as a strategy names them, with those of the user.
  std::vector<Strategy::SeamUse> seamsOf(const Degrees &degrees,
                                         const Techniques &techniques);
  // The same as a strategy names it.
  std::vector<Strategy::SplitClass> classesOf(const Degrees &degrees,
                                              const Techniques &techniques);
  // Whether submicrobatches are positions of kSubmicrobatchAxis, not
  // microbatches, and how.
  bool submicrobatchesByAxis(const Degrees &d) const {
    return together || samplesOf(d) % 2 != 0;
  }
  // The axes that samples are split over, and an axis or its parts, as pinned.
  std::vector<AxisSize> batchAxes(const Degrees &degrees) const;
  using AxisParts = std::map<std::string, std::vector<int64_t>>;
  static std::vector<AxisSize> inParts(const char *axis, int64_t degree,
                                       const AxisParts &parts);
  std::vector<AxisSize> partsOf(const char *axis, int64_t degree) const {
    return inParts(axis, degree, input.pinned.parts);
  }
  // Parts of axes as the strategy of a plan names them.
  AxisParts partsNamed(const Degrees &degrees, const Techniques &techniques);
  // What prices of these degrees are made with.
  StageCostOptions costsOf(const Degrees &degrees, int overlap) const;
  // Of pinned stages as their meshes are, and of devices of several kinds with
  // prices of these.
  PipelineShape shapeOf(const Degrees &degrees, const Techniques &techniques);
  // Of input.machine, or of input.cluster where that is all.
  StageMeshes &stageMeshes();
  // Of stages on input.cluster. None are faster.
  PipelineShape commonShape(const Degrees &degrees) const {
    return makePipelineShape(input.cluster, degrees, input.memoryBytes,
                             input.reduction);
  }

private:
  // With tp = 1 there is nothing to hide, with dp = 1 nothing to store in
  // parts.
  static Techniques usable(const Degrees &degrees, Techniques techniques);
  int64_t samplesOf(const Degrees &d) const { // of a microbatch
    return input.globalBatch / (d.dp * d.microbatches);
  }
  const Result<Assignment> &halve(const Degrees &degrees, bool context);
  // The classes that tp splits, for all batch degrees.
  using Choice = std::pair<std::vector<int>, SearchReport>;
  Result<const Choice *> choose(const Degrees &degrees, bool context);
  Result<StageProblem> problemOf(const Degrees &degrees,
                                 const Techniques &techniques);
  // Whether few of many equal layers may stand for all of them: `few` is made
  // then, and splits over tp what all would.
  bool fewFor(const Degrees &degrees, const Techniques &techniques);
  // The same by few of many equal layers; none where it cannot be.
  std::optional<StageProblem> problemByFew(const Degrees &degrees,
                                           const Techniques &techniques);
  const EqualLayers *equalLayers(); // null: none
  // Samples over the axes of the batch, and nothing over tp yet.
  Result<Assignment> assignSamples(const Degrees &degrees,
                                   const AxisParts &parts) const;
  // Layouts that differ between parts of the model, worth planning with; the
  // fastest alone, without lower degrees of tp, and as if conversions between
  // layouts took no time, which is most of the work.
  enum class Mixed { Whole, Rough, WithoutConversions };
  Result<std::vector<FoundLayout>> searchMixed(const Degrees &degrees,
                                               Mixed effort = Mixed::Whole);
  const Result<std::vector<FoundLayout>> &mixedLayouts(const Degrees &degrees);
  const FoundLayout *mixedLayout(const Degrees &degrees,
                                 const Techniques &techniques);
  // Of a strategy without seams: what each class is split over.
  Result<Assignment> assignMixed(const Degrees &degrees,
                                 const Techniques &techniques);
  Status checkOverlap(const Degrees &degrees, const Techniques &techniques);
  Status splitPinned(const Degrees &degrees, Assignment &out) const;
  Result<SearchResult> searchSplits(const Assignment &base, int64_t tp,
                                    bool context) const;
  // The techniques that a policy tries with these degrees.
  std::vector<Techniques> techniquesOf(const Degrees &degrees,
                                       const SearchPolicy &policy) const;
  // What no plan of given degrees and techniques can do without, whatever part
  // of the parameters replicas store.
  struct Bound {
    double seconds = 0;
    bool misfits = false;  // not even without activations
    size_t index = 0;      // of the degrees
    Techniques techniques; // and the other levels of ZeRO and overlap
    bool rough = false;    // of other degrees with more samples a microbatch
    // If it is not: of levels of ZeRO, by what is known of them before they
    // have shardings. Infinite: no plan fits.
    std::map<Techniques, double> ofLevel;
    bool operator<(const Bound &other) const {
      return std::tuple(misfits, seconds, index, techniques) <
             std::tuple(other.misfits, other.seconds, other.index,
                        other.techniques);
    }
  };
  // By the shardings of `like`, which may be the degrees themselves.
  void setBound(const Degrees &degrees, const Degrees &like,
                const SearchPolicy &policy, bool quick, Bound &bound);
  // Whether replicas and stages have the same shardings whatever their number,
  // and ZeRO changes nothing but what is stored.
  bool isSharedByDegrees() const {
    return input.pinned.classes.empty() && input.pinned.seams.empty() &&
           input.pinned.stored.empty();
  }
  // Whether a sample of few takes no less time than one of many.
  bool isFasterOnMore() const {
    return std::all_of(input.cluster.kinds.begin(), input.cluster.kinds.end(),
                       [](auto &kind) { return kind.isFasterOnMore(); });
  }
  // One for each of the degrees and each combination of their techniques.
  std::vector<Bound> roughBounds(const std::vector<Degrees> &degrees,
                                 const SearchPolicy &policy, bool quick);
  // The same at all levels of ZeRO and overlap that a policy has; those of
  // overlap, which have layouts in common, one after the other.
  std::vector<Techniques> levelsOf(const Degrees &degrees,
                                   const Techniques &techniques,
                                   const SearchPolicy &policy) const;
  // All there is to bound, without bounds.
  std::vector<Bound> withTechniques(const std::vector<Degrees> &degrees,
                                    const SearchPolicy &policy) const;
  // Where layouts that differ between parts of the model are looked for, which
  // takes as long as dozens of bounds while their own bounds say little: the
  // meshes that are the fastest with one layout everywhere, and of each the
  // fastest sizes of a microbatch (indices). `fastest` comes first and may name
  // degrees several times.
  static std::vector<std::vector<size_t>>
  meshesToMix(const std::vector<Degrees> &degrees,
              const std::vector<size_t> &fastest);
  // Whether a plan of a layout that differs between parts of the model, or of
  // any at these degrees, could take less than `limit`.
  bool mayWin(const Degrees &degrees, const FoundLayout &layout,
              double limit) const;
  bool mixedMayWin(const Degrees &degrees, double limit);
  void leaveOutSlowMixed(const std::vector<Degrees> &degrees, double limit,
                         std::vector<Bound> &bounds);
  // `sums` of the same mesh, whose parameters are stored whole or as ZeRO-1
  // does, as at a level.
  LeastSeconds asStored(const Degrees &degrees, const Techniques &level,
                        const LeastSeconds &sums) const;
  // Of meshes that have no sharding in parts yet; null: unknown.
  const LeastSeconds::Stored *messagesOf(const Degrees &degrees,
                                         const Techniques &level) const;
  void findMessages(const std::vector<Degrees> &degrees,
                    const SearchPolicy &policy);
  bool cannotWin(const Degrees &degrees, const Techniques &techniques,
                 const SearchPolicy &policy, bool quick, double limit);
  // Plans at all levels that can be of use.
  std::vector<PlanCandidate> planLevels(const Degrees &degrees,
                                        const Bound &bound,
                                        const SearchPolicy &policy, bool quick,
                                        double limit);
  static PlanCandidate joined(std::vector<PlanCandidate> all, double limit);
  // Replaces those of the next ones that are rough, and of all others those of
  // the same shardings; false if none was.
  bool refine(std::span<Bound> next, std::span<Bound> all,
              const std::vector<Degrees> &degrees, const SearchPolicy &policy,
              bool quick);
  std::vector<PlanCandidate> quickPlans(const std::vector<Degrees> &degrees,
                                        const SearchPolicy &policy, bool quick,
                                        size_t most);
  void planInFull(std::vector<PlanCandidate> &all, size_t count,
                  const SearchPolicy &policy);
  // Calls work(search, i) for all i below `count`, on all threads: each has a
  // search of its own, and takes first what has the home of something that it
  // did before, so that what they share is made once. What is found depends on
  // neither.
  void share(size_t count, const std::function<size_t(size_t)> &home,
             const std::function<void(PlanSearch &, size_t)> &work);
  // Drops all shardings but so many, those that were asked for last.
  void keepLatest(size_t most);
  // What a sharding without seams and classes of its own depends on: tp, the
  // samples of a microbatch and, up to kManyMicrobatches, the microbatches.
  Degrees inCommon(const Degrees &d) const {
    return {0, std::min(d.microbatches, kManyMicrobatches), d.tp, samplesOf(d)};
  }
  // Degrees of one number have shardings in common.
  size_t homeOf(const Degrees &degrees);

  SearchInput input;
  bool together = false;               // see joinsSamples
  std::unique_ptr<StageMeshes> meshes; // of pinned stages
  int64_t evaluated = 0;
  std::vector<std::unique_ptr<PlanSearch>> helpers; // of the other threads
  std::unique_ptr<PlanSearch> exact;                // see shardingFor
  std::unique_ptr<PlanSearch> few;                  // of the few layers
  std::map<Degrees, size_t> homes;                  // by inCommon()
  std::map<size_t, size_t> threadOf;                // by home
  // The first degrees of the same tp, by which the classes are chosen that it
  // splits: whoever asks first, in whatever search of this input.
  Degrees chosenBy(const Degrees &degrees);
  std::map<int64_t, Degrees> firstOfTp;
  // By degrees and whether tp splits tokens: what submicrobatches the tokens or
  // samples, if they can be halved.
  std::map<std::pair<Degrees, bool>, std::optional<Result<Assignment>>>
      submicrobatches;
  std::map<std::tuple<Degrees, Techniques>,
           std::pair<Status, std::shared_ptr<Sharding>>>
      shardings;
  int64_t uses = 0; // of them
  // By mesh and techniques without levels of ZeRO and overlap: what parameters
  // in parts take there.
  std::map<std::pair<Degrees, Techniques>, LeastSeconds::Stored> storedParts;
  // By tp and techniques without levels of ZeRO and overlap: what so many
  // replicas send of parameters in parts. Of all threads; written before they
  // begin.
  struct Messages {
    LeastSeconds::Stored of;
    int64_t replicas = 1;
  };
  using MessagesOf = std::map<std::pair<int64_t, Techniques>, Messages>;
  std::shared_ptr<MessagesOf> messages = std::make_shared<MessagesOf>();
  // The first degrees of each home, for which what they have in common is made
  // by whichever thread, and made again when it was dropped. Of all threads;
  // written before they begin.
  using FirstDegrees = std::map<Degrees, Degrees>; // by inCommon()
  std::shared_ptr<FirstDegrees> first = std::make_shared<FirstDegrees>();
  // What depends on little of the degrees; of all threads.
  struct Common {
    // By tp and whether it splits tokens: classes chosen, for all batch
    // degrees.
    OnceForEach<std::pair<int64_t, bool>, Result<Choice>> choices;
    OnceForEach<std::pair<Degrees, Techniques>, Result<SeamLayouts>> seams;
    // As `shardings`, which are dropped and made again; of the few layers.
    OnceForEach<std::pair<Degrees, Techniques>, Result<StageProblem>> problems;
  };
  std::shared_ptr<Common> common = std::make_shared<Common>();
  std::shared_ptr<Common> commonOfFew = std::make_shared<Common>();
  // The latest one of a sharding: another level of overlap has the same.
  struct Applied {
    const Classes *classes = nullptr;
    Assignment assignment;
    std::optional<Result<Outcome>> outcome;
    ListedKernels listed;
  };
  Applied applied;
  // Layouts that differ between parts of the model; of all threads.
  struct MixedLayouts {
    std::mutex mutex;
    std::optional<Result<LayoutModel>> model;
    std::map<Degrees, Result<std::vector<FoundLayout>>> found;
  };
  std::shared_ptr<MixedLayouts> mixed = std::make_shared<MixedLayouts>();
};

// The plans that fit of all that was planned in full, fastest first.
std::vector<PlanCandidate>
finalists(const std::vector<PlanCandidate> &candidates, size_t most);

// Everything merakc has.
SearchPolicy ownPolicy(const Strategy &pinned);

// Lines for the user: one a stage, with its time, memory and what it sends.
std::string describeStages(const StageModel &model, const PipelineShape &shape,
                           const PipelinePlan &plan);
// Why nothing fits: the stage that lacks most, its bytes and largest tensors,
// and the least change that would fit, found by the same search.
Status explainMisfit(PlanSearch &search, const SearchInput &input,
                     const PlanCandidate &closest);

// Lines of a report: the best candidates, the plain ones, and why each lost.
std::string describe(const std::vector<PlanCandidate> &candidates,
                     double memoryBytes);

} // namespace merak::planning
