// A device made of host functions: kernels run as loops over blocks and threads
// when they are launched, products as loops over what their descriptors say,
// generated kernels from a CPU plan's shared object. Everything of the CUDA
// backend above the driver runs on it.
//
// Without a seed work is done at once; with one, when streams, events and the
// host's waits allow or demand it (EmulatedStreams.h). A wait for an event that
// nobody recorded is an error, because on a device it would wait for nothing.
// Captured streams do nothing until their graph is launched (EmulatedGraph.h).
#pragma once

#include "test/unit/cuda/EmulatedGraph.h"
#include "test/unit/cuda/EmulatedStreams.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

namespace merak::cuda {

struct Emulation {
  int threads = 1; // of a block; more run as fibers
  int blocks = 2;  // of a grid, at most
  int processors = 2;
  bool epilogues = true; // products end with biases and GELU
  bool fused = true;     // attention and convolutions in one kernel
  bool mixed = true;     // convolutions of 16 bits with gradients in f32
  uint64_t memory = uint64_t{1} << 40;
  size_t captures = SIZE_MAX; // operations that a capture takes before it fails
  int major = 9, minor = 0;   // compute capability
  uint64_t seed = 0;          // of the order of work; 0: as it is asked for
  // A wait that does nothing: which one of which stream, both from 0 in the
  // order of their making.
  std::optional<std::pair<size_t, size_t>> lost;
};

class EmulatedDevice : public Device {
public:
  explicit EmulatedDevice(Emulation emulation = {});
  ~EmulatedDevice() override;

  const DeviceInfo &info() const override { return info_; }
  Result<void *> allocate(uint64_t bytes) override;
  void release(void *memory) override;
  Result<uint64_t> freeBytes() override;
  Result<void *> allocateHost(uint64_t bytes) override;
  void releaseHost(void *memory) override;
  Status copy(void *to, const void *from, uint64_t bytes,
              Stream stream) override;
  Status clear(void *memory, uint64_t bytes, Stream stream) override;
  Result<Stream> createStream(Priority priority = Priority::Usual) override;
  void destroyStream(Stream stream) override;
  Status synchronize(Stream stream) override;
  Result<Event> createEvent() override;
  void destroyEvent(Event event) override;
  Status record(Event event, Stream stream) override;
  Status wait(Stream stream, Event event) override;
  Status synchronizeEvent(Event event) override;
  void advance(); // something is done that may be, by itself
  Result<Event> createTimer() override;
  Result<double> elapsed(Event from, Event to) override;
  Status beginCapture(Stream stream) override;
  Result<std::unique_ptr<Graph>> endCapture(Stream stream) override;
  Result<Node> lastCaptured(Stream stream) override;
  Result<void *> loadModule(const std::string &image,
                            const std::string &name) override;
  Function function(void *module, const std::string &name) override;
  Result<int> threadsOf(Function) override { return 64; } // a CPU kernel
  Status launch(Function function, Grid grid, size_t operands,
                const std::vector<uint64_t> &words, Stream stream) override;
  Status launch(KernelId kernel, Grid grid, const void *args,
                Stream stream) override;
  Status matmul(const Matmul &problem, const MatmulCall &call, void *workspace,
                Stream stream) override;
  // Also does the rest, as a device that times it, and checks that it stays
  // within its blocks.
  Result<bool> takes(const Matmul &problem, const MatmulCall &call,
                     const RestOf &rest) override;
  std::shared_ptr<FusedPlan> fused(const FusedAttention &) const override;
  std::shared_ptr<FusedPlan> fused(const FusedConvolution &) const override;
  Status checkMatmul() override { return {}; }

  // How the stream was made; usual for the default stream.
  Priority priority(Stream stream) const;
  bool isFirst(Stream stream) const; // of those that were made
  // Runs the work in its stream's turn, or now.
  Status inTurn(Stream stream, EmulatedWork work) const;
  // Allocations, streams and events that were not given back.
  size_t live() const;
  // Bytes that are allocated, and the most that ever were.
  uint64_t usedBytes() const;
  uint64_t mostBytes() const;
  // Of the first MiB of each allocation of the device, in their order. Nothing
  // may be under way.
  uint64_t contentHash() const;
  // How often each stream was told to wait, in the order of their making.
  std::vector<size_t> waits() const;
  // Runs the work, or writes it down if the stream is captured. `kernel`: see
  // EmulatedGraph::Entry.
  Status enqueue(Stream stream, EmulatedWork work,
                 const void *kernel = nullptr) const;

private:
  void free(void *memory);
  void passTimer(Event event);
  // Counts a wait; whether it is the one that is lost.
  bool loses(Stream stream);
  EmulatedWork work(KernelId kernel, Grid grid, const void *args) const;
  static EmulatedWork work(Function function, Grid grid, size_t operands,
                           const std::vector<uint64_t> &words);

  Emulation emulation_;
  DeviceInfo info_;
  mutable std::mutex mutex_;
  struct Block {
    uint64_t bytes = 0; // 0: pinned
    uint64_t number = 0;
  };
  std::map<void *, Block> memory_;
  uint64_t blocks_ = 0;              // ever allocated
  std::map<Stream, size_t> numbers_; // of streams
  std::vector<size_t> waits_;        // by number
  std::set<void *> pinned_, streams_, urgent_, events_;
  std::map<Event, double> timers_; // seconds when passed; negative: not yet
  uint64_t used_ = 0, most_ = 0;
  mutable EmulatedCaptures captures_;
  std::unique_ptr<EmulatedStreams> queues_; // with a seed
  std::vector<void *> modules_;
};

} // namespace merak::cuda
