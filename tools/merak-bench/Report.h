// What people are told of a calibration.
#pragma once

#include "tools/merak-bench/Links.h"

namespace merak::bench {

// How well the device's rates give back what was measured, class by class.
void report(const std::vector<costmodel::Sample> &samples,
            const costmodel::Device &device);

// The links, and how far the formulas of collectives are from what was
// measured; `cluster` has the links.
void report(const MeasuredLinks &links, const costmodel::Cluster &cluster);

} // namespace merak::bench
