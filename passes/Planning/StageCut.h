// Cuts the forward ops of a graph into pipeline stages.
//
// A cut is a position of the topological order; any position is legal, and its
// price is the bytes of the values that cross it. Stages are balanced by time
// (forward + backward + transfer): the heaviest one is as light as possible.
// Ops that depend on inputs and constants only and are cheap may be computed on
// every stage that needs them instead of being sent.
#pragma once

#include "passes/Planning/FactorGraph.h"

namespace merak::planning {

struct CutOp {
  std::string name;
  double seconds = 0; // forward + backward (+ recompute) of one microbatch
  std::vector<int> operands, results; // tensor ids
};
struct CutTensor {
  std::string name;
  double bytes = 0;         // of one microbatch
  double gradientBytes = 0; // sent back if it crosses; 0: no gradient
  bool available = false;   // inputs, parameters, constants: on every stage
};

struct CutProblem {
  std::vector<CutOp> ops; // topological order
  std::vector<CutTensor> tensors;
  int stages = 1;
  double secondsPerByte = 0;
  // Ops that hang on available tensors only and cost at most this much are
  // duplicated where needed; 0: none.
  double duplicateSeconds = 0;
  // User cuts: a stage begins at each of these ops (by name); empty: search.
  std::vector<std::string> begins;
};

struct StageCut {
  std::vector<int> begin; // stages + 1 positions in `ops`; stage s runs
                          // ops[begin[s] .. begin[s+1])
  std::vector<std::vector<int>> duplicated; // ops each stage computes as well
  std::vector<double> seconds;              // of each stage, with transfers
  // Values that cross the boundary between stages s and s+1.
  std::vector<std::vector<int>> crossing;
  std::vector<double> crossingBytes; // forward + gradient, per boundary
  std::string str(const CutProblem &problem) const;
};

// Errors: more stages than ops to put on them, unknown or repeated user cuts.
Result<StageCut> cutStages(const CutProblem &problem);

} // namespace merak::planning
