// A plan for the rates of now, given the plan that runs: what each reaction can
// reach, from the cheapest to the one that moves most state, and the best.
#pragma once

#include "passes/Stragglers/Division.h"

namespace merak::stragglers {

// What may differ from the plan that runs. In each, pipelines that cannot go on
// (a device of a stage is gone, or their layers no longer fit) leave their
// microbatches to the others.
enum class Reaction {
  None,         // the plan as it is
  Microbatches, // of each pipeline: no state moves
  Layers,       // and those of each stage, in the same groups and order
  Grouping,     // and all groups, orders and pipelines
};
const std::vector<std::string> &reactionNames(); // "none", "microbatches", ...
const std::string &nameOf(Reaction reaction);
bool parseReaction(const std::string &name, Reaction &reaction);
const std::vector<std::string> &objectiveNames(); // "steady", "filled"
bool parseObjective(const std::string &name, Objective &objective);

struct ReplanOptions {
  Reaction most = Reaction::Grouping;
  SearchOptions search;
  GroupingOptions groupings;
};

struct Reached {
  Reaction reaction = Reaction::None;
  Status status; // why there is no plan
  Plan plan;
  Score score;
  // Layers times the share of a layer's tensors that devices have to receive;
  // a pipeline has `layers` of them.
  double moved = 0;
};
struct Replanning {
  std::vector<Reached> reached; // by reaction, up to the allowed one
  size_t chosen = 0;            // the cheapest of the best
  // The shortest steady step of all groupings that were seen; kFailed: none.
  int64_t least = kFailed;
  // Proved: no plan of dp pipelines whose groups come from the groupings that
  // were considered has a shorter one. (Ranking may choose one that is filled
  // faster.)
  bool optimal = false;
  // No plan whose groups come from the groupings that were considered has a
  // shorter steady step.
  double bound = 0;

  const Reached &best() const { return reached[chosen]; }
};

// `old` is the plan that runs; its devices are the problem's. Where dp
// pipelines do not fit onto the devices that are left, or their step is far
// above the bound, plans of fewer are searched too, and uniform ones of the
// fastest nodes; what a stage always holds is taken to be the same then. The
// same problem, plan and options give the same result on any machine and with
// any number of threads. Errors: those of `check`, an old plan that would not
// be sound on normal devices, no plan at all: one sentence a reason.
Result<Replanning> replan(const Problem &problem, const Plan &old,
                          const ReplanOptions &options = {});

} // namespace merak::stragglers
