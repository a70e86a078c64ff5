// What an agent does about copies in its hosts' memory between runs, and after
// the last one. The runs themselves keep them (RunCopies.h).
#pragma once

#include "runtime/checkpoint/CopyFolder.h"
#include "runtime/launch/Hosts.h"

namespace merak::runtime {

// Who starts processes, and where.
struct CopyAgent {
  std::string program;  // this one
  std::string launcher; // empty: none, all are here
  int64_t ranks = 0;    // of a run, where there are no hosts
};

// Before a run starts on the first of the hosts, so many ranks: hosts that it
// has no place on may have copies that the others need, and these go there.
// `diskStep`: of the checkpoint that there is besides, -1: none. For the user,
// if it went wrong; empty otherwise.
std::string passCopies(const CopyAgent &agent, const CopyRun &run,
                       const std::vector<Host> &left, int64_t ranks,
                       int64_t diskStep);

// Of a run that is over, on all hosts. For the user, as above.
std::string removeCopies(const CopyAgent &agent, const std::string &id,
                         const std::vector<Host> &left);

} // namespace merak::runtime
