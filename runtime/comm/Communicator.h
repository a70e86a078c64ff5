// What the executor asks of a transport: collectives over groups of ranks and
// point-to-point transfers, prepared once and run many times.
//
// A call returns when its operands may be reused (host transports) or when it
// is enqueued on the stream (device transports). Sums are taken in group order,
// whatever the timing, so that results are the same in every run.
#pragma once

#include "runtime/core/Backend.h"

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace merak::runtime {

// One communicating instruction, resolved for one rank.
struct CommSpec {
  enum Kind {
    AllReduce,
    AllGather,     // along `dim`
    ReduceScatter, // along `dim`
    AllToAll,      // splits `dim`, concatenates along `dim2`
    Broadcast,     // from the first member
    Send,
    Recv
  };
  Kind kind = AllReduce;
  std::vector<int> members; // collectives: global ranks in group order
  int peer = -1;            // send, recv: global rank
  // Matches the ends: equal on both ends of a transfer; for collectives the
  // name of the stream, since two streams may use one group at a time.
  std::string channel;
  // Of transfers: the names of the two streams; those between the same two
  // ranks with the same ones come in one order on both. Empty: one channel's
  // alone do.
  std::string streams;
  bool maximum = false; // else sum
  int64_t dim = 0, dim2 = 0;
  bool accumulate = false; // outputs are added to
  // Messages may end before zeros at their end, which need not travel: a matter
  // of the transport alone, results are the same.
  bool trims = false;
  std::string name; // for messages
};

const char *commKindName(CommSpec::Kind kind);

// What `Communicator::prepare` made of an instruction. One thread at a time.
class Endpoint {
public:
  virtual ~Endpoint() = default;
  uint64_t workspace = 0; // bytes of the stream's workspace that a call uses
};

struct CommCall {
  Endpoint *endpoint = nullptr;
  // Collectives: input i goes to output i, each by itself.
  std::span<const View> inputs;
  std::span<const View> outputs;
  StreamHandle stream = nullptr;
  // Sends of host transports: the stream sends again before anybody is told
  // that this one is done, so the call may return before that.
  bool staysOpen = false;
  // The stream's call before, if that may: it is done when this one returns.
  Endpoint *open = nullptr;
  // Receives of host transports: the stream's next call, a receive too, whose
  // memory is free by now, so that it may begin.
  const CommCall *next = nullptr;
};

// One rank's access to the others.
class Communicator {
public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Checks shapes and types against the group; the views' data are null.
  virtual Result<std::unique_ptr<Endpoint>>
  prepare(CommSpec spec, std::span<const View> inputs,
          std::span<const View> outputs) = 0;
  // Where memory comes from that the transport's library can send from and
  // receive into without a copy; null: any memory of the backend will do.
  virtual MemorySource *memory() { return nullptr; }
  // Opens what the endpoints made so far need of the transport's library; waits
  // for the other ranks, which must do the same. Not needed: what is not open
  // is opened by the first call.
  virtual Status open() { return {}; }
  virtual Status run(const CommCall &call) = 0;

  // Why calls cannot be captured with the rest of a step; ok where they can:
  // they only enqueue, after their first time, and meet nobody on the host.
  virtual Status capturable() const {
    return Status::error("its ranks meet on the host");
  }
  // Device memory that the transport's library takes for the endpoints made so
  // far, when they are first used.
  virtual uint64_t libraryBytes() const { return 0; }

  // What was opened, for people; empty if that is nothing to speak of.
  virtual std::string note() const { return ""; }

  // Makes every rank's pending and later calls fail, with this reason. The
  // first reason stays.
  virtual void abort(const Status &reason) = 0;
  virtual const std::atomic<bool> &aborted() const = 0;
  virtual Status abortReason() const = 0;
  // Its first sentence, for the messages of the ranks that had to stop.
  std::string abortCause() const {
    const Status reason = abortReason();
    return reason.ok() ? std::string() : reason.messages().front();
  }
};

} // namespace merak::runtime
