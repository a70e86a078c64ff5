// Times kernels and communicators on several in-process ranks at once, as a
// step runs them: they share the machine's memory and caches.
#pragma once

#include "runtime/core/Backend.h"
#include "tools/merak-bench/Cases.h"

#include <functional>

namespace merak::bench {

struct MeasureOptions {
  int ranks = 2;
  int threads = 1;             // of each rank
  double secondsPerCase = 0.1; // at least
  // Bytes of other memory that a rank touches between two uses of an operand,
  // ascending.
  std::vector<int64_t> distances = hostGrid(/*quick=*/false).distances;
};

// Seconds of one run at each of the distances, the lower quartile over batches.
// With one thread a rank time counts while the thread computes, so that other
// work on the machine disturbs little.
Result<std::vector<double>> measureKernel(const Case &one,
                                          const MeasureOptions &options);

// The same of one rank on a device, where generated kernels are loaded. Runs
// follow each other in a graph, as those of a step do; where the device cannot
// capture the case, one call after the other.
Result<std::vector<double>> measureOnDevice(const Case &one,
                                            runtime::Backend &backend,
                                            const MeasureOptions &options);

double steadySeconds(); // of the steady clock
// Of the smaller ones, since what disturbs makes them longer; none is empty.
double lowerQuartile(std::vector<double> values);
// A batch of runs lasts this long, and so many count.
inline constexpr double kBatchSeconds = 2e-3;
inline constexpr int kLeastBatches = 5, kMostBatches = 400;

// Seconds of one collective of `bytes` over all ranks, or of a transfer
// between the first two ("transfer").
Result<double> measureCommunication(const std::string &kind, int64_t bytes,
                                    const MeasureOptions &options);

// How much longer a rank computes while it communicates, and the other way
// round: `one` again and again beside an all-reduce of `bytes` again and again,
// against each alone. At least 1.
struct Slowdown {
  double compute = 1, communication = 1;
};
Result<Slowdown> measureSlowdown(const Case &one, int64_t bytes,
                                 const MeasureOptions &options);

} // namespace merak::bench
