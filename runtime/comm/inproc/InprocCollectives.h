// The collectives of in-process ranks (private to this folder).
#pragma once

#include "runtime/comm/inproc/InprocGroup.h"

namespace merak::runtime {

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

// Whether the operands' shapes and types suit the group's size.
Status checkCollective(const CommSpec &spec, const View &input,
                       const View &output);

// False if the world was aborted (then `failure` is ok) or the members brought
// different collectives.
bool runCollective(CollectiveRun &run);

} // namespace merak::runtime
