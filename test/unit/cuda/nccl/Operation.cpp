#include "test/unit/cuda/nccl/Comm.h"

#include <cstring>

namespace merak::cuda {

namespace {

// Bytes that the member gives to a call.
size_t givenBytes(const CallRecord &record, int members, int me) {
  const size_t bytes = record.count * sizeOf(record.type);
  switch (record.kind) {
  case CallRecord::ReduceScatter:
    return bytes * size_t(members);
  case CallRecord::Broadcast:
    return record.peer == me ? bytes : 0;
  case CallRecord::Receive:
    return 0;
  default:
    return bytes;
  }
}

// Where the part for the member's `call` begins among what it gives.
size_t givenAt(const Slot &slot, size_t call, int members, int me) {
  size_t at = 0;
  for (size_t i = 0; i < call; ++i)
    at += givenBytes(slot.records[i], members, me);
  return at;
}

// The call of `member` that sends what our call receives, or receives what it
// sends: of those between the two the one that is as many-th. -1: none.
int64_t counterpart(const Slot &own, const Slot &other, size_t call, int me) {
  const CallRecord &record = own.records[call];
  const CallRecord::Kind wanted =
      record.kind == CallRecord::Send ? CallRecord::Receive : CallRecord::Send;
  size_t number = 0;
  for (size_t i = 0; i < call; ++i)
    number += own.records[i].kind == record.kind &&
              own.records[i].peer == record.peer;
  for (size_t i = 0; i < other.calls; ++i)
    if (other.records[i].kind == wanted && other.records[i].peer == me &&
        number-- == 0)
      return int64_t(i);
  return -1;
}

bool isTransfer(const CallRecord &record) {
  return record.kind == CallRecord::Send || record.kind == CallRecord::Receive;
}

} // namespace

Operation::Operation(std::shared_ptr<Comm> comm, std::vector<Call> calls,
                     bool hangs)
    : comm_(std::move(comm)), calls_(std::move(calls)), hangs_(hangs) {
  ++comm_->operations;
}
Operation::~Operation() { --comm_->operations; }

bool Operation::ready() {
  if (comm_->isAborted())
    return true;
  if (hangs_)
    comm_->fail(ncclRemoteError);
  if (comm_->stopped() || (!begun_ && !begin())) // until it is aborted
    return false;
  for (int i = 0; i < comm_->members; ++i)
    if (comm_->region->slot(i).posted <= comm_->sequence)
      return false;
  return true;
}

// Gives the others what this member has, once they have taken what it gave
// before.
bool Operation::begin() {
  const Comm &comm = *comm_;
  for (int i = 0; i < comm.members; ++i)
    if (comm.region->slot(i).finished < comm.sequence)
      return false;
  Slot &slot = comm.region->slot(comm.me);
  slot.calls = calls_.size();
  char *to = comm.region->data(comm.me);
  for (size_t i = 0; i < calls_.size(); ++i) {
    slot.records[i] = calls_[i].record;
    const size_t bytes = givenBytes(calls_[i].record, comm.members, comm.me);
    std::memcpy(to, calls_[i].in, bytes);
    to += bytes;
  }
  slot.posted = comm.sequence + 1;
  begun_ = true;
  return true;
}

std::string Operation::run() {
  if (comm_->isAborted()) // its kernel ends, whatever it has done
    return "";
  if (std::string problem = compare(); !problem.empty()) {
    comm_->fail(ncclInvalidUsage);
    complain(problem);
    return "NCCL: " + problem;
  }
  size_t at = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    exchange(i, at);
    at += givenBytes(calls_[i].record, comm_->members, comm_->me);
  }
  begun_ = false;
  ++counts().launches;
  comm_->region->slot(comm_->me).finished = ++comm_->sequence;
  return "";
}

// Whether all members ask for the same.
std::string Operation::compare() const {
  const Comm &comm = *comm_;
  const Slot &own = comm.region->slot(comm.me);
  for (int i = 0; i < comm.members; ++i)
    if (comm.region->slot(i).calls != own.calls)
      return "operation " + std::to_string(comm.sequence) +
             " of a communicator: member " + std::to_string(comm.me) +
             " makes " + std::to_string(own.calls) + " calls, member " +
             std::to_string(i) + " makes " +
             std::to_string(comm.region->slot(i).calls);
  for (size_t call = 0; call < calls_.size(); ++call)
    if (std::string problem = compare(call); !problem.empty())
      return "operation " + std::to_string(comm.sequence) +
             " of a communicator: member " + std::to_string(comm.me) +
             " asks for " + describe(calls_[call].record) + ", " + problem;
  return "";
}

std::string Operation::compare(size_t call) const {
  const Comm &comm = *comm_;
  const CallRecord &record = calls_[call].record;
  const Slot &own = comm.region->slot(comm.me);
  if (!isTransfer(record)) {
    for (int i = 0; i < comm.members; ++i) {
      const CallRecord &other = comm.region->slot(i).records[call];
      if (std::memcmp(&other, &record, sizeof(record)) != 0)
        return "member " + std::to_string(i) + " for " + describe(other);
    }
    return "";
  }
  const Slot &other = comm.region->slot(record.peer);
  const int64_t found = counterpart(own, other, call, comm.me);
  if (found < 0)
    return "member " + std::to_string(record.peer) + " for none with it";
  const CallRecord &theirs = other.records[found];
  if (theirs.count * sizeOf(theirs.type) != record.count * sizeOf(record.type))
    return "member " + std::to_string(record.peer) + " for " + describe(theirs);
  return "";
}

// `at`: of the call among what this member gives.
void Operation::exchange(size_t call, size_t at) {
  const Comm &comm = *comm_;
  const CallRecord &record = calls_[call].record;
  const size_t bytes = record.count * sizeOf(record.type);
  char *out = static_cast<char *>(calls_[call].out);
  const bool reduces = record.kind == CallRecord::AllReduce ||
                       record.kind == CallRecord::ReduceScatter;
  if (reduces) {
    std::vector<const void *> parts;
    for (int i = 0; i < comm.members; ++i)
      parts.push_back(
          comm.region->data(i) + at +
          (record.kind == CallRecord::ReduceScatter ? comm.me * bytes : 0));
    device()->reduce(parts, int64_t(record.count), record.type,
                     record.reduce == ncclMax, out);
  } else if (record.kind == CallRecord::AllGather) {
    for (int i = 0; i < comm.members; ++i)
      std::memcpy(out + i * bytes, comm.region->data(i) + at, bytes);
  } else if (record.kind != CallRecord::Send) {
    const Slot &other = comm.region->slot(record.peer);
    const size_t theirs = record.kind == CallRecord::Broadcast
                              ? call
                              : size_t(counterpart(comm.region->slot(comm.me),
                                                   other, call, comm.me));
    std::memcpy(out,
                comm.region->data(record.peer) +
                    givenAt(other, theirs, comm.members, record.peer),
                bytes);
  }
}

} // namespace merak::cuda
