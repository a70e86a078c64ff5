// A communicator of the stand-in, and operations on it.
#pragma once

#include "test/unit/cuda/nccl/Region.h"
#include "test/unit/cuda/nccl/StandIn.h"

#include <chrono>
#include <map>
#include <mutex>
#include <nccl.h>

namespace merak::cuda {

struct Call {
  CallRecord record;
  const void *in = nullptr;
  void *out = nullptr;
  bool known = false; // its operands lie in memory of its communicator's
};

class Comm;
// The communicator of a handle; null if it has ended.
std::shared_ptr<Comm> commOf(ncclComm_t handle);

// The calls of one group. Captured ones run again and again.
class Operation {
public:
  Operation(std::shared_ptr<Comm> comm, std::vector<Call> calls, bool hangs);
  ~Operation();
  Operation(const Operation &) = delete;
  // Begins it, if its turn has come; whether all members have.
  bool ready();
  // Ends it; what is wrong or nothing.
  std::string run();

private:
  bool begin();
  std::string compare() const;
  std::string compare(size_t call) const;
  void exchange(size_t call, size_t at);

  const std::shared_ptr<Comm> comm_;
  const std::vector<Call> calls_;
  const bool hangs_;
  bool begun_ = false;
};

// What a process has done so far.
struct Counts {
  std::atomic<int> opened{0}, used{0}, ended{0}, aborted{0};
  std::atomic<int> blocks{0}; // of all communicators that are open
  std::atomic<int64_t> operations{0}, launches{0};
  std::atomic<int64_t> calls{0}, registered{0}; // those of registered memory
};

// The library's own state.
StandInDevice *&device();
Counts &counts();
// For ncclGetLastError and stderr.
void complain(const std::string &what);
const char *lastComplaint();
std::string describe(const CallRecord &record);
size_t sizeOf(int type);

class Comm {
public:
  // Of `members`, this one being the `me`-th. `memory`: of the device;
  // `blocks`: the most thread blocks of an operation; `waits`: calls return
  // when they are done.
  Comm(std::unique_ptr<Region> region, int members, int me, bool waits,
       int blocks, void *memory)
      : members(members), me(me), waits(waits), blocks(blocks),
        region(std::move(region)), memory(memory) {
    counts().blocks += blocks;
  }
  ~Comm() { counts().blocks -= blocks; }

  // The state of what was asked for last, which goes on when it is asked for.
  ncclResult_t poll(const std::shared_ptr<Comm> &self);
  // The calls of a group.
  ncclResult_t launch(const std::shared_ptr<Comm> &self,
                      std::vector<Call> calls, void *stream);
  // Whether what was asked for last waits for other members.
  bool isMeeting() const { return meeting_; }
  // Makes everything end; returns when nothing holds operations any more.
  void abort();
  // Afterwards it is of no use. What is wrong with that or nothing.
  std::string end();
  // Memory that operands lie in (ncclCommRegister). What is wrong or nothing.
  std::string add(char *memory, size_t bytes);
  std::string remove(const void *memory);
  // Whether it lies in such memory.
  bool knows(const void *memory, size_t bytes);
  // Something is wrong with its use.
  ncclResult_t misused(const std::string &why);
  // Since a member failed or does not agree.
  bool stopped() const { return aborted_ || failed_; }
  bool isAborted() const { return aborted_; }
  void fail(ncclResult_t result) {
    state_ = result;
    failed_ = true;
  }

  const int members, me;
  const bool waits;
  const int blocks;
  const int number = counts().opened++; // of this process's communicators
  const std::unique_ptr<Region> region;
  void *const memory;
  std::atomic<uint64_t> sequence{0}; // operations that have ended
  std::atomic<int> operations{0};    // that streams and graphs hold

private:
  bool open();
  bool allAsked() const;
  void forget(); // the memory that it was told of
  ncclResult_t enqueue(const std::shared_ptr<Comm> &self,
                       std::vector<Call> calls);

  std::mutex mutex_;
  bool open_ = false;
  std::atomic<bool> aborted_{false}, failed_{false};
  std::atomic<ncclResult_t> state_{ncclInProgress};
  std::vector<Call> asked_, held_; // to be enqueued; to come later (a fault)
  std::map<const char *, size_t> known_; // bytes of memory
  int polls_ = 0;
  std::atomic<bool> meeting_{false};
  bool meets_ = false;     // what is asked for waits until all members ask
  void *stream_ = nullptr; // all its operations are on
  int64_t launched_ = 0;   // operations
  bool used_ = false;
};

} // namespace merak::cuda
