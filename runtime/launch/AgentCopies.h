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

// Before a run starts on some of the hosts that are left, the targets: others
// may have copies that these need, and these go there.
// `diskStep`: of the checkpoint that there is besides, -1: none. For the user,
// if it went wrong; empty otherwise.
std::string passCopies(const CopyAgent &agent, const CopyRun &run,
                       const std::vector<Host> &left,
                       const std::vector<Host> &targets, int64_t diskStep);

// Of a run that is over, on all hosts. For the user, as above.
std::string removeCopies(const CopyAgent &agent, const std::string &id,
                         const std::vector<Host> &left);

} // namespace merak::runtime
