// All ranks of a run as one process sees them: which of them are its own, how
// they communicate, and how the processes meet apart from the plan.
#pragma once

#include "runtime/comm/Communicator.h"
#include "runtime/comm/rendezvous/Store.h"

namespace merak::runtime {

class World {
public:
  virtual ~World() = default;
  virtual int size() const = 0;
  // The ranks of this process, ascending.
  virtual const std::vector<int> &ranks() const = 0;
  // For one rank of this process, whose memory is `backend`'s. The world
  // outlives its communicators.
  virtual Result<std::unique_ptr<Communicator>>
  communicator(int rank, Backend &backend) = 0;

  // Makes pending and later communication of all ranks fail. The first reason
  // stays.
  virtual void abort(const Status &reason) = 0;
  virtual const std::atomic<bool> &aborted() const = 0;
  virtual Status abortReason() const = 0;

  // Where the processes of the run meet; null if there is only this one.
  virtual Store *store() { return nullptr; }
  // Whether this process has rank 0: it speaks for the run.
  bool leads() const { return ranks().front() == 0; }
};

} // namespace merak::runtime
