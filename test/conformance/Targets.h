// What the conformance suite is run on: every backend and every communicator
// of this build registers here, once (Targets.cpp).
#pragma once

#include "runtime/comm/World.h"
#include "test/unit/conformance/Harness.h"

namespace merak::conformance {

struct CommCase;

struct BackendTarget {
  std::string name;
  // Null with a sentence where this machine cannot run it.
  std::function<Result<std::unique_ptr<runtime::Backend>>(
      runtime::ThreadPool &)>
      make;
  // How much further than the CPU's it may be from the reference.
  double slack = 1;
};

struct CommTarget {
  std::string name;
  // Ranks are processes, started by a launcher; else they are threads of one.
  bool processes = false;
  // Why such a target does not run here by itself: what it needs.
  std::function<std::string()> needs;
  std::string backend = "cpu"; // whose memory it communicates
  std::function<Result<std::unique_ptr<runtime::World>>()> open;
  std::function<Result<std::unique_ptr<runtime::Communicator>>(
      runtime::World &, int rank, runtime::Backend &)>
      communicator;
  // Why it need not do a case; empty if it must.
  std::function<std::string(const CommCase &)> excuse;
};

const std::vector<BackendTarget> &backendTargets();
const std::vector<CommTarget> &commTargets();
// Ranks of the communicators that run in one process.
constexpr int kRanks = 4;

// What came out of the cases of one kernel or collective on one target.
struct Tally {
  int passed = 0, failed = 0;
  std::map<std::string, int> unsupported; // by reason
  std::vector<std::string> failures;      // the first few
};
using Column = std::map<std::string, Tally>; // by kernel or collective

// Every library kernel: the cases of test/unit/conformance in every memory
// layout, overwriting and accumulating, and one case of each in other types.
Column runKernels(const BackendTarget &target);
// Every collective and transfer. All processes of the world call this; rank 0's
// gets the outcome of all ranks.
Result<Column> runCommunicator(const CommTarget &target);

} // namespace merak::conformance
