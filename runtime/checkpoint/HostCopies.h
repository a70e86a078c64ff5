// Copies of a run's state in the memory of its hosts, refreshed beside the
// steps. All processes of the run call the same functions after the same steps.
//
//   step:    ... n        n+1        n+2  ...
//   steps    ───┤copy├────────────────────────────────────────────  (stall)
//   beside       sent to hosts ─► checked ─► whole ─► older one's memory free
//
// A copy is the state of one step, a generation of checkpoints (CopyFolder.h),
// of which each host has the parts that planCopies gives it. Two are there at a
// time: the newest whole one, and the one that is being made. Their memory is
// reserved once and written where it is mapped, so no step waits for more than
// its own ranks' copy from memory to memory.
#pragma once

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/CopyFolder.h"
#include "runtime/checkpoint/CopyPlan.h"
#include "runtime/checkpoint/CopyTransport.h"
#include "runtime/checkpoint/Pieces.h"
#include "runtime/core/ThreadPool.h"

#include <atomic>
#include <mutex>
#include <thread>

namespace merak::runtime {

// Which processes share a memory, and what its machine is called. A process has
// one rank, or all of them.
struct CopyHosts {
  std::vector<int> ofProcess;
  std::vector<std::string> names; // by host
  int mine = 0;
};

struct CopyOptions {
  int hosts = 0; // besides the one that has it; 0: no copies
  int64_t every = 10;
  int threads = 1; // that copy
  // Values that are not finite are kept too.
  bool anyValues = false;
};

class HostCopies {
public:
  // Too little memory is an error that says how much; it is reserved beside the
  // first steps. All must outlive the copies. `world`: null for one process.
  static Result<std::unique_ptr<HostCopies>>
  open(const LoadedPlan &plan, std::span<const RankMemory> ranks,
       CopyFolder &folder, const CopyHosts &hosts, const CopyOptions &options,
       World *world);
  ~HostCopies();

  // After a step, before the next. Where a copy is due, and the last one is
  // done on all hosts, `state` is asked for and this process's part is copied;
  // the rest happens beside the next steps. Errors end the run; what only ends
  // a copy is among the news.
  Status after(int64_t step,
               const std::function<Result<CheckpointState>()> &state);
  // One more at once, of where the run ends.
  Status now(CheckpointState state);
  // Waits for what happens beside the steps.
  void wait();

  // What happened since the last call, for the user; on rank 0's process.
  std::vector<std::string> news();
  // In the end: how many there were and what they took; empty without any.
  std::string summary() const;
  // The step of the newest whole one (0: there is none yet), and how many were
  // left out.
  struct Made {
    int64_t step = 0, skipped = 0;
    bool operator==(const Made &) const = default;
  };
  Made made() const { return {newest_, skipped_}; }
  // Bytes of one generation by host; on this one, and of what it is sent of
  // them.
  const std::vector<uint64_t> &bytesOfHosts() const { return bytesOfHosts_; }
  uint64_t bytesHere() const { return bytesOfHosts_[size_t(hosts_.mine)]; }
  uint64_t bytesReceived() const { return bytesReceived_; }

private:
  struct Item { // a box of the state
    const planpb::Tensor *tensor = nullptr;
    std::string key;
    layout::Box box;
    std::vector<int> ranks;     // that hold it
    std::map<int, Piece> local; // by rank of this process
  };
  struct File { // of a part
    std::string head;
    uint64_t bytes = 0;
    std::vector<uint64_t> offsets; // of its items
  };
  struct Slot {
    std::map<int, CopyFile> files; // by part: what this process writes
    std::string name;              // of its folder now; of who leads
    bool ready = false;
  };
  struct Task { // of copying
    int part = 0;
    const Item *item = nullptr;
    const RankMemory *memory = nullptr;
    const Piece *piece = nullptr;
    uint64_t offset = 0;
    int64_t begin = 0, end = 0; // of the box's first dimension
  };

  HostCopies(const LoadedPlan &plan, std::span<const RankMemory> ranks,
             CopyFolder &folder, const CopyHosts &hosts,
             const CopyOptions &options, World *world);
  void findItems();
  void makeParts();
  void makeTasks();
  Status checkMemory() const;
  void prepareBeside();
  Status prepareSlot(Slot &slot);
  Status fillSlot(Slot &slot);
  const RankMemory *memoryOf(int rank) const;
  Store *store() const { return world_ ? world_->store() : nullptr; }
  Result<bool> allAreReady();
  Status announce();
  Status copyLocal(Slot &slot);
  Status copyTask(const Task &task, char *data) const;
  void job(int slot, CheckpointState state, Status copied);
  Status makeGeneration(Slot &slot, const CheckpointState &state,
                        const Status &copied);
  Status sendAndReceive(Slot &slot);
  Status checkParts(Slot &slot, Manifest &manifest) const;
  Status finish(const Slot &slot, const Manifest &manifest) const;
  Status commit(Slot &slot, int64_t step);
  Status retire(int slot, int64_t step);
  void drop(Slot &slot);
  void fail(const Status &status);
  void tell(const std::string &what);

  const LoadedPlan &plan_;
  std::span<const RankMemory> ranks_;
  CopyFolder &folder_;
  CopyHosts hosts_;
  CopyOptions options_;
  World *world_;
  ThreadPool pool_;
  std::vector<Item> items_;
  std::vector<CopyPart> parts_;
  std::vector<File> files_; // by part
  Manifest manifest_;       // but the run's state and what the parts are
  std::vector<Task> tasks_;
  std::vector<uint64_t> bytesOfHosts_;
  uint64_t bytesReceived_ = 0;

  Slot slots_[2];
  int next_ = 0; // slot
  bool announced_ = false;
  std::atomic<bool> busy_{false};
  bool begun_ = false; // the first copy
  std::thread thread_;
  std::atomic<int64_t> made_{0};   // generations
  std::atomic<int64_t> newest_{0}; // of them, its step
  int64_t skipped_ = 0;
  std::vector<double> stalls_; // seconds
  mutable std::mutex mutex_;   // of what follows
  std::vector<std::string> news_;
  std::string told_;  // the last of them
  double beside_ = 0; // seconds of the last generation
};

} // namespace merak::runtime
