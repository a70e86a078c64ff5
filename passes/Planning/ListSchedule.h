// A schedule from simulation: at every moment each free stage starts the first
// action that is ready, in an order of preference, under a limit of memory.
// With F, R, B and W as separate actions this beats the fixed rules: the
// recomputation and the weight gradients fill the waits, whatever the stages
// and transfers cost. Microbatches go through every action of a chunk 0 first.
#pragma once

#include "passes/Planning/ScheduleSimulate.h"

#include <limits>

namespace merak::planning {

enum class Preference { // first to last
  RecomputeFirst,       // B, R with its gradient, F, R without, W
  ForwardFirst,         // B, F, R with its gradient, R without, W
  WeightsEarly,         // B, R with its gradient, W, F, R without
  WeightsFirst,         // W, B, R with its gradient, F, R without
};

struct ListOptions {
  ScheduleOptions shape; // P and U as asked for, W always
  SimulateOptions costs; // B is the gradient of inputs alone
  Preference preference = Preference::RecomputeFirst;
  // Forwards a virtual stage may be ahead of its backwards; empty: as many as
  // there are virtual stages from here on.
  std::vector<int> inFlight;
  // Activation sets materialised at once on a virtual stage: from R to W, on
  // one without R from F to W, where `inFlight` comes in addition; 0: no bound.
  int sets = 1;
  // Bytes of each stage (or one for all), with `costs.memory`; empty: no bound.
  std::vector<double> memoryLimit;
  // Seconds: a list that certainly takes longer is given up.
  double limit = std::numeric_limits<double>::infinity();
};

// What a virtual stage may have at once by ListOptions: microbatches between F
// and B, activation sets.
struct ListBounds {
  static constexpr int kNone = std::numeric_limits<int>::max();
  int inFlight = 1, sets = 0;
};

// The bounds under which a list comes out the same: those that all it started
// had to keep, and up to those that held something up.
struct ListScope {
  struct Part {
    ListBounds least, most = {ListBounds::kNone, ListBounds::kNone};
  };
  std::vector<Part> parts; // by virtual stage
  // Of options that differ in `inFlight` and `sets` alone.
  bool covers(const ListOptions &options) const;
};

// Errors: a stage that cannot hold one microbatch of each chunk (with the
// bytes); stages that wait for each other without end (with how far they got);
// a list that takes longer than the limit. `scope`: what other options have the
// same result, error or not.
Result<Schedule> listSchedule(const ListOptions &options,
                              ListScope *scope = nullptr);

// Forwards before the first backward so that the transfers of each boundary
// are hidden: one more microbatch for each cycle F+B they take, less what W
// hides: W_s = 1 + sum over the boundaries from s on of
// 1 + max(0, ceil((cf + cb - W) / (F + B + W))). With equal stages a cycle then
// takes as long as the slowest stage or link. `slack` is added per boundary.
std::vector<int> transferWarmup(int stages, int microbatches,
                                const SimulateOptions &costs, int slack = 0);

} // namespace merak::planning
