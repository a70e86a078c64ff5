// What a device must offer to execute a plan: memory, ordered streams, events,
// and kernels that are prepared once and launched many times.
//
// The executor drives each stream of a rank from one host thread (a lane) and
// orders lanes among themselves. A *host* backend (CPU) runs each call to its
// end before `run` returns, so its streams and events are empty. A *device*
// backend (CUDA) only enqueues the call on `KernelCall::stream`; the lanes then
// run ahead, and `recordEvent`/`waitEvent` order the device.
//
// A CPU backend derives from HostBackend (runtime/core/HostBackend.h), which
// has everything but the library kernels.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/core/ThreadPool.h"
#include "runtime/plan/plan.pb.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace merak::runtime {

// A strided view of device memory. Strides in elements; 0 broadcasts.
struct View {
  void *data = nullptr; // of the first element
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t elements() const;
  // Row major without gaps (dimensions of size 1 may have any stride).
  bool dense() const;
};

// A scalar argument of one call: literal, learning rate, coordinate, ...
struct ScalarValue {
  bool isFloat = false;
  int64_t i = 0;
  double f = 0;

  static ScalarValue integer(int64_t value) { return {false, value, 0}; }
  static ScalarValue real(double value) { return {true, 0, value}; }
  double asDouble() const { return isFloat ? f : static_cast<double>(i); }
  int64_t asInteger() const { return isFloat ? static_cast<int64_t>(f) : i; }
  // As generated kernels take it: the integer, or the bits of the double.
  int64_t bits() const {
    int64_t word = i;
    if (isFloat)
      std::memcpy(&word, &f, sizeof(word));
    return word;
  }
};

// What `Backend::prepare` made of an instruction: parsed attributes, a kernel
// address, scratch memory. Used by one thread at a time.
class Prepared {
public:
  virtual ~Prepared() = default;
};

// Opaque device objects; null on host backends.
using StreamHandle = void *;
using EventHandle = void *;

// What comes first where work of several streams could run: other ranks wait
// for what communicates, nobody for what computes.
enum class Priority { Usual, High };

// One launch. The views have the shapes, strides and types that `prepare` saw;
// only their data differ from call to call. Inputs never overlap outputs unless
// they are the same view.
struct KernelCall {
  const planpb::Instruction *instruction = nullptr; // op, accumulate, name
  Prepared *prepared = nullptr;
  std::span<const View> inputs;
  std::span<const View> outputs;
  std::span<const ScalarValue> scalars;
  bool accumulate = false;
  StreamHandle stream = nullptr;
  // While a step is captured: the number of this call among those whose scalars
  // change from step to step; -1: they do not.
  int changes = -1;
  // The next call on the stream is `run` right behind this one, and nothing
  // else comes to the stream before: a device may do both at once, then. If it
  // does not come, because the step failed, this one may never be done.
  bool followed = false;
};

// The operations of a step as one object of the device, launched at once.
class CapturedStep {
public:
  virtual ~CapturedStep() = default;
  // Kernels, copies and what libraries enqueued.
  virtual size_t operations() const = 0;
  // Gives a captured call (`call.changes`) the scalars of the next launch.
  virtual Status update(const KernelCall &call) = 0;
  virtual Status launch(StreamHandle stream) = 0;
};

// Where memory of a device comes from.
class MemorySource {
public:
  virtual ~MemorySource() = default;
  // Aligned to 64 bytes at least, cleared.
  virtual Result<void *> allocate(uint64_t bytes) = 0;
  virtual void release(void *memory) = 0;
};

// One device as one rank sees it. Thread-compatible: `run` may be called from
// several lanes at once, each with its own KernelCall and Prepared.
class Backend : public MemorySource {
public:
  virtual const char *name() const = 0;
  // Of the hardware, for people: "NVIDIA H200".
  virtual std::string deviceName() const { return name(); }
  // Host backend: memory can be read by the host, calls end when they return.
  virtual bool isHost() const = 0;

