// Collectives and transfers with the values that must come out.
#pragma once

#include "runtime/comm/Communicator.h"
#include "test/unit/conformance/Harness.h"

namespace merak::conformance {

struct CommCase {
  // The row of the table, and what tells cases of a row apart.
  std::string row, name;
  runtime::CommSpec spec; // for a transfer: Send; every rank sends to the next
  planpb::DType dtype = planpb::F32;
  Shape in, out;
  MemoryLayout layout = MemoryLayout::Dense;
  bool inPlace = false;      // all_reduce: the output is the input
  bool groupOrder = false;   // the sum depends on the order
  bool severalLanes = false; // at the same time on a second stream
  // The value of input element i (row major) on a rank.
  double input(int rank, int64_t i) const;
  // The value of output element i on member `me` of the group.
  double expected(int me, int64_t i) const;
  // Before the run, in outputs.
  static constexpr double kBefore = 1;
};

// Over groups of `ranks` ranks, at least 4.
std::vector<CommCase> commCases(int ranks);

} // namespace merak::conformance
