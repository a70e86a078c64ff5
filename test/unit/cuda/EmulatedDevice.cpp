#include "test/unit/cuda/EmulatedDevice.h"

#include "test/unit/cuda/HostBlock.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace merak::cuda {

namespace {

using HostKernel = void (*)(HostBlock &block, const void *args);

const HostKernel kKernels[] = {
#define MERAK_HOST_KERNEL(name, Args, body)                                    \
  [](HostBlock &block, const void *args) {                                     \
    body(block, *static_cast<const Args *>(args));                             \
  },
    MERAK_CUDA_KERNELS(MERAK_HOST_KERNEL)
#undef MERAK_HOST_KERNEL
};

void runGrid(HostKernel kernel, const void *args, int64_t blocks, int threads) {
  for (int64_t b = blocks; b-- > 0;) { // no block may count on an earlier one
    HostBlockState state;
    state.block = b;
    state.blocks = blocks;
    state.threads = threads;
    auto thread = [&](int i) {
      HostBlock block(state, i);
      kernel(block, args);
    };
    if (threads == 1) {
      thread(0);
      continue;
    }
    Fibers fibers(threads, thread);
    state.fibers = &fibers;
    fibers.run();
  }
}

} // namespace

EmulatedDevice::EmulatedDevice(Emulation emulation) : emulation_(emulation) {
  info_ = {"emulated device", 9, 0, emulation.processors};
}

EmulatedDevice::~EmulatedDevice() {
  for (void *module : modules_)
    dlclose(module);
}

Result<void *> EmulatedDevice::allocate(uint64_t bytes) {
  const uint64_t rounded = (std::max<uint64_t>(bytes, 1) + 255) / 256 * 256;
  void *memory = std::aligned_alloc(256, rounded);
  if (!memory)
    return Status::error("out of memory");
  // Device memory is not cleared. Of a large workspace, the part that is used.
  std::memset(memory, 0xcd, std::min<uint64_t>(rounded, 1 << 20));
  std::lock_guard lock(mutex_);
  memory_.insert(memory);
  return memory;
}
Result<void *> EmulatedDevice::allocateHost(uint64_t bytes) {
  return allocate(bytes);
}
void EmulatedDevice::release(void *memory) {
  std::lock_guard lock(mutex_);
  if (memory_.erase(memory) == 0)
    std::abort();
  std::free(memory);
}
Status EmulatedDevice::copy(void *to, const void *from, uint64_t bytes,
                            Stream) {
  std::memcpy(to, from, bytes);
  return {};
}
Status EmulatedDevice::clear(void *memory, uint64_t bytes, Stream) {
  std::memset(memory, 0, bytes);
  return {};
}

Result<Stream> EmulatedDevice::createStream() {
  std::lock_guard lock(mutex_);
  return *streams_.insert(new char).first;
}
void EmulatedDevice::destroyStream(Stream stream) {
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
  delete static_cast<char *>(stream);
}
Status EmulatedDevice::synchronize(Stream) { return {}; }
Result<Event> EmulatedDevice::createEvent() {
  std::lock_guard lock(mutex_);
  return *events_.insert(new char).first;
}
void EmulatedDevice::destroyEvent(Event event) {
  std::lock_guard lock(mutex_);
  events_.erase(event);
  recorded_.erase(event);
  delete static_cast<char *>(event);
}
Status EmulatedDevice::record(Event event, Stream) {
  std::lock_guard lock(mutex_);
  if (!events_.count(event))
    return Status::error("records an event that does not exist");
  recorded_.insert(event);
  return {};
}
Status EmulatedDevice::wait(Stream, Event event) {
  std::lock_guard lock(mutex_);
  return recorded_.count(event)
             ? Status()
             : Status::error("waits for an event that was not recorded");
}
Status EmulatedDevice::synchronizeEvent(Event event) {
  return wait(nullptr, event);
}

