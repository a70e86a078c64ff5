// Times kernels and communicators on several in-process ranks at once, as a
// step runs them: they share the machine's memory and caches.
#pragma once

#include "tools/merak-bench/Cases.h"

#include <functional>

namespace merak::bench {

struct MeasureOptions {
  int ranks = 2;
  int threads = 1;             // of each rank
  double secondsPerCase = 0.1; // at least
  std::string kernels;         // kernels.so of generated cases
};

// Seconds of one run, the lower quartile over batches. With one thread a rank
// time counts while the thread computes, so that other work on the machine
// disturbs little.
Result<double> measureKernel(const Case &one, const MeasureOptions &options);

// Seconds of one collective of `bytes` over all ranks, or of a transfer
// between the first two ("transfer").
Result<double> measureCommunication(const std::string &kind, int64_t bytes,
                                    const MeasureOptions &options);

} // namespace merak::bench
