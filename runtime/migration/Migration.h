// From the layouts in which ranks of one plan hold the state of training to
// those of another plan of the model: a transfer program, made ahead of time,
// that says what stays where it is, what a device copies within its own memory
// and what it gets from which other one.
//
// What a device has already it takes from itself. For the rest, piece by piece
// of what one owner holds and one device needs, an owner of the same node sends
// that has sent the fewest bytes inside nodes so far; without one the owner
// that has sent the fewest to other nodes. The lower number wins ties, so that
// every process of a run makes the same program. (Malleus: Straggler-Resilient
// Hybrid Parallel Training, arXiv 2410.13333.)
//
// Pieces go in buckets. A device packs what it sends in a bucket, one message
// to each receiver, and has room for what it receives: each at most half of
// `bucketBytes`, whatever the size of the model. docs/Migration.md has an
// example.
#pragma once

#include "runtime/checkpoint/HeldTensors.h"

namespace merak::migration {

// A message should take long beside its latency and little room beside the
// state: 64 MiB take 2.7 ms at 25 GB/s, where latencies are some microseconds,
// and are less than a thousandth of the memory of a device of 80 GB.
inline constexpr int64_t kBucketBytes = 64 << 20;
// Below this a message would hold a handful of numbers.
inline constexpr int64_t kLeastBucketBytes = 64;

// Where ranks are. A device has at most one rank of each plan.
struct Places {
  std::vector<int> source, target; // device by rank; empty: rank r on device r
  std::vector<int> nodes;          // by device; empty: one node
};

struct Options {
  Places places;
  int64_t bucketBytes = kBucketBytes;
};

// A box of a tensor that goes from one buffer to another: buffers by their
// index in the programs of the sender's and the receiver's rank, origins in
// their local tensors.
struct Piece {
  int tensor = 0; // of Migration::tensors
  int source = 0, target = 0;
  std::vector<int64_t> from, to, extent;
  planpb::DType dtype = planpb::DTYPE_INVALID; // of the target's buffer
  int64_t bytes = 0;                           // in this type
  bool operator==(const Piece &) const = default;
};

// A buffer of the target that equals one of the source on the same device, and
// may be the same memory: no other buffer is kept of it.
struct Kept {
  int device = 0, tensor = 0, source = 0, target = 0;
  int64_t bytes = 0;
  bool operator==(const Kept &) const = default;
};

struct LocalCopy {
  int device = 0;
  Piece piece;
  bool operator==(const LocalCopy &) const = default;
};

// The pieces lie one behind the other, dense, in the receiver's type.
struct Message {
  int sender = 0, receiver = 0; // devices
  int64_t bytes = 0;
  std::vector<Piece> pieces;
  bool operator==(const Message &) const = default;
};

// The order is one for all devices: each sends its messages in it and receives
// its messages in it, both at the same time, so that nobody waits in a circle.
struct Bucket {
  std::vector<Message> messages;
  bool operator==(const Bucket &) const = default;
};

// Of one device.
struct DeviceBytes {
  int64_t kept = 0, copied = 0, sent = 0, received = 0;
  // For packing and receiving, in the bucket with the most.
  int64_t buffers = 0;
};

struct Migration {
  // By device: the rank there; -1: none.
  std::vector<int> sourceRank, targetRank;
  std::vector<int> nodes;
  std::vector<std::string> tensors; // of the target plan, in its order
  int64_t bucketBytes = 0;
  std::vector<Kept> kept;
  std::vector<LocalCopy> copies;
  std::vector<Bucket> buckets;
  bool operator==(const Migration &) const = default;

  int devices() const { return int(nodes.size()); }
  int64_t messages() const;
  std::vector<DeviceBytes> byDevice() const;
  // Sums over the devices; of buffers that of the device with the most.
  DeviceBytes total() const;
};

// Errors, all at once: plans whose state differs (tensors that one of them
// lacks, shapes, types), elements that no rank of the source holds, places that
// are taken twice or lie nowhere, buckets below kLeastBucketBytes.
Result<Migration> planMigration(const LoadedPlan &source,
                                const LoadedPlan &target,
                                const Options &options = {});

// Proves of a program of any origin that executing it leaves the target's state
// on its ranks: each element of each buffer that holds state arrives exactly
// once or is there; what is sent is what its sender holds, of the same place in
// the tensor; every message has a sender, a receiver and pieces; no device
// needs more than `bucketBytes` in a bucket. Returns all that is wrong.
Status verifyMigration(const Migration &migration, const LoadedPlan &source,
                       const LoadedPlan &target);

} // namespace merak::migration
