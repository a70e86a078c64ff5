// Pieces that are sent, put into buckets of bounded size (private to this
// folder).
#pragma once

#include "runtime/migration/Migration.h"

namespace merak::migration {

// A device may send half of a bucket's bytes and receive as much, so that the
// buckets are as long in both directions.
class Buckets {
public:
  Buckets(int devices, int64_t bucketBytes)
      : devices_(devices), laneBytes_(bucketBytes / 2),
        open_(2 * size_t(devices)) {}

  // The largest piece to be added, in bytes: a direction is then at least three
  // quarters full before it needs another bucket.
  int64_t mostBytes() const { return laneBytes_ / 4; }
  // Into the first bucket in which both have room.
  void add(int sender, int receiver, Piece piece);
  // One message for each pair of a bucket, in an order in which few wait.
  std::vector<Bucket> take();

private:
  // What device d sends, and what it receives.
  size_t out(int device) const { return size_t(device); }
  size_t in(int device) const { return size_t(devices_ + device); }
  bool hasRoom(size_t bucket, size_t lane, int64_t bytes) const {
    return used_[bucket][lane] + bytes <= laneBytes_;
  }
  size_t firstOpen(size_t lane);

  int devices_;
  int64_t laneBytes_;
  std::vector<size_t> open_; // by lane: the buckets before are full
  std::vector<std::vector<int64_t>> used_; // bytes by bucket and lane
  // By bucket, then sender and receiver.
  std::vector<std::map<std::pair<int, int>, Message>> messages_;
};

} // namespace merak::migration
