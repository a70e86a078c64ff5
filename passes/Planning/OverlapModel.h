// The time of a tensor-parallel transformer layer whose microbatch runs as two
// halves, the all-reduce of one under the computation of the other. One stream
// computes and one communicates, both in order; a wait holds the computation
// until one all-reduce has ended. (Lai et al., 2023, Merak, doi
// 10.1109/TPDS.2023.3247001)
#pragma once

#include <vector>

namespace merak::planning {

// Seconds of a whole microbatch: attention and MLP each up to the partial
// output, the join after each (bias, dropout, residual), and one all-reduce.
// The backward has the same form with the times of the backward.
struct LayerTimes {
  double attention = 0, mlp = 0, join = 0, allReduce = 0;
};

// One step of the two streams.
struct StreamOp {
  enum Kind { Compute, Start, Wait } kind = Compute;
  double seconds = 0; // Compute, Start
  int collective = 0; // Start, Wait: number of the all-reduce
};
double runStreams(const std::vector<StreamOp> &ops);

// Level 0: no halves. Level 2: two halves inside a layer. Level 3: the halves
// are joined only after the last layer. Other levels: empty.
std::vector<StreamOp> layerProgram(int level, int layers,
                                   const LayerTimes &times);

// Seconds of one layer in the middle of many:
//   0: A + M + 2D + 2C                          (C: one all-reduce)
//   2: (A + max(A,C) + 2 max(M+D,C) + max(D,C) + D) / 2
//   3: max(A+D, C) + max(M+D, C)
double steadyLayer(int level, const LayerTimes &times);

} // namespace merak::planning
