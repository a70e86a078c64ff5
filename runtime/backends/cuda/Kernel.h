// What a library kernel of the CUDA backend is: a factory that checks an
// instruction once and returns an object that enqueues it many times. Operands
// are read as on the CPU (cpu::Request, cpu::Nest), whose meaning is the
// reference.
#pragma once

#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cuda/Device.h"
#include "runtime/plan/LibraryKernels.h"

namespace merak::cuda {

using cpu::Nest;
using cpu::Request;
using runtime::KernelCall;
using runtime::View;

inline uint64_t alignUp(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Takes a call's launches instead of the device: writes down which operations
// of a graph they become, or gives these other arguments.
class LaunchTap {
public:
  virtual ~LaunchTap() = default;
  virtual Status launch(KernelId kernel, Grid grid, const void *args) = 0;
  virtual Status launch(Function function, Grid grid, size_t operands,
                        const std::vector<uint64_t> &words) = 0;
};

// Enqueues the launches of one call. Kernels that read `KernelCall::scalars`
// launch through `items` and `rows` only, so that graphs can change them.
class Launcher {
public:
  Launcher(Device &device, Stream stream, void *workspace)
      : device(device), stream(stream), free_(static_cast<char *>(workspace)) {}

  Device &device;
  Stream stream;
  LaunchTap *tap = nullptr;
  bool capturing = false;

  // A part of what the kernel asked for in `Kernel::workspace`.
  template <typename T = char> T *workspace(uint64_t count) {
    char *part = free_;
    free_ += alignUp(count * sizeof(T));
    return reinterpret_cast<T *>(part);
  }
  template <KernelId id>
  Status items(const typename KernelArgs<id>::Type &args, int64_t items) {
    return start(id, itemGrid(items, device.info()), &args);
  }
  template <KernelId id>
  Status rows(const typename KernelArgs<id>::Type &args, int64_t rows,
              int64_t size) {
    return start(id, rowGrid(rows, size, device.info()), &args);
  }
  // The one of three kernels that is for a real type.
  template <KernelId f32, KernelId bf16, KernelId f16>
  Status rowsOf(Type type, const typename KernelArgs<f32>::Type &args,
                int64_t rows, int64_t size) {
    return type == Type::BF16  ? this->rows<bf16>(args, rows, size)
           : type == Type::F16 ? this->rows<f16>(args, rows, size)
                               : this->rows<f32>(args, rows, size);
  }
  // A product without epilogue, of any batch; `memory`: kMatmulWorkspace bytes.
  Status multiply(Matmul product, MatmulCall call, void *memory);

private:
  Status start(KernelId id, Grid grid, const void *args) {
    return grid.blocks == 0 ? Status()
           : tap            ? tap->launch(id, grid, args)
                            : device.launch(id, grid, args, stream);
  }
  char *free_;
};

// Calls that follow each other and are done by one launch, with the results
// that they have one by one.
class Joint {
public:
  explicit Joint(const KernelCall &call);
  virtual ~Joint() = default;
  // Takes what another does. False, and nothing is changed, if that is of
  // another kind, touches what this one writes, or has no room.
  bool join(const Joint &other);
  // Bytes at the launcher's disposal.
  uint64_t workspace() const { return workspace_; }
  virtual Status run(Launcher &launcher) const = 0;

protected:
  virtual bool take(const Joint &other) = 0;

private:
  struct Bytes {
    const char *begin, *end;
    bool written;
  };
  const std::string *kind_;
  uint64_t workspace_;
  std::vector<Bytes> touched_;
};

class Kernel : public runtime::Prepared {
public:
  // Every stream has one workspace, as large as the largest of its kernels.
  uint64_t workspace = 0;
  // Operation, attributes and where its scalars come from: calls of one step
  // that have these in common compute with the same numbers.
  std::string kind;
  virtual Status run(const KernelCall &call, Launcher &launcher) = 0;
  // Whether one kernel of a library did all of the last call.
  virtual bool ranFused() const { return false; }
  // What `run` would do, to be joined with other calls; null: it cannot be.
  virtual std::unique_ptr<Joint> joint(const KernelCall &) { return nullptr; }
};
using KernelResult = Result<std::unique_ptr<Kernel>>;

// The call, to be timed on other memory (Device::takes). Refers to all three.
Rest restOf(Kernel &kernel, const KernelCall &call, Device &device);

// Wraps a callable `Status(const KernelCall &, Launcher &)`.
template <typename Body>
KernelResult makeKernel(Body body, uint64_t workspace = 0) {
  struct Wrapper : Kernel {
    explicit Wrapper(Body b) : body(std::move(b)) {}
    Status run(const KernelCall &call, Launcher &launcher) override {
      return body(call, launcher);
    }
    Body body;
  };
  auto kernel = std::make_unique<Wrapper>(std::move(body));
  kernel->workspace = workspace;
  return std::unique_ptr<Kernel>(std::move(kernel));
}

// `make` makes the joint of one call, or null where `body` has to run it.
template <typename Body, typename Make>
KernelResult makeJoining(Body body, Make make, uint64_t workspace = 0) {
  struct Wrapper : Kernel {
    Wrapper(Body b, Make m) : body(std::move(b)), make(std::move(m)) {}
    Status run(const KernelCall &call, Launcher &launcher) override {
      const std::unique_ptr<Joint> one = make(call);
      return one ? one->run(launcher) : body(call, launcher);
    }
    std::unique_ptr<Joint> joint(const KernelCall &call) override {
      return make(call);
    }
    Body body;
    Make make;
  };
  auto kernel = std::make_unique<Wrapper>(std::move(body), std::move(make));
  kernel->workspace = workspace;
  return std::unique_ptr<Kernel>(std::move(kernel));
}

// Operands of a fused kernel, in its order: inputs by position, outputs as
// ~position.
using FusedOrder = std::vector<int>;
// `other` where there is no plan, or where the library does not run it after
// all.
KernelResult withFused(std::shared_ptr<FusedPlan> plan, FusedOrder order,
                       KernelResult other);
// A view with its dimensions in this order.
FusedTensor fusedTensor(const View &view, const std::vector<size_t> &order);

// Which operands a kernel takes as they lie; others pass through dense copies.
enum class Strides {
  Any,
  Rows, // rank 4: the last dimension contiguous, rows that do not overlap
  Dense
};

struct KernelEntry {
  LibraryKernelName name;
  KernelResult (*create)(Request &, const Device &);
  Strides strides = Strides::Any;
  bool updates = false; // reads its outputs (optimizers): no accumulate
  // Whether it cannot add to its outputs: they are then dense copies, which are
  // added. Null: it can.
  bool (*overwrites)(const planpb::Instruction &) = nullptr;
};

// All library kernels, by file.
std::span<const KernelEntry> contractionKernels();
std::span<const KernelEntry> moveKernels();
std::span<const KernelEntry> indexKernels();
std::span<const KernelEntry> reduceKernels();
std::span<const KernelEntry> rowKernels();
std::span<const KernelEntry> normKernels();
std::span<const KernelEntry> attentionKernels();
std::span<const KernelEntry> windowKernels();
std::span<const KernelEntry> updateKernels();

std::vector<std::span<const KernelEntry>> allKernels();
const KernelEntry *findKernel(const std::string &name);

// Checks the instruction and prepares the kernel with the copies it needs.
KernelResult prepareKernel(const planpb::Instruction &instruction,
                           std::span<const View> inputs,
                           std::span<const View> outputs, const Device &device);

// ---------------------------------------------------------------- operands

inline Type typeOf(planpb::DType dtype) {
  return static_cast<Type>(static_cast<int>(dtype));
}
inline Ref ref(const View &view) {
  return {static_cast<char *>(view.data), typeOf(view.dtype)};
}
// Whether the loops walk neighbouring elements of operand `o`.
template <int N> bool isContiguous(const Loops<N> &loops, int o) {
  return loops.count <= 1 || (loops.rank == 1 && loops.strides[o][0] == 1);
}
inline bool isAligned(const void *data, uint64_t bytes = kPackBytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}
inline int64_t packSize(Type type) {
  return kPackBytes / (type == Type::F32 ? 4 : 2);
}
inline bool isReal(planpb::DType dtype) {
  return dtype == planpb::F32 || dtype == planpb::BF16 || dtype == planpb::F16;
}
// Records a problem unless the operand is f32, bf16 or f16.
bool expectReal(Request &request, const View &view, const char *what);
bool expectAllReal(Request &request);

// Records a problem if more dimensions are left than a kernel can walk.
template <int N> Loops<N> makeLoops(Request &request, const Nest &nest) {
  Loops<N> loops;
  if (!request.expect(nest.rank() <= kMaxDims,
                      "more than 8 dimensions that cannot be merged"))
    return loops;
  loops.rank = static_cast<int32_t>(nest.rank());
  loops.count = nest.count();
  for (int64_t d = 0; d < nest.rank(); ++d) {
    loops.sizes[d] = nest.sizes[d];
    for (size_t o = 0; o < nest.strides.size() && o < N; ++o)
      loops.strides[o][d] = nest.strides[o][d];
  }
  return loops;
}

// A copy between views of one shape; the data are put in later.
CopyArgs makeCopy(Request &request, const View &from, const View &to, bool add);
View denseView(const View &view);
// Bytes of a dense copy.
uint64_t denseBytes(const View &view);

Status runCopy(Launcher &launcher, CopyArgs args, const void *from, void *to);
// Zeros where the loops lead from the first element on; 16 bytes at once where
// they lie densely.
Status runClear(Launcher &launcher, const Loops<1> &loops, const Ref &to);

} // namespace merak::cuda
