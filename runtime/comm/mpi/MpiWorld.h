// A world of processes that were started by an MPI launcher, one rank each.
//
// Collectives are made of messages between their members, summed in group
// order like those of in-process ranks, and give the same bits; MPI's own
// reductions promise no order.
#pragma once

#include "runtime/comm/World.h"

namespace merak::runtime {

struct MpiOptions {
  // What the environment says; MPI must say the same.
  int rank = 0, size = 1;
  // Where rank 0 listens for the store; empty and 0: found out through MPI. So
  // is the address if rank 0 is planned for another process than MPI's first.
  std::string masterAddress;
  int masterPort = 0;
  double connectSeconds = 60, silenceSeconds = 7; // as of TcpStoreOptions
  // The rank that this process takes instead, if all have one and these are
  // 0 .. size-1; -1: it has none.
  int plannedRank = -1;
};

// Initialises MPI: once in a process. Its end finalises MPI, unless the run was
// aborted. Errors: MPI cannot be initialised, or knows other ranks than the
// environment (another launcher's variables, or another MPI library's).
Result<std::unique_ptr<World>> openMpiWorld(const MpiOptions &options);

// `MPI: Open MPI v4.1.4, ...`, as the library calls itself.
std::string mpiVersion();

} // namespace merak::runtime
