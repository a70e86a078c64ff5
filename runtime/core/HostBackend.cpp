#include "runtime/core/HostBackend.h"

#include "runtime/core/DType.h"
#include "runtime/core/MemoryCount.h"
#include "runtime/layout/Strides.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <sys/mman.h>

namespace merak::runtime {

int64_t View::elements() const {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

bool View::dense() const { return layout::isDense(shape, strides); }

Status Backend::combine(std::span<const View>, const View &, bool, bool,
                        StreamHandle) {
  return Status::error(
      fmt::format("the {} backend does not communicate on a device", name()));
}

namespace {

// Below this much traffic a part costs less than handing it to a thread.
constexpr double kBytesPerPart = 16 << 10;
constexpr uint64_t kHugePage = 2 << 20;

struct GeneratedKernel : Prepared {
  using Function = void (*)(void *const *operands, const int64_t *scalars,
                            int64_t begin, int64_t end);
  Function function = nullptr;
  int64_t rows = 1, grain = 1;
  std::vector<void *> operands;
  std::vector<int64_t> scalars;
};

double bytesTouched(std::span<const View> views) {
  double bytes = 0;
  for (const View &view : views)
    bytes += static_cast<double>(view.elements() * dtypeSize(view.dtype));
  return bytes;
}

Result<void *> allocateHost(uint64_t bytes) {
  const uint64_t align = bytes >= 2 * kHugePage ? kHugePage : 64;
  void *memory = nullptr;
  if (posix_memalign(&memory, align, std::max<uint64_t>(bytes, 1)) != 0)
    return Status::error(fmt::format("cannot allocate {} bytes", bytes));
  // Not the last piece: it would grow to a whole huge page.
  if (align == kHugePage)
    madvise(memory, bytes & -kHugePage, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  MemoryCount::add(int64_t(bytes));
  return memory;
}

} // namespace

HostBackend::~HostBackend() {
  if (kernels_)
    dlclose(kernels_);
}

Result<std::shared_ptr<char>> sharedHostMemory(uint64_t bytes) {
  auto memory = allocateHost(bytes);
  if (!memory)
    return memory.status();
  return std::shared_ptr<char>(static_cast<char *>(*memory),
                               [bytes](char *data) {
                                 MemoryCount::remove(int64_t(bytes));
                                 std::free(data);
                               });
}

Result<void *> HostBackend::allocate(uint64_t bytes) {
  auto memory = allocateHost(bytes);
  if (!memory)
    return memory;
  std::lock_guard lock(mutex_);
  bytes_[*memory] = int64_t(bytes);
  return memory;
}

void HostBackend::release(void *memory) {
  std::lock_guard lock(mutex_);
  if (auto it = bytes_.find(memory); it != bytes_.end()) {
    MemoryCount::remove(it->second);
    bytes_.erase(it);
  }
  std::free(memory);
}

Status HostBackend::copyToDevice(void *device, const void *host, uint64_t bytes,
                                 StreamHandle) {
  std::memcpy(device, host, bytes);
  return {};
}

Status HostBackend::copyToHost(void *host, const void *device, uint64_t bytes,
                               StreamHandle) {
  std::memcpy(host, device, bytes);
  return {};
}

Status HostBackend::clear(void *device, uint64_t bytes, StreamHandle) {
  std::memset(device, 0, bytes);
  return {};
}

Status HostBackend::loadKernels(const std::string &path) {
  // A path without a slash would be searched for in the system's folders.
  const std::string file =
      path.find('/') == std::string::npos ? "./" + path : path;
  kernels_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!kernels_)
    return Status::error(fmt::format("cannot open kernels: {}", dlerror()));
  kernelsPath_ = path;
  return {};
}

Result<std::unique_ptr<Prepared>>
HostBackend::prepare(const planpb::Instruction &instruction,
                     std::span<const View> inputs,
                     std::span<const View> outputs) {
  if (instruction.kind() == planpb::Instruction::KERNEL)
    return prepareGenerated(instruction, inputs, outputs);
  return prepareLibrary(instruction, inputs, outputs);
}

Result<std::unique_ptr<Prepared>>
HostBackend::prepareGenerated(const planpb::Instruction &instruction,
                              std::span<const View> inputs,
                              std::span<const View> outputs) {
  if (!kernels_)
    return Status::error(fmt::format(
        "kernel \"{}\": the plan has no file of kernels", instruction.op()));
  void *symbol = dlsym(kernels_, instruction.op().c_str());
  if (!symbol)
    return Status::error(fmt::format("kernel \"{}\" is not in \"{}\"",
                                     instruction.op(), kernelsPath_));
  auto kernel = std::make_unique<GeneratedKernel>();
  kernel->function = reinterpret_cast<GeneratedKernel::Function>(symbol);
  kernel->rows = std::max<int64_t>(instruction.rows(), 1);
  const double bytes = bytesTouched(inputs) + bytesTouched(outputs);
  const double perRow = std::max(bytes / double(kernel->rows), 1e-3);
  kernel->grain =
      std::clamp<int64_t>(int64_t(kBytesPerPart / perRow), 1, kernel->rows);
  kernel->operands.resize(inputs.size() + outputs.size());
  kernel->scalars.resize(instruction.scalars_size());
  return std::unique_ptr<Prepared>(std::move(kernel));
}

Status HostBackend::run(const KernelCall &call) {
  if (call.instruction->kind() != planpb::Instruction::KERNEL)
    return runLibrary(call);
  auto &kernel = static_cast<GeneratedKernel &>(*call.prepared);
  size_t next = 0;
  for (const View &view : call.inputs)
    kernel.operands[next++] = view.data;
  for (const View &view : call.outputs)
    kernel.operands[next++] = view.data;
  for (size_t i = 0; i < call.scalars.size(); ++i)
    kernel.scalars[i] = call.scalars[i].bits();
  pool_.parallelFor(kernel.rows, kernel.grain,
                    [&kernel](int64_t begin, int64_t end) {
                      kernel.function(kernel.operands.data(),
                                      kernel.scalars.data(), begin, end);
                    });
  return {};
}

} // namespace merak::runtime
