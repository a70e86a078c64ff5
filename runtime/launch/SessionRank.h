// What a session has of each rank of its process (private to this library).
#pragma once

#include "runtime/launch/Session.h"

namespace merak::runtime {

struct Session::Rank {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<RankProgram> program;
  std::unique_ptr<Executor> executor;
  std::thread thread;
  Status status;
  uint64_t communicationBytes = 0; // of the device, since its links are open
};

} // namespace merak::runtime