  // What `allocate` can still give; by default no limit is known.
  virtual Result<uint64_t> freeMemory() { return UINT64_MAX; }
  // Ordered with the stream; complete on return (host side).
  virtual Status copyToDevice(void *device, const void *host, uint64_t bytes,
                              StreamHandle stream) = 0;
  virtual Status copyToHost(void *host, const void *device, uint64_t bytes,
                            StreamHandle stream) = 0;
  virtual Status clear(void *device, uint64_t bytes, StreamHandle stream) = 0;

  virtual Result<StreamHandle> createStream(Priority = Priority::Usual) {
    return StreamHandle{};
  }
  virtual void destroyStream(StreamHandle) {}
  virtual Result<EventHandle> createEvent() { return EventHandle{}; }
  virtual void destroyEvent(EventHandle) {}
  virtual Status recordEvent(EventHandle, StreamHandle) { return {}; }
  virtual Status waitEvent(StreamHandle, EventHandle) { return {}; }
  // Returns when everything enqueued on the stream is done.
  virtual Status synchronize(StreamHandle) { return {}; }

  // An event that keeps the time at which the device passed it, and the seconds
  // between two such that the device has passed.
  virtual Result<EventHandle> createTimer() {
    return Status::error("the device has no clock");
  }
  virtual Result<double> elapsed(EventHandle, EventHandle) {
    return Status::error("the device has no clock");
  }

  // Devices that launch a whole step at once: between the two calls nothing
  // that is enqueued on the stream, and on streams that wait for events
  // recorded since, is done; it is written down instead. One thread enqueues.
  // After an error, of whichever call, the capture is ended all the same and
  // has done nothing.
  virtual Status beginCapture(StreamHandle) {
    return Status::error("the device has no graphs");
  }
  virtual Result<std::unique_ptr<CapturedStep>> endCapture(StreamHandle) {
    return Status::error("the device has no graphs");
  }
  // Host memory that `upload` reads when the device comes to it.
  virtual Result<void *> allocateStaging(uint64_t) {
    return Status::error("the device has no graphs");
  }
  virtual void releaseStaging(void *) {}
  virtual Status upload(void *, const void *, uint64_t, StreamHandle) {
    return Status::error("the device has no graphs");
  }

  // What prepared calls need beside the program's memory: a workspace for each
  // stream, as large as the hungriest of its calls asks for.
  virtual void askWorkspace(StreamHandle, uint64_t) {}
  // Bytes that `takeWorkspaces` takes for the stream.
  virtual uint64_t workspaceBytes(StreamHandle) const { return 0; }
  // Once everything is prepared; a step takes no memory. `source`: where the
  // workspaces of streams come from, which outlives them; null: the backend.
  virtual Status takeWorkspaces(MemorySource *source) {
    (void)source;
    return {};
  }
  // Of one call at a time; grows where it was not asked for.
  virtual Result<void *> workspace(StreamHandle, uint64_t) {
    return Status::error("the backend has no workspaces");
  }

  // Opens the plan's file of generated kernels.
  virtual Status loadKernels(const std::string &path) = 0;
  // Once for each KERNEL and LIBRARY instruction of a program, at load time:
  // parses attributes, checks operands, finds the kernel. The data of the views
  // are null. Errors name the op; the caller adds rank and instruction.
  virtual Result<std::unique_ptr<Prepared>>
  prepare(const planpb::Instruction &instruction, std::span<const View> inputs,
          std::span<const View> outputs) = 0;
  // Runs (host) or enqueues (device) one call.
  virtual Status run(const KernelCall &call) = 0;

  // Device backends: out = in[0] op in[1] op ... from left to right on the
  // stream, 16-bit types in f32 and rounded once; what ranks that share a
  // device communicate by. Views of one shape and type; `out` may be one of
  // the inputs.
  virtual Status combine(std::span<const View> in, const View &out,
                         bool maximum, bool accumulate, StreamHandle stream);
};

} // namespace merak::runtime
