#include "test/unit/report/MachineCosts.h"

#include <algorithm>

using namespace merak::planpb;

namespace merak::report {

double MachineCosts::computeSeconds(const Program &program,
                                    const Instruction &inst, int) const {
  return std::max({launchSeconds, inst.flops() / flopsPerSecond,
                   instructionBytes(program, inst) / bytesPerSecond});
}

double MachineCosts::transferSeconds(const Program &program,
                                     const Instruction &inst, int, int) const {
  return linkLatencySeconds + messageBytes(program, inst) / linkBytesPerSecond;
}

double MachineCosts::collectiveSeconds(const Program &program,
                                       const Instruction &inst,
                                       const std::vector<int> &ranks) const {
  if (ranks.size() < 2)
    return 0;
  // Ring: each of n - 1 rounds passes on one n-th; an all-reduce is a
  // reduce-scatter followed by an all-gather.
  double n = static_cast<double>(ranks.size()), rounds = n - 1;
  double bytes = messageBytes(program, inst) * rounds / n;
  if (inst.collective() == Instruction::ALL_REDUCE) {
    rounds *= 2;
    bytes *= 2;
  } else if (inst.collective() == Instruction::BROADCAST) {
    bytes = messageBytes(program, inst);
  }
  return rounds * linkLatencySeconds + bytes / linkBytesPerSecond;
}

} // namespace merak::report
