// The situations S1 to S6 on clusters of 32 to 1024 devices, from one device
// that is a little slow to a whole node and one more device.
#pragma once

#include "Golden.h"

namespace merak::stragglers {

inline constexpr int kSituations = 6;
// "S4: 12.53, 12.53 and 2.57 on three nodes".
const std::string &situationName(int situation); // from 1

// 32 devices train the model 32B, more of them 70B with as many times the
// pipelines and microbatches. The situation is there once in each 64 devices.
Problem situationProblem(int situation, int64_t devices);

} // namespace merak::stragglers
