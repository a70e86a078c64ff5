// Chooses a schedule: simulates every named one and list schedules of several
// preferences, and takes the fastest that fits into the memory. So `auto` is
// never worse than a named schedule on the costs it was given.
#pragma once

#include "passes/Planning/ListSchedule.h"

#include <functional>

namespace merak::planning {

struct AutoProblem {
  // Stages, microbatches, chunks, who recomputes, P and U. The backward is
  // split in all candidates (W follows its B where a schedule has no W). Where
  // the last stage should recompute, candidates that do not do so there are
  // considered too: the schedule then has no R on it.
  ScheduleOptions shape;
  SimulateOptions costs; // per (virtual) stage; B is the gradient of inputs
  // Activation sets a stage may hold at once, as in ListOptions; 0: no bound.
  int sets = 0;
  std::vector<double> memoryLimit; // bytes per stage, or one for all
  // Another reason why a schedule cannot be taken; "": none.
  std::function<std::string(const Schedule &)> refuses;
  // Actions in all list schedules together, above which fewer are made.
  int64_t effort = 2'000'000;
  // Names to compare; empty: all that the shape allows, and the list.
  std::vector<std::string> names;
};

struct AutoCandidate {
  std::string name; // of the schedule; "list ..." with its parameters
  double seconds = 0, idle = 0;
  std::vector<int> inFlight;
  std::vector<double> peakBytes;
  // Why it cannot be taken; empty: it fits. Of a list also that it takes longer
  // than another one, then that is all that is known of it.
  std::string misfit;
};

struct AutoChoice {
  Schedule schedule; // "auto" unless makeSchedule gives the same by its name
  Timeline timeline; // recorded
  size_t chosen = 0;
  std::vector<AutoCandidate> candidates; // named ones first
  // A table of the named candidates and the best list schedule; `*` marks the
  // one that was chosen.
  std::string str() const;
};

// Errors: nothing fits (every candidate with its reason).
Result<AutoChoice> makeAuto(const AutoProblem &problem);

} // namespace merak::planning
