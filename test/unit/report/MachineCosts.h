// A machine of five numbers, for tests that compute times by hand.
#pragma once

#include "runtime/report/Costs.h"

namespace merak::report {

// An instruction takes the larger of arithmetic and memory time, at least
// `launchSeconds`. A transfer takes latency plus bytes over bandwidth; a
// collective of n members the time of a ring.
struct MachineCosts : Costs {
  double flopsPerSecond = 0;
  double bytesPerSecond = 0;
  double launchSeconds = 0;
  double linkLatencySeconds = 0;
  double linkBytesPerSecond = 0;

  MachineCosts() = default;
  MachineCosts(double flops, double bytes, double launch, double latency,
               double bandwidth)
      : flopsPerSecond(flops), bytesPerSecond(bytes), launchSeconds(launch),
        linkLatencySeconds(latency), linkBytesPerSecond(bandwidth) {}

  double computeSeconds(const planpb::Program &program,
                        const planpb::Instruction &instruction,
                        int rank) const override;
  double collectiveSeconds(const planpb::Program &program,
                           const planpb::Instruction &instruction,
                           const std::vector<int> &ranks) const override;
  double transferSeconds(const planpb::Program &program,
                         const planpb::Instruction &instruction, int from,
                         int to) const override;

  // Two cores with AVX2, ranks in one process.
  static MachineCosts cpu() { return {60e9, 10e9, 1e-6, 5e-6, 5e9}; }
};

} // namespace merak::report
