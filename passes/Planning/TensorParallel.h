// The search for the classes to split over a tensor-parallel axis.
//
// Candidates are classes of dimensions of weights that enter a contraction (or
// a Decompose factor, as the rows of an embedding). Candidates that look alike
// (same ops around them: equal layers of a model) are decided together. Classes
// that some op must see whole (the width, because of a norm) are tried only if
// the others leave more than half of the contraction FLOPs undivided. The
// objective, in this order: least contraction FLOPs a device, least bytes sent
// a device over the whole step, least parameter bytes a device, fewest split
// classes. Every candidate is priced exactly, over forward and backward. No
// name is looked at.
#pragma once

#include "passes/Planning/Partition.h"

namespace merak::planning {

// A user's wish for a parameter: split dimension `dim` over `axis` (the first
// factor of it that divides), or, with an empty axis, leave it whole.
struct ParameterPin {
  std::string parameter;
  int dim = 0;
  std::string axis;
};

struct SearchOptions {
  std::string axis = kTensorAxis;
  int64_t size = 1;
  std::vector<ParameterPin> pins;
  // If not empty: nothing is searched, these classes are split.
  std::vector<int> only = {};
  // Up to this many groups all 2^n choices are tried; above, coordinate
  // descent from several starts.
  int bruteForceGroups = 8;
};

struct CandidateGroup {
  std::vector<int> classes;
  int64_t size = 1;    // of each class
  ClassAnchor example; // e.g. dimension 1 of "h.0.mlp.c_fc.weight"
  bool chosen = false, pinned = false;
  bool gathered = false; // some op must see these classes whole
};

struct CollectiveTotal {
  int64_t count = 0; // a microbatch, or a step if once a step
  double bytes = 0;  // sent by a device, a step
};

struct SearchReport {
  std::vector<CandidateGroup> groups;
  int64_t evaluations = 0;
  PartitionCost before, after; // nothing split over the axis, and the choice
  // By phase and kind: {"forward", "all_reduce"} -> totals over the axis.
  std::map<std::pair<std::string, std::string>, CollectiveTotal> collectives;
  // Contractions that the axis does not divide, with the reason.
  std::vector<std::string> replicated;
  std::string str() const;
};

struct SearchResult {
  Assignment assignment; // `base` and the chosen classes
  SearchReport report;
};

// `base` has the batch axes. Errors: pins that name no parameter, a dimension
// out of range, or a size the axis does not divide (all of them).
Result<SearchResult> searchTensorParallel(const Graph &graph,
                                          const Classes &classes,
                                          const Assignment &base,
                                          const SearchOptions &options);

} // namespace merak::planning
