// The learning rate of a step, as the plan's optimizer says.
#pragma once

#include "runtime/plan/plan.pb.h"

namespace merak::runtime {

// `step` counts from 0. Warm-up reaches the full rate at step `warmup`; from
// there the rate falls to lr * min_factor at step `total` and stays.
double learningRate(const planpb::Optimizer &optimizer, int64_t step);

} // namespace merak::runtime
