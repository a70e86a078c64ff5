// All that a search policy may do with the ops of one mesh: its schedules,
// recomputations, cuts and chunks, each planned (PipelinePlan.h) and kept, and
// the list schedules made for the best of them.
#pragma once

#include "passes/Planning/LeastSeconds.h"
#include "passes/Planning/PipelinePlan.h"

#include <optional>

namespace merak::planning {

// What decides the layouts of given degrees: levels of tensor-parallel overlap
// and of ZeRO, sequence parallelism, context parallelism.
struct Techniques {
  int overlap = 0, zero = 0;
  bool sequence = false, context = false;
  // Which of the layouts that differ between parts of the model
  // (LayoutSearch.h), from 1; 0: they do not differ.
  int mixed = 0;
  auto operator<=>(const Techniques &) const = default;
  // ", overlap 3, zero 1, sequence": those that are used.
  std::string str() const;
};

// How a system trains: what the search may choose from.
struct SearchPolicy {
  std::string name; // "" is merakc's own
  std::vector<std::string> schedules;
  std::vector<Schedule> concrete;     // lists that are given
  std::vector<std::string> recompute; // tried in turn
  // Tried besides on the stages found with the first of `recompute`, if those
  // recompute.
  std::vector<std::string> otherRecompute;
  std::vector<Cutter> cutters;     // each is tried; empty: cuts are searched
  StagePricer price;               // see PipelineOptions
  int chunks = 1;                  // parts of the model on each stage
  std::vector<int> otherChunks;    // tried besides, interleaved
  std::vector<int> overlap = {0};  // levels tried
  std::vector<int> zero = {0};     // levels tried (SeamLayouts.h)
  std::vector<int> sequence = {0}; // 1: sequence parallelism
  std::vector<int> context = {0};  // 1: context parallelism
  std::vector<int> mixed = {0};    // see Techniques::mixed
  std::vector<Techniques> chosen;  // not empty: of all these, those alone
  bool tensorInsideNode = true;    // tp only up to the devices of a node
  bool dataOnly = false;           // pp = tp = 1
  std::string only;                // the only axis above 1; "": any may be
  bool lists = false;              // list schedules as well (improveSchedule)
  // Besides the fastest plans, all that need less memory than what is faster.
  bool frontier = false;
};

// What planPipeline may choose from for a policy.
PipelineOptions pipelineOptions(const SearchPolicy &policy,
                                const std::string &recompute);

// No plan of a CandidateSet whose cuts are not given takes less: of those
// that compare no cuts (`quick`, or with cutters), what their only cuts take.
double leastSeconds(const SearchPolicy &policy, bool quick,
                    const LeastSeconds &least, const PipelineShape &shape);

// Cut positions of stages that begin at the named ops (opNames). Errors:
// unknown names, empty stages, a number that does not fit (all of them).
Result<std::vector<int>> namedCuts(const StageModel &model, int64_t stages,
                                   const std::vector<std::string> &begins);

// One plan that was made.
struct TriedPlan {
  PipelinePlan plan;
  std::string recompute;
  Techniques techniques;
  const StageModel *model = nullptr;
  PipelineShape shape;
  std::string considered; // the schedules compared on these stages, if any were
};

class CandidateSet {
public:
  // `quick`: a few schedules, without a search for cuts. `begins`: the given
  // cuts, by name.
  CandidateSet(const SearchPolicy &policy, bool quick,
               const std::optional<std::vector<std::string>> &begins)
      : policy(policy), quick(quick), begins(begins) {}

  // The model and what it refers to must outlive this.
  void add(const StageModel &model, const PipelineShape &shape,
           const Techniques &techniques);
  // List schedules for the most promising ones, if the policy has them.
  void improve();

  const TriedPlan *best() const; // null: `problems` says why
  // The best and the next ones that differ from it and from each other in time,
  // as many as asked for.
  std::vector<const TriedPlan *> finalists(size_t most) const;
  // Gives `most` finalists their lists, and the price by them.
  void completeBest(size_t most);
  // Those than which none is faster and needs no more memory, fastest first.
  std::vector<const TriedPlan *> frontier() const;
  // Seconds above which plans are left out, and by which part of the best one
  // that fits they may be slower; 0: none is left out.
  double limit = 0, margin = 1;
  // Schedules of many microbatches need no lists of all of them
  // (PipelineOptions::steady).
  bool steady = false;
  // Plans without a place are not looked at any further
  // (PipelineOptions::fitting).
  bool fitting = false;
  Status problems;
  int64_t evaluations = 0; // stages simulated
  // For a report: what else was tried, the best of each kind, and the schedules
  // on the chosen stages.
  std::string str(const TriedPlan &chosen) const;

private:
  std::vector<PipelinePlan> plan(const TriedPlan &like,
                                 PipelineOptions options);
  void addChunks(const TriedPlan &like, int chunks);
  void complete(TriedPlan &attempt);
  // Seconds above which a plan of this set is not worth making; 0: none.
  double limitNow() const;
  static bool better(const TriedPlan &a, const TriedPlan &b);

  const SearchPolicy &policy;
  bool quick;
  const std::optional<std::vector<std::string>> &begins;
  std::vector<TriedPlan> all; // in the order tried
};

} // namespace merak::planning
