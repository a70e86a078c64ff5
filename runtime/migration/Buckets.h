// Pieces that are sent, put into buckets of bounded size (private to this
// folder).
#pragma once

#include "runtime/migration/Migration.h"

namespace merak::migration {

class Buckets {
public:
  Buckets(int devices, int64_t bucketBytes)
      : devices_(devices), bucketBytes_(bucketBytes), open_(size_t(devices)) {}

  // The largest piece to be added, in bytes: a bucket is then at least three
  // quarters full before a device needs another one.
  int64_t mostBytes() const { return bucketBytes_ / 4; }
  // Into the first bucket in which both have room.
  void add(int sender, int receiver, Piece piece);
  // One message for each pair of a bucket. In each round all devices send to
  // the one that is as many numbers further: nobody receives twice.
  std::vector<Bucket> take();

private:
  bool hasRoom(size_t bucket, int device, int64_t bytes) const {
    return used_[bucket][size_t(device)] + bytes <= bucketBytes_;
  }
  size_t firstOpen(int device);

  int devices_;
  int64_t bucketBytes_;
  std::vector<size_t> open_; // by device: the ones before are full
  std::vector<std::vector<int64_t>> used_; // bytes by bucket and device
  // By bucket, then round and sender.
  std::vector<std::map<std::pair<int, int>, Message>> messages_;
};

} // namespace merak::migration
