// Collectives whose messages may end before zeros at their end: rows of a
// table's gradient that are summed by their ids lie at the front, and how many
// there are is known when they are. Transports that cannot send less send all;
// results are the same.
#pragma once

#include "runtime/plan/plan.pb.h"

#include <cstdlib>

namespace merak {

// An attribute of a COLLECTIVE: the part of the operand that is expected to be
// sent, in (0, 1]; for predictions.
inline constexpr char kTrimAttr[] = "trim";

inline bool isTrimmed(const planpb::Instruction &instruction) {
  return instruction.attrs().count(kTrimAttr) > 0;
}
inline double sentShare(const planpb::Instruction &instruction) {
  auto found = instruction.attrs().find(kTrimAttr);
  return found == instruction.attrs().end()
             ? 1
             : std::strtod(found->second.c_str(), nullptr);
}

} // namespace merak
