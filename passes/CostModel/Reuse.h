// How long the operands of a plan's instructions have not been touched when
// the instruction comes: what decides which cache still holds them.
#pragma once

#include "runtime/plan/Plan.h"

#include <map>
#include <vector>

namespace merak::costmodel {

// Shares of one distance among ascending ones, together 1: all at the nearest
// below the first or beyond the last, between two of them in proportion of the
// logarithms.
std::vector<double> distanceShares(const std::vector<double> &distances,
                                   double bytes);

// Of one rank's program: two steps are gone through in the order of the calls,
// the second counts. A distance is the bytes of other memory that were touched
// since, at most the arena; the arena is looked at in pieces of at least 4 KiB.
class Reuse {
public:
  // `distances`: ascending, as Device::distances. The program must outlive
  // this.
  Reuse(const planpb::Program &program, const std::vector<double> &distances);
  // By bytes of all operands, the mean over the calls; empty for instructions
  // that touch nothing.
  std::vector<double> shares(const planpb::Instruction &instruction) const;

private:
  std::map<const planpb::Instruction *, std::vector<double>> shares_;
};

} // namespace merak::costmodel
