// The collectives of in-process ranks; and what every transport checks.
#pragma once

#include "runtime/comm/inproc/InprocGroup.h"

#include <algorithm>

namespace merak::runtime {

// An all-reduce in one round: every rank gets all inputs and adds them by
// itself, as long as that sends few bytes more than parts of sums, which take
// two rounds. Sums of 16-bit types that accumulate are then rounded once.
// Transports that sum on the host agree on it, so that they give the same bits.
constexpr int64_t kSmallCollective = 16 << 10;
constexpr bool isOneRound(int64_t bytes, int64_t members) {
  return bytes * std::max<int64_t>(1, members - 2) <= kSmallCollective;
}

// One operand of one collective on one rank.
struct CollectiveRun {
  const CommSpec &spec;
  InprocGroup &group;
  int me;
  const std::atomic<bool> &abort;
  const View &input, &output;
  std::vector<char> &scratch;
  LinkEmulation *links = nullptr; // null: as fast as memory
  bool lastOperand = true;        // of its instruction
  double end = 0;                 // on emulated links
  Status failure;                 // set if the members do not agree
};

// Checks an instruction of `rank` of `size` against its operands. Returns the
// rank's index in the group, 0 for transfers.
Result<int> checkSpec(const CommSpec &spec, int rank, int size,
                      std::span<const View> inputs,
                      std::span<const View> outputs);

// Whether the operands' shapes and types suit the group's size.
Status checkCollective(const CommSpec &spec, const View &input,
                       const View &output);

// False if the world was aborted (then `failure` is ok) or the members brought
// different collectives.
bool runCollective(CollectiveRun &run);

} // namespace merak::runtime
