#include "runtime/core/LearningRate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace merak::runtime {

double learningRate(const planpb::Optimizer &optimizer, int64_t step) {
  using planpb::Optimizer;
  if (optimizer.schedule() == Optimizer::CONSTANT)
    return optimizer.lr();
  if (step < optimizer.warmup())
    return optimizer.lr() * double(step + 1) / double(optimizer.warmup() + 1);
  const double length =
      std::max<double>(1, double(optimizer.total() - optimizer.warmup()));
  const double progress =
      std::clamp(double(step - optimizer.warmup()) / length, 0.0, 1.0);
  const double fall = optimizer.schedule() == Optimizer::LINEAR
                          ? 1 - progress
                          : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return optimizer.lr() *
         (optimizer.min_factor() + (1 - optimizer.min_factor()) * fall);
}

} // namespace merak::runtime
