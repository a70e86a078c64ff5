// Which gradients are summed over replicas beside the next step's forward pass
// (docs/DelayedGradients.md). One link carries all sums, one after the other:
// first, in the order in which they become ready, those that the backward pass
// hides, then, behind the barrier of the step, the delayed ones in the order in
// which the forward pass reads their parameters.
//
//   backward  |  2  |  1  |  0  |          forward  |  0  |  1  |  2  |
//   links           [ 2 ][ 0 ]   0 ends late          [ 1 ]  done before 1
//
// A sum that begins `left` seconds before the end of the backward pass and is
// delayed must be there `needed` seconds after the begin of the forward pass.
#pragma once

#include <vector>

namespace merak::planning {

struct ReadyGradient {
  double seconds = 0; // of its sum over replicas
  double left = 0;    // of the backward pass, when it is ready
  double needed = 0;  // of the forward pass, until its parameter is read
  bool mayWait = true;
};

// Seconds in which devices wait.
struct GradientWaits {
  double behind = 0; // for sums of the step, behind its backward pass
  double inside = 0; // for delayed sums, in the forward pass
  double both() const { return behind + inside; }
};

GradientWaits waitsOf(const std::vector<ReadyGradient> &gradients,
                      const std::vector<char> &delayed);

// By gradient, whether it is delayed: so that devices wait as little as can be,
// but for the time of one sum, and of such choices one in which no gradient
// waits without need. None where the backward pass hides all.
std::vector<char> chooseDelayed(const std::vector<ReadyGradient> &gradients);

} // namespace merak::planning
