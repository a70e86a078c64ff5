// Meeting points of in-process ranks (private to this folder).
#pragma once

#include "runtime/comm/inproc/LinkEmulation.h"
#include "runtime/core/Gate.h"

namespace merak::runtime {

// The members of a collective. Each member's `arrived` counts the barriers it
// has come to; barrier k is passed when all counts are at least k.
struct InprocGroup {
  explicit InprocGroup(const std::vector<int> &ranks)
      : members(ranks), arrived(ranks.size()), operands(ranks.size(), 0) {
    for (auto &posts : posted)
      posts.resize(ranks.size());
  }

  // What a member brings, by value: a member may have left for good while
  // another still compares. It can also be one collective ahead of another, so
  // posts alternate between two sets.
  struct Post {
    CommSpec::Kind kind = CommSpec::AllReduce;
    bool maximum = false, accumulate = false;
    int64_t dim = 0, dim2 = 0;
    std::string name;
    View input, output;
    std::vector<char> staging; // the input of a small reduction
    double arrived = 0;        // on the clock of emulated links
    // Ranks that share a device: when the operands are ready, and when this
    // member has read those of the others.
    EventHandle ready = nullptr, left = nullptr;
  };

  // Waits for all members; false if the world was aborted.
  bool barrier(int me, const std::atomic<bool> &abort) {
    const uint64_t target = arrived[me].load() + 1;
    arrived[me].store(target);
    if (allArrived(target)) {
      gate.notify();
      return true;
    }
    return gate.wait([&] { return allArrived(target); }, abort);
  }
  bool allArrived(uint64_t target) const {
    for (const std::atomic<uint64_t> &count : arrived)
      if (count.load() < target)
        return false;
    return true;
  }
  // Global ranks that have not come to the barrier where `me` waits.
  std::string missing(int me) const;

  std::vector<int> members;
  std::vector<std::atomic<uint64_t>> arrived;
  std::vector<uint64_t> operands; // by member: collectives done, its own only
  std::vector<Post> posted[2];
  Gate gate;

  // When collective `number` ends on emulated links, the first member to ask
  // reserves. Like posts, ends alternate.
  template <typename Reserve> double end(uint64_t number, Reserve &&reserve) {
    std::lock_guard lock(endMutex);
    End &slot = ends[number % 2];
    if (slot.number != number)
      slot = {number, reserve()};
    return slot.seconds;
  }
  struct End {
    uint64_t number = 0;
    double seconds = 0;
  };
  std::mutex endMutex;
  End ends[2];
};

// One direction between two ranks. At most one transfer is under way: each end
// is one stream.
struct InprocChannel {
  struct End {
    const View *view = nullptr; // posted and waiting
    bool accumulate = false;
    uint64_t done = 0;           // transfers finished
    EventHandle ready = nullptr; // on a device: the posted view
  };
  std::mutex mutex;
  End sender, receiver;
  std::atomic<uint64_t> transfers{0};
  double end = 0;               // of the last transfer, on emulated links
  EventHandle copied = nullptr; // on a device: the last transfer
  Status failure;
  Gate gate;
};

} // namespace merak::runtime
