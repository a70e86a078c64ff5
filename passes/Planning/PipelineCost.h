// What given cuts and recomputation cost under a schedule: the simulated time
// of an iteration with transfers, exposed collectives and the update, and the
// memory of each stage.
#pragma once

#include "passes/Planning/ScheduleMemory.h"
#include "passes/Planning/StageProblem.h"
#include "passes/Planning/SteadySchedule.h"

#include <functional>
#include <vector>

namespace merak::planning {

// What a stage costs in a system that keeps and updates otherwise than plans
// do. The result lives as long as the function.
using StagePricer = std::function<const StageCost &(
    const StageModel &model, const PipelineShape &shape, int begin, int end,
    Marks marks)>;

struct PipelineCost {
  double seconds = 0;
  double excessBytes = 0;        // over the limit, summed over stages
  std::vector<StageCost> stages; // per virtual stage
  std::vector<double> memory;    // per stage, bytes at the peak
  std::vector<double> busy;      // per stage, seconds
  std::vector<int> inFlight;     // per virtual stage
  double transferSeconds = 0;    // of all boundaries, one microbatch
  double updateSeconds = 0;      // the longest reduction and update
  // All stages wait for the norm of all gradients, then update.
  double finishSeconds = 0;
  // The most that a stage waits for collectives in a step, pipeline transfers
  // left out.
  double exposedSeconds = 0;
  bool fits() const { return excessBytes <= 0; }
  double fullest() const; // bytes of the fullest stage
  double bubble() const;  // mean idle fraction
};

// What a microbatch sends between virtual stages v and v + 1, which begins at
// op `at`; nothing where links are free. Between meshes of unlike sizes: what
// the busiest rank of either sends or gets, if the ranks of the sender share
// the messages evenly. No resharding takes less.
BoundaryCost boundaryOf(const StageModel &model, const PipelineShape &shape,
                        int v, int at);

// Seconds for which the ranks of virtual stage v send and get gradients of
// parameters that other stages hold too, where stages have meshes of their own:
// every holder gets the part of every other one.
double exchangeSeconds(const PipelineShape &shape, int v,
                       const std::vector<int> &begin);

// What virtual stage v costs by `price`, or by its model where it is null.
const StageCost &priceOf(const StageModel &model, const PipelineShape &shape,
                         int v, int begin, int end, Marks marks,
                         const StagePricer &price);
// The same for who asks for bytes alone (StageModel::held).
const StageCost &heldOf(const StageModel &model, const PipelineShape &shape,
                        int v, int begin, int end, Marks marks,
                        const StagePricer &price);

// What the simulator needs of given cuts and marks, and the sums of `out` that
// do not depend on a schedule.
SimulateOptions simulationOf(const StageModel &model,
                             const PipelineShape &shape, int chunks,
                             const std::vector<int> &begin,
                             const std::vector<Marks> &marks,
                             const StagePricer &price, PipelineCost &out);

// The cost of given cuts and marks.
PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const Schedule &schedule,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price = nullptr);

// The same for lists that are known.
PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const OrderedSchedule &schedule,
                          const ScheduleLists &lists,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price);

// The same of many microbatches, from few.
PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const SteadySchedule &schedule,
                          const ScheduleLists &lists,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price);

} // namespace merak::planning
