// Cuts a step into pipeline stages, chooses what each recomputes and the
// schedule: together, by simulated iteration time within the memory of a
// device.
//
//   for each schedule:
//     cuts = the lightest heaviest stage; then, while the time falls:
//       local moves of the cuts; after each, every stage recomputes as little
//       as its own free memory allows (the first ranks of recomputation)
//   the least time wins; what does not fit loses to what does
#pragma once

#include "passes/Planning/Cuts.h"
#include "passes/Planning/PipelineCost.h"

#include <algorithm>
#include <optional>

namespace merak::planning {

enum class CutRule {
  Time,   // simulated iteration time
  MinMax, // the heaviest stage is as light as possible
};
struct PipelineOptions {
  // Names; of equally good ones the first is taken.
  std::vector<std::string> schedules = {"1f1b"};
  std::vector<Schedule> concrete; // tried besides
  int chunks = 1; // parts of the model on a stage, of several stages
  // "none", "full", "auto", or a ratio for Merak's rule (Recompute.h).
  std::string recompute = "auto";
  CutRule cut = CutRule::Time;
  Cutter cutter;                         // instead of a search
  std::optional<std::vector<int>> begin; // stages + 1 positions: given cuts
  StagePricer price;                     // null: StageModel::cost
  int64_t budget = 500'000;              // simulated actions of each schedule
  // Schedules of many microbatches are priced from fewer (SteadySchedule.h);
  // the plans have no lists of them.
  bool steady = false;
  // Plans that certainly take longer are left out (LeastSeconds.h); 0: none.
  double limit = 0;
  // What has a stage without a place is priced no further: others fit.
  bool fitting = false;
};

// Parts of the model on each of so many stages.
inline int chunksOn(int64_t stages, const PipelineOptions &options) {
  return stages > 1 ? options.chunks : 1;
}

struct PipelinePlan {
  Schedule schedule;
  std::vector<int> begin;   // virtual stages + 1 positions
  std::vector<Marks> marks; // per virtual stage
  PipelineCost cost;
  // A stage takes more memory than its devices have; that is all that is known
  // (PipelineOptions::fitting).
  bool noPlace = false;
  int64_t evaluations = 0;
  std::vector<char> recomputed(const StageModel &model,
                               const PipelineShape &shape) const; // per op
  // Anything at all.
  bool recomputes() const {
    return std::any_of(marks.begin(), marks.end(),
                       [](const Marks &of) { return !(of == Marks{}); });
  }
};

// Errors: fewer ops than stages; no schedule is defined for the shape (each
// with its reason).
Result<PipelinePlan> planPipeline(const StageModel &model,
                                  const PipelineShape &shape,
                                  const PipelineOptions &options);

// The best plan under each of the schedules, in their order; `status` gets the
// reasons of those that have none.
std::vector<PipelinePlan> planSchedules(const StageModel &model,
                                        const PipelineShape &shape,
                                        const PipelineOptions &options,
                                        Status &status);

// Makes the lists of a plan that has none (PipelineOptions::steady), and prices
// it by them. `options` are those that it was planned with.
Status completePlan(const StageModel &model, const PipelineShape &shape,
                    const PipelineOptions &options, PipelinePlan &plan);

// Replaces the schedule of a plan by the best of all named ones and of list
// schedules (AutoSchedule.h) for its stages if that is faster and needs no
// memory that is not there. True if so. `effort`: see AutoProblem;
// `considered`: the comparison in lines.
bool improveSchedule(const StageModel &model, const PipelineShape &shape,
                     PipelinePlan &plan, int64_t effort = 2'000'000,
                     std::string *considered = nullptr);

} // namespace merak::planning
