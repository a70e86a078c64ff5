// How fast a device is on which the plan has no rank: nothing that it trains
// says so. Between two steps it computes something short that is known, as it
// did before the first step. Ranks of one process are on one machine, so this
// finds what slows down the machine's cores.
#pragma once

#include "runtime/launch/Session.h"

namespace merak::runtime {

class IdleProbe {
public:
  // `slow`: of tests, as executors have it.
  explicit IdleProbe(std::vector<SlowRequest> slow);

  // How many times as long as at first; after a step (from 1).
  double rate(int device, int64_t step);
  // How many seconds the computation takes by now.
  double seconds(int device, int64_t step);

private:
  double slowness(int device, int64_t step) const;
  double fastest(int tries);

  std::vector<SlowRequest> slow_;
  std::vector<float> values_;
  double normal_ = 0;
};

} // namespace merak::runtime
