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

// Bytes of other memory that a rank touches between two uses of an operand: in
// pairs around the capacities of a second-level cache of 2 MiB, of the share of
// a last-level one that a core of a large server has, and of the whole of it,
// since between them times change at once, not bit by bit.
inline constexpr int64_t kDistances[] = {1 << 20,  3 << 20,   20 << 20,
                                         48 << 20, 128 << 20, 384 << 20};

// Seconds of one run at each of the distances, the lower quartile over batches.
// With one thread a rank time counts while the thread computes, so that other
// work on the machine disturbs little.
Result<std::vector<double>> measureKernel(const Case &one,
                                          const MeasureOptions &options);

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
