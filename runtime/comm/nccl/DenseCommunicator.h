// Collectives and transfers of one rank on a device through a library that
// knows dense arrays only (NCCL): strided operands, dimensions other than the
// first and accumulation pass through scratch memory on the same stream.
#pragma once

#include "runtime/comm/Communicator.h"
#include "runtime/core/Backend.h"

#include <memory>

namespace merak::runtime {

// One communicator of the library: a group of ranks, numbered from 0 in group
// order. Calls enqueue on the stream; between `begin` and `end` they are one
// operation. Counts are in elements.
class DenseLink {
public:
  virtual ~DenseLink() = default;
  virtual Status begin() = 0;
  virtual Status end() = 0;
  virtual Status allReduce(const void *in, void *out, int64_t count,
                           planpb::DType type, bool maximum,
                           StreamHandle stream) = 0;
  // `count`: of one member.
  virtual Status allGather(const void *in, void *out, int64_t count,
                           planpb::DType type, StreamHandle stream) = 0;
  virtual Status reduceScatter(const void *in, void *out, int64_t count,
                               planpb::DType type, bool maximum,
                               StreamHandle stream) = 0;
  virtual Status broadcast(const void *in, void *out, int64_t count,
                           planpb::DType type, StreamHandle stream) = 0;
  virtual Status send(const void *in, int64_t count, planpb::DType type,
                      int peer, StreamHandle stream) = 0;
  virtual Status receive(void *out, int64_t count, planpb::DType type, int peer,
                         StreamHandle stream) = 0;
};

// All communicators of one rank, and how the run is aborted.
class DenseLinks {
public:
  virtual ~DenseLinks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Says how many this rank is going to open; all ranks do so before they open
  // any. Narrow ones are for transfers or for little at a time.
  virtual Status expect(int narrow, int wide) {
    (void)narrow, (void)wide;
    return {};
  }
  // The communicator of a group for one purpose; opened by the first call,
  // which waits for the members' calls. Stays with the links until it is
  // closed.
  virtual Result<DenseLink *> open(const std::vector<int> &members,
                                   const std::string &purpose, bool narrow) = 0;
  // No more is asked of it; all members do so.
  virtual void close(DenseLink *link) { (void)link; }
  // The library's own memory, if it has any (Communicator::memory).
  virtual MemorySource *memory() { return nullptr; }
  // The least that the library takes of the device for a communicator.
  virtual uint64_t linkBytes() const { return 0; }
  virtual void abort(const Status &reason) = 0;
  virtual const std::atomic<bool> &aborted() const = 0;
  virtual Status abortReason() const = 0;
};

// Both must outlive the communicator, which closes what it has opened. Several
// of one rank, whose streams are others, share nothing: `session` tells them
// apart, the same number on all ranks.
std::unique_ptr<Communicator>
denseCommunicator(DenseLinks &links, Backend &backend, int session = 0);

} // namespace merak::runtime
