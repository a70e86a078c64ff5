// What the CUDA backend needs of a device, so that everything above it can run
// on a stand-in: the driver (Driver.h), or host functions in tests.
//
// Addresses, streams, events and functions are the driver's, as opaque words.
// Calls on a stream only enqueue. Any thread may call.
#pragma once

#include "runtime/backends/cuda/Fused.h"
#include "runtime/backends/cuda/Matmul.h"
#include "runtime/backends/cuda/kernels/Kernels.h"
#include "runtime/core/Backend.h"
#include "runtime/core/Status.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace merak::cuda {

using Stream = void *;
using Event = void *;
using Function = void *;
using runtime::Priority;

struct DeviceInfo {
  std::string name;         // "NVIDIA H200"
  int major = 0, minor = 0; // compute capability
  int processors = 1;       // multiprocessors
};

// One-dimensional launch.
struct Grid {
  int64_t blocks = 0;
  int threads = 0;
};

// An operation of a graph, to change its arguments.
using Node = void *;

// What streams were asked to do while they were captured, as one object.
class Graph {
public:
  virtual ~Graph() = default;
  virtual size_t operations() const = 0;
  virtual Status launch(Stream stream) = 0;
  // Other arguments for a kernel that was captured, for later launches; the
  // same kernel. As in Device::launch.
  virtual Status update(Node node, KernelId kernel, Grid grid,
                        const void *args) = 0;
  virtual Status update(Node node, Function function, Grid grid,
                        size_t operands,
                        const std::vector<uint64_t> &words) = 0;
};

// What is left to do where a product does not end with its epilogue: to be
// timed, on other memory than the call's.
struct Rest {
  std::string name;            // all that its time depends on
  std::vector<uint64_t> bytes; // of the blocks that it reads and writes
  std::function<Status(std::span<char *const> blocks, Stream)> run;
};
using RestOf = std::function<Rest()>;

class Device {
public:
  virtual ~Device() = default;
  virtual const DeviceInfo &info() const = 0;

  virtual Result<void *> allocate(uint64_t bytes) = 0;
  virtual void release(void *memory) = 0;
  virtual Result<uint64_t> freeBytes() = 0;
  // Host memory that copies without a detour (pinned).
  virtual Result<void *> allocateHost(uint64_t bytes) = 0;
  virtual void releaseHost(void *memory) = 0;
  // Between any two addresses.
  virtual Status copy(void *to, const void *from, uint64_t bytes,
                      Stream stream) = 0;
  virtual Status clear(void *memory, uint64_t bytes, Stream stream) = 0;

  virtual Result<Stream> createStream(Priority priority = Priority::Usual) = 0;
  virtual void destroyStream(Stream stream) = 0;
  virtual Status synchronize(Stream stream) = 0;
  virtual Result<Event> createEvent() = 0;
  virtual void destroyEvent(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;
  virtual Status synchronizeEvent(Event event) = 0;
  // An event that keeps the time at which the device passed it.
  virtual Result<Event> createTimer() = 0;
  // Seconds between two timers that the device has passed.
  virtual Result<double> elapsed(Event from, Event to) = 0;

  // Until `endCapture` nothing enqueued on the stream is done, nor on streams
  // that wait for what was recorded on it since: they must be awaited before
  // the end. A host may not wait for a stream that is captured.
  virtual Status beginCapture(Stream stream) = 0;
  virtual Result<std::unique_ptr<Graph>> endCapture(Stream stream) = 0;
  // The operation that was captured last on the stream.
  virtual Result<Node> lastCaptured(Stream stream) = 0;

  // A module of generated kernels: PTX text, cubin or fatbin. Lives as long as
  // the device. `name` is for messages.
  virtual Result<void *> loadModule(const std::string &image,
                                    const std::string &name) = 0;
  // Null if the module has no such entry.
  virtual Function function(void *module, const std::string &name) = 0;
  // The threads of a block for which an entry of a module was compiled.
  virtual Result<int> threadsOf(Function function) = 0;
  // `words`: parameters of 8 bytes each, first so many operands' addresses.
  virtual Status launch(Function function, Grid grid, size_t operands,
                        const std::vector<uint64_t> &words, Stream stream) = 0;
  // A kernel of kernels/Kernels.h; `args` is its argument structure.
  virtual Status launch(KernelId kernel, Grid grid, const void *args,
                        Stream stream) = 0;
  // `workspace`: kMatmulWorkspace bytes.
  virtual Status matmul(const Matmul &problem, const MatmulCall &call,
                        void *workspace, Stream stream) = 0;
  // Whether the library has a kernel for the product's epilogue, with these
  // operands, that is not slower than the plain product and the rest; or for
  // the product of factors of 8 bits. `matmul` may be called with them only
  // then.
  virtual Result<bool> takes(const Matmul &problem, const MatmulCall &call,
                             const RestOf &rest) = 0;
  // A library's kernel for the whole operation; null where there is none.
  virtual std::shared_ptr<FusedPlan> fused(const FusedAttention &) const {
    return nullptr;
  }
  virtual std::shared_ptr<FusedPlan> fused(const FusedConvolution &) const {
    return nullptr;
  }
  // By which library attention and convolutions run, for people.
  virtual std::string fusedBy() const { return "not by cuDNN"; }
  // Says why if products cannot run on this machine.
  virtual Status checkMatmul() = 0;
};

constexpr uint64_t kMatmulWorkspace = 32 << 20; // as cuBLAS takes on Hopper

// ---------------------------------------------------------------- geometry

constexpr int kItemThreads = 256;
constexpr int kMaxRowThreads = kMostThreads;
constexpr int64_t kResidentThreads = 2048; // of a processor

// Kernels whose threads share out `items`: enough blocks to fill the device
// sixteen times over, no more (each thread then takes several).
Grid itemGrid(int64_t items, const DeviceInfo &info);
// Kernels with a block for each row of `size` elements.
Grid rowGrid(int64_t rows, int64_t size, const DeviceInfo &info);
// Into how many pieces to cut sums over `size` elements of `results` results,
// so that the device is busy; 1 when there are enough results.
int64_t pieceCount(int64_t results, int64_t size, int64_t threadsPerResult,
                   const DeviceInfo &info);

// The same for sums down columns, which a block does for one of `tiles` parts
// of the columns, where a processor holds so many blocks at once. No more than
// these: half of them keep memory busy, and more pieces take longer to add.
int64_t tilePieceCount(int64_t tiles, int64_t rows, int64_t blocks,
                       const DeviceInfo &info);
constexpr int64_t kTileBlocks = kResidentThreads / kTileThreads;

} // namespace merak::cuda
