// The search for pipelines that share the microbatches of a step as the rates
// and kinds of their devices say (docs/Stragglers.md, docs/Parts.md), so that
// one with slower devices trains fewer of them.
//
//   replicas       of a plan of one mesh, each on the devices that it has
//   there:
//                  dp pipelines of pp stages of tp devices; on several kinds
//                  those that are alike are one pipeline with a dp of its own
//   classes        a pipeline on each class of devices, with degrees of its own
//                  (ClassPipelines.h)
//   microbatches   of as many or fewer samples as fit
//   cuts           those that there are without rates, with which no state
//                  moves; or as even as each pipeline's own rates let them be
//   shares         the longest pipeline is done first
//                  (passes/Stragglers/StageLayers.h)
//   the best       planned as all plans are, and shared again by what that says
#pragma once

#include "passes/Planning/PlanSearch.h"
#include "passes/Planning/Replicas.h"

namespace merak::planning {

// Each pipeline has programs of its own: of more replicas none are made.
inline constexpr int64_t kMostPipelines = 16;

struct SharesQuestion {
  // Of plans of one mesh with two replicas or more; microbatches do not matter.
  std::vector<Degrees> degrees;
  // Where the parts begin on the stages of the only mesh; empty: unknown.
  std::vector<int> begin;
  bool onlyThese = false; // no other cuts
  // Whether a replica that makes nothing faster may be left out.
  bool leavesOut = false;
  // Whether pipelines may have degrees of their own, by class of devices.
  bool classes = false;
  // Seconds of what else was found: on devices of several kinds, and of
  // classes, nothing is planned that certainly takes longer. 0: not known.
  double limit = 0;
};

struct SharedPlan {
  // Of the longest pipeline; seconds are those of the step, with the sums over
  // pipelines, microbatches those of all.
  PlanCandidate plan;
  std::vector<PipelineStages> pipelines;
  bool movesLayers = true; // from where they are without rates
  double sumSeconds = 0;   // of gradients over pipelines
  // "9 + 9 + 5 microbatches, layers as they are", "6 on pp=1,dp=8,tp=1 + 2 on
  // pp=2,dp=4,tp=1 microbatches, layers cut for each pipeline"
  std::string str() const;
  // Whether the pipelines are replicas of one mesh.
  bool haveOneMesh() const;
};

// What is decided for these pipelines, as if their file had been given.
Strategy strategyOf(const Strategy &pinned, const SharedPlan &plan,
                    int64_t globalBatch);

// The search in two parts, of which the first needs no other search's plans: it
// may run beside that which finds them. What is found does not depend on how
// low the limit was meanwhile.
class DraftedShares {
public:
  // Prices what pipelines could share, as sums of their ops say, under the
  // question's limit. input.cluster has the devices and their rates, of which
  // `meshes` prices stages; both have to outlive this.
  DraftedShares(const SearchInput &input, StageMeshes &meshes,
                const SharesQuestion &question);
  ~DraftedShares();
  // The most promising, planned as all plans are; at most `most`, the best
  // first; what moves nothing comes before what is hardly faster. `limit`: as
  // the question's, and not above it.
  std::vector<SharedPlan> plans(double limit, size_t most);

private:
  struct Impl;
  std::unique_ptr<Impl> impl; // null: nothing can be shared
};

// Both parts.
inline std::vector<SharedPlan> searchShares(const SearchInput &input,
                                            StageMeshes &meshes,
                                            const SharesQuestion &question,
                                            size_t most) {
  return DraftedShares(input, meshes, question).plans(question.limit, most);
}

} // namespace merak::planning
