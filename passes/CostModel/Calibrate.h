// From measured times to the rates of a device: what `merak-bench calibrate`
// writes into a cluster file.
#pragma once

#include "passes/CostModel/Cost.h"

namespace merak::costmodel {

// One measured kernel or communication. Communications have the name of the
// collective, or "transfer", and `bytes` as collectiveSeconds takes them.
struct Sample {
  std::string key; // names it for the user
  Kernel work;
  double seconds = 0;
  // Bytes between two uses of its operands; 0: as it came.
  double distance = 0;
  bool operator==(const Sample &) const = default;
};

// Rates that give back the samples: contractions as efficiencies by shape,
// others as bandwidths by size, generated kernels ("elementwise" and its
// variants) as an arithmetic rate and two bandwidths; each at all distances
// that samples have. `device` keeps its name, backend and memory. Errors: no
// sample of a contraction or of a copy.
Status fitDevice(const std::vector<Sample> &samples, Device &device);

// latency + bytes / bandwidth, fitted to the relative errors of the transfers.
Result<Link> fitLink(const std::vector<Sample> &samples);

} // namespace merak::costmodel