Result<void *> EmulatedDevice::loadModule(const std::string &,
                                          const std::string &name) {
  void *module = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module)
    return Status::error(dlerror());
  modules_.push_back(module);
  return module;
}
Function EmulatedDevice::function(void *module, const std::string &name) {
  return dlsym(module, name.c_str());
}

// A CPU kernel has two arrays and a range of rows; see docs/Kernels.md.
Status EmulatedDevice::launch(Function function, Grid grid, size_t operands,
                              const std::vector<uint64_t> &words, Stream) {
  using CpuKernel = void (*)(void *const *, const int64_t *, int64_t, int64_t);
  reinterpret_cast<CpuKernel>(function)(
      reinterpret_cast<void *const *>(words.data()),
      reinterpret_cast<const int64_t *>(words.data() + operands), 0,
      grid.blocks);
  return {};
}

Status EmulatedDevice::launch(KernelId kernel, Grid grid, const void *args,
                              Stream) {
  if (grid.blocks < 1 || grid.blocks > INT32_MAX || grid.threads < 32 ||
      grid.threads > kMaxRowThreads || grid.threads % 32 != 0)
    return Status::error(fmt::format("no such grid: {} blocks of {} threads",
                                     grid.blocks, grid.threads));
  runGrid(kKernels[static_cast<int>(kernel)], args,
          std::min<int64_t>(grid.blocks, emulation_.blocks),
          emulation_.threads);
  return {};
}

Result<bool> EmulatedDevice::takes(const Matmul &p, const MatmulCall &call) {
  if (p.hasEpilogue() && (p.batch != 1 || p.biased != (call.bias != nullptr) ||
                          (p.keep || p.gradient) != (call.aux != nullptr) ||
                          (p.gelu && p.gradient) || (p.keep && !p.gelu) ||
                          (call.aux && (p.ldAux < p.m || p.ldAux % 8))))
    return Status::error("an epilogue that cuBLASLt does not have");
  return emulation_.epilogues;
}

Status EmulatedDevice::matmul(const Matmul &p, const MatmulCall &call,
                              void *workspace, Stream) {
  if (!workspace)
    return Status::error("a product without workspace");
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.batch < 1 ||
      p.lda < (p.transA ? p.k : p.m) || p.ldb < (p.transB ? p.n : p.k) ||
      p.ldc < p.m || (p.c != p.ab && p.c != Type::F32))
    return Status::error("a product that cuBLASLt refuses");
  const Ref a{static_cast<char *>(const_cast<void *>(call.a)), p.ab};
  const Ref b{static_cast<char *>(const_cast<void *>(call.b)), p.ab};
  const Ref c{static_cast<char *>(call.c), p.c};
  for (int64_t t = 0; t < p.batch; ++t)
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t i = 0; i < p.m; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k)
          sum += double(load<float>(a, t * p.strideA + (p.transA
                                                            ? k + i * p.lda
                                                            : i + k * p.lda))) *
                 double(load<float>(b, t * p.strideB + (p.transB
                                                            ? j + k * p.ldb
                                                            : k + j * p.ldb)));
        const int64_t at = t * p.strideC + i + j * p.ldc;
        double value = call.alpha * sum;
        if (call.beta != 0)
          value += call.beta * load<float>(c, at);
        float result = static_cast<float>(value);
        const Ref aux{static_cast<char *>(call.aux), p.c};
        if (p.biased)
          result += load<float>(
              {static_cast<char *>(const_cast<void *>(call.bias)), p.c}, i);
        if (p.keep)
          store<float>(aux, i + j * p.ldAux, result, false);
        if (p.gradient)
          result *= runtime::geluSlope(load<float>(aux, i + j * p.ldAux));
        else if (p.gelu)
          result = runtime::gelu(result);
        store<float>(c, at, result, false);
      }
  return {};
}

size_t EmulatedDevice::live() const {
  std::lock_guard lock(mutex_);
  return memory_.size() + streams_.size() + events_.size();
}

} // namespace merak::cuda
