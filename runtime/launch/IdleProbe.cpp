#include "runtime/launch/IdleProbe.h"

#include <algorithm>
#include <chrono>

namespace merak::runtime {

// A fraction of a millisecond: what a scheduler takes away for longer than that
// does not count, since the fastest try does.
constexpr size_t kValues = 4096;
constexpr int kPasses = 64, kTries = 3, kFirstTries = 20;

IdleProbe::IdleProbe(std::vector<SlowRequest> slow)
    : slow_(std::move(slow)), values_(kValues, 1),
      normal_(fastest(kFirstTries)) {}

double IdleProbe::fastest(int tries) {
  double best = 0;
  for (int i = 0; i < tries; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int pass = 0; pass < kPasses; ++pass)
      for (float &value : values_)
        value = value * 0.5f + 0.5f; // which 1 stays
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    best = i == 0 ? took : std::min(best, took);
  }
  return best;
}

double IdleProbe::slowness(int device, int64_t step) const {
  double factor = 1;
  for (const SlowRequest &slow : slow_)
    if (slow.device == device && step > slow.from && step <= slow.to)
      factor *= slow.factor;
  return factor;
}

double IdleProbe::rate(int device, int64_t step) {
  return std::max(1.0, fastest(kTries) / normal_ * slowness(device, step));
}

double IdleProbe::seconds(int device, int64_t step) {
  return std::min(normal_, fastest(kFirstTries)) * slowness(device, step);
}

} // namespace merak::runtime
