// The memory by which the members of one communicator meet: for each a slot
// with what it asks for and gives to its current operation. It has no name in
// the file system and goes with the processes that hold it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>

namespace merak::cuda {

constexpr int kMostMembers = 16;
constexpr size_t kMostCalls = 2048;            // of one operation
constexpr size_t kSlotBytes = size_t{1} << 26; // of one operation; on demand

// One call of an operation (of a group).
struct CallRecord {
  enum Kind : int32_t {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Send,
    Receive
  };
  Kind kind = AllReduce;
  int32_t type = 0;   // ncclDataType_t
  int32_t reduce = 0; // ncclRedOp_t, of reductions
  int32_t peer = -1;  // of a transfer; the root of a broadcast
  uint64_t count = 0; // elements, as NCCL counts them
};

struct Slot {
  std::atomic<int32_t> blocks{0};    // thread blocks; set before the next
  std::atomic<int32_t> members{0};   // that the member expects; 0: not joined
  std::atomic<uint64_t> asked{0};    // operations that wait until all ask
  std::atomic<uint64_t> posted{0};   // operations that it has begun
  std::atomic<uint64_t> finished{0}; // operations that it has ended
  uint64_t calls = 0;                // of the operation posted last
  CallRecord records[kMostCalls];
};

class Region {
public:
  // Makes one and returns the words by which other processes find it, at most
  // `longest` bytes; empty where the system refuses. It stays until the process
  // that made it ends.
  static std::string create(size_t longest);
  // Null if there is no such region.
  static std::unique_ptr<Region> open(const std::string &words);
  ~Region();
  Region(const Region &) = delete;

  Slot &slot(int member) const { return slots_[member]; }
  // What the member gives to its operation, its calls one after the other.
  char *data(int member) const { return data_ + size_t(member) * kSlotBytes; }

private:
  Region(void *memory);
  Slot *slots_;
  char *data_;
};

} // namespace merak::cuda
