#include "test/unit/cuda/EmulatedDevice.h"

#include "test/unit/cuda/HostBlock.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace merak::cuda {

namespace {

// Of new memory, what gets rubbish that is the same in every run.
constexpr uint64_t kFilled = 1 << 20;

using HostKernel = void (*)(HostBlock &block, const void *args);

// Bytes of the arguments, which are copied when a kernel is launched.
const size_t kArgBytes[] = {
#define MERAK_ARG_BYTES(name, Args, body) sizeof(Args),
    MERAK_CUDA_KERNELS(MERAK_ARG_BYTES)
#undef MERAK_ARG_BYTES
};

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
  info_ = {"emulated device", emulation.major, emulation.minor,
           emulation.processors};
  if (emulation.seed != 0)
    queues_ = std::make_unique<EmulatedStreams>(emulation.seed);
}

EmulatedDevice::~EmulatedDevice() {
  for (void *module : modules_)
    dlclose(module);
}

Result<void *> EmulatedDevice::allocate(uint64_t bytes) {
  MERAK_RETURN_IF_ERROR(captures_.allocates());
  const uint64_t rounded = (std::max<uint64_t>(bytes, 1) + 255) / 256 * 256;
  {
    std::lock_guard lock(mutex_);
    if (bytes > emulation_.memory - used_)
      return Status::error(fmt::format("cannot allocate {} bytes on {}: out "
                                       "of memory",
                                       bytes, info_.name));
  }
  void *memory = std::aligned_alloc(256, rounded);
  if (!memory)
    return Status::error("out of memory");
  // Device memory is not cleared. Of a large workspace, the part that is used.
  std::memset(memory, 0xcd, std::min<uint64_t>(rounded, kFilled));
  std::lock_guard lock(mutex_);
  memory_[memory] = {bytes, blocks_++};
  used_ += bytes;
  most_ = std::max(most_, used_);
  return memory;
}
Result<void *> EmulatedDevice::allocateHost(uint64_t bytes) {
  MERAK_RETURN_IF_ERROR(captures_.allocates());
  void *memory = std::malloc(std::max<uint64_t>(bytes, 1));
  std::lock_guard lock(mutex_);
  memory_[memory] = {};
  return memory;
}
void EmulatedDevice::free(void *memory) {
  std::lock_guard lock(mutex_);
  auto found = memory_.find(memory);
  if (found == memory_.end())
    std::abort();
  used_ -= found->second.bytes;
  memory_.erase(found);
  std::free(memory);
}
void EmulatedDevice::release(void *memory) {
  if (!captures_.allocates().ok())
    std::abort();
  if (queues_) // as the driver does
    queues_->drain();
  free(memory);
}
void EmulatedDevice::releaseHost(void *memory) {
  if (queues_)
    queues_->drain();
  free(memory);
}
Result<uint64_t> EmulatedDevice::freeBytes() {
  std::lock_guard lock(mutex_);
  return emulation_.memory - used_;
}
uint64_t EmulatedDevice::usedBytes() const {
  std::lock_guard lock(mutex_);
  return used_;
}
uint64_t EmulatedDevice::mostBytes() const {
  std::lock_guard lock(mutex_);
  return most_;
}

uint64_t EmulatedDevice::contentHash() const {
  std::lock_guard lock(mutex_);
  std::map<uint64_t, std::string_view> blocks;
  for (const auto &[memory, block] : memory_)
    if (block.bytes > 0)
      blocks[block.number] = {static_cast<const char *>(memory),
                              std::min(block.bytes, kFilled)};
  uint64_t hash = 0;
  for (const auto &[number, bytes] : blocks)
    hash = hash * 31 + std::hash<std::string_view>()(bytes);
  return hash;
}
std::vector<size_t> EmulatedDevice::waits() const {
  std::lock_guard lock(mutex_);
  return waits_;
}

Status EmulatedDevice::enqueue(Stream stream, EmulatedWork work,
                               const void *kernel) const {
  auto taken = captures_.take(stream, work, kernel, emulation_.captures);
  if (!taken.ok())
    return taken.status();
  return *taken ? Status() : inTurn(stream, std::move(work));
}
Status EmulatedDevice::inTurn(Stream stream, EmulatedWork work) const {
  if (queues_)
    return queues_->enqueue(stream, std::move(work));
  while (!work.isReady())
    std::this_thread::yield();
  return work.run();
}
Status EmulatedDevice::copy(void *to, const void *from, uint64_t bytes,
                            Stream stream) {
  return enqueue(stream, [=] {
    std::memcpy(to, from, bytes);
    return Status();
  });
}
Status EmulatedDevice::clear(void *memory, uint64_t bytes, Stream stream) {
  return enqueue(stream, [=] {
    std::memset(memory, 0, bytes);
    return Status();
  });
}

Result<Stream> EmulatedDevice::createStream(Priority priority) {
  std::lock_guard lock(mutex_);
  Stream stream = new char;
  streams_.insert(stream);
  if (priority == Priority::High)
    urgent_.insert(stream);
  numbers_[stream] = waits_.size();
  waits_.push_back(0);
  return stream;
}
void EmulatedDevice::destroyStream(Stream stream) {
  if (queues_)
    queues_->destroy(stream);
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
  urgent_.erase(stream);
  numbers_.erase(stream);
  delete static_cast<char *>(stream);
}
Priority EmulatedDevice::priority(Stream stream) const {
  std::lock_guard lock(mutex_);
  return urgent_.count(stream) ? Priority::High : Priority::Usual;
}
bool EmulatedDevice::isFirst(Stream stream) const {
  std::lock_guard lock(mutex_);
  auto found = numbers_.find(stream);
  return found != numbers_.end() && found->second == 0;
}
Status EmulatedDevice::synchronize(Stream stream) {
  MERAK_RETURN_IF_ERROR(captures_.hostWaits(stream));
  return queues_ ? queues_->synchronize(stream) : Status();
}
Result<Event> EmulatedDevice::createEvent() {
  std::lock_guard lock(mutex_);
  return *events_.insert(new char).first;
}
Result<Event> EmulatedDevice::createTimer() {
  auto event = createEvent();
  std::lock_guard lock(mutex_);
  timers_[*event] = -1;
  return event;
}
Result<double> EmulatedDevice::elapsed(Event from, Event to) {
  std::lock_guard lock(mutex_);
  for (Event event : {from, to})
    if (auto found = timers_.find(event);
        found == timers_.end() || found->second < 0)
      return Status::error("an event without a time");
  return timers_[to] - timers_[from];
}
void EmulatedDevice::destroyEvent(Event event) {
  captures_.forget(event);
  if (queues_)
    queues_->forget(event);
  std::lock_guard lock(mutex_);
  timers_.erase(event);
  events_.erase(event);
  delete static_cast<char *>(event);
}
void EmulatedDevice::passTimer(Event event) {
  std::lock_guard lock(mutex_);
  if (auto timer = timers_.find(event); timer != timers_.end())
    timer->second = std::chrono::duration<double>(
                        std::chrono::steady_clock::now().time_since_epoch())
                        .count();
}
Status EmulatedDevice::record(Event event, Stream stream) {
  {
    std::lock_guard lock(mutex_);
    if (!events_.count(event))
      return Status::error("records an event that does not exist");
  }
  MERAK_RETURN_IF_ERROR(captures_.record(event, stream));
  if (queues_ && !captures_.captures(stream))
    return queues_->record(event, stream, [=, this] { passTimer(event); });
  passTimer(event);
  return {};
}
bool EmulatedDevice::loses(Stream stream) {
  std::lock_guard lock(mutex_);
  auto found = numbers_.find(stream);
  if (found == numbers_.end())
    return false;
  const std::pair wait(found->second, waits_[found->second]++);
  return emulation_.lost == wait;
}
Status EmulatedDevice::wait(Stream stream, Event event) {
  if (loses(stream))
    return {};
  MERAK_RETURN_IF_ERROR(captures_.wait(stream, event));
  return queues_ && !captures_.captures(stream) ? queues_->wait(stream, event)
                                                : Status();
}
void EmulatedDevice::advance() {
  if (queues_)
    queues_->advance();
}

Status EmulatedDevice::synchronizeEvent(Event event) {
  MERAK_RETURN_IF_ERROR(captures_.hostWaitsFor(event));
  return queues_ ? queues_->synchronizeEvent(event) : Status();
}

Status EmulatedDevice::beginCapture(Stream stream) {
  return captures_.begin(stream);
}
Result<std::unique_ptr<Graph>> EmulatedDevice::endCapture(Stream stream) {
  auto entries = captures_.end(stream);
  if (!entries.ok())
    return entries.status();
  return std::unique_ptr<Graph>(std::make_unique<EmulatedGraph>(
      std::move(*entries),
      [this](KernelId kernel, Grid grid, const void *args) {
        return work(kernel, grid, args);
      },
      [](Function function, Grid grid, size_t operands,
         const std::vector<uint64_t> &words) {
        return work(function, grid, operands, words);
      },
      [this](Stream own, EmulatedWork all) {
        return inTurn(own, std::move(all));
      },
      emulation_.seed));
}
Result<Node> EmulatedDevice::lastCaptured(Stream stream) {
  return captures_.last(stream);
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
EmulatedWork EmulatedDevice::work(Function function, Grid grid, size_t operands,
                                  const std::vector<uint64_t> &words) {
  return [=] {
    using CpuKernel =
        void (*)(void *const *, const int64_t *, int64_t, int64_t);
    reinterpret_cast<CpuKernel>(function)(
        reinterpret_cast<void *const *>(words.data()),
        reinterpret_cast<const int64_t *>(words.data() + operands), 0,
        grid.blocks);
    return Status();
  };
}

Status EmulatedDevice::launch(Function function, Grid grid, size_t operands,
                              const std::vector<uint64_t> &words,
                              Stream stream) {
  return enqueue(stream, work(function, grid, operands, words), function);
}

EmulatedWork EmulatedDevice::work(KernelId kernel, Grid grid,
                                  const void *args) const {
  const int id = static_cast<int>(kernel);
  const char *bytes = static_cast<const char *>(args);
  std::vector<std::max_align_t> copy(
      (kArgBytes[id] + sizeof(std::max_align_t) - 1) /
      sizeof(std::max_align_t));
  std::memcpy(copy.data(), bytes, kArgBytes[id]);
  return [=, this] {
    runGrid(kKernels[id], copy.data(),
            std::min<int64_t>(grid.blocks, emulation_.blocks),
            emulation_.threads);
    return Status();
  };
}

Status EmulatedDevice::launch(KernelId kernel, Grid grid, const void *args,
                              Stream stream) {
  if (grid.blocks < 1 || grid.blocks > INT32_MAX || grid.threads < 32 ||
      grid.threads > kMaxRowThreads || grid.threads % 32 != 0)
    return Status::error(fmt::format("no such grid: {} blocks of {} threads",
                                     grid.blocks, grid.threads));
  return enqueue(stream, work(kernel, grid, args), kernelMark(kernel));
}

namespace {

Status rehearse(const Rest &rest, Stream stream) {
  constexpr size_t kBehind = 64;
  constexpr char kMark = 0x5a;
  std::vector<std::vector<char>> memory;
  std::vector<char *> blocks;
  for (uint64_t bytes : rest.bytes) {
    memory.emplace_back(bytes + kBehind, kMark);
    blocks.push_back(memory.back().data());
  }
  MERAK_RETURN_IF_ERROR(rest.run(blocks, stream));
  for (size_t i = 0; i < memory.size(); ++i)
    if (std::any_of(memory[i].end() - kBehind, memory[i].end(),
                    [](char c) { return c != kMark; }))
      return Status::error(fmt::format("{}: writes behind block {} of {} bytes",
                                       rest.name, i, rest.bytes[i]));
  return {};
}

} // namespace

// What cuBLASLt 13 says of factors of 8 bits on Hopper: both lie along what is
// summed, and all moves are of 16 bytes.
static bool supportsEight(const Matmul &p, const MatmulCall &call) {
  const int64_t c = p.c == Type::F32 ? 4 : 2;
  bool fits = p.transA && !p.transB && p.b8 != Eight::No && call.scaleA &&
              call.scaleB && !(p.a8 == Eight::E5M2 && p.b8 == Eight::E5M2) &&
              (p.c == Type::F32 || p.c == Type::BF16);
  for (int64_t size : {p.m, p.n, p.k, p.lda, p.ldb, p.ldc * c, p.strideA,
                       p.strideB, p.strideC * c})
    fits = fits && size % 16 == 0;
  for (const void *address : {call.a, call.b, (const void *)call.c})
    fits = fits && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  return fits;
}

Result<bool> EmulatedDevice::takes(const Matmul &p, const MatmulCall &call,
                                   const RestOf &rest) {
  if (rest && emulation_.seed == 0)
    MERAK_RETURN_IF_ERROR(rehearse(rest(), nullptr));
  if (p.hasEpilogue() && (p.batch != 1 || p.biased != (call.bias != nullptr) ||
                          (p.keep || p.gradient) != (call.aux != nullptr) ||
                          (p.sumsA || p.sumsB) != (call.sums != nullptr) ||
                          (call.sums && (p.biased || p.gelu || p.gradient ||
                                         (p.sumsA && p.sumsB))) ||
                          (p.gelu && p.gradient) || (p.keep && !p.gelu) ||
                          (call.aux && (p.ldAux < p.m || p.ldAux % 8))))
    return Status::error("an epilogue that cuBLASLt does not have");
  return emulation_.epilogues && (!p.isEight() || supportsEight(p, call));
}

namespace {

Status multiply(const Matmul &p, const MatmulCall &call);

} // namespace

Status EmulatedDevice::matmul(const Matmul &p, const MatmulCall &call,
                              void *workspace, Stream stream) {
  if (!workspace)
    return Status::error("a product without workspace");
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.batch < 1 || p.batch > kMaxBatch ||
      p.lda < (p.transA ? p.k : p.m) || p.ldb < (p.transB ? p.n : p.k) ||
      p.ldc < p.m || (p.isEight() && !supportsEight(p, call)) ||
      (!p.isEight() && p.c != p.ab && p.c != Type::F32))
    return Status::error("a product that cuBLASLt refuses");
  return enqueue(stream, [=] { return multiply(p, call); });
}

namespace {

Status multiply(const Matmul &p, const MatmulCall &call) {
  // Numbers of 8 bits are multiplied as they are, their sum by both scales.
  struct Factor {
    Ref ref;
    Eight eight;
    float at(int64_t i) const {
      return eight == Eight::No
                 ? load<float>(ref, i)
                 : runtime::float8ToFloat(eight == Eight::E4M3 ? runtime::kE4M3
                                                               : runtime::kE5M2,
                                          slot<uint8_t>(ref, i));
    }
  };
  const Factor a{{static_cast<char *>(const_cast<void *>(call.a)), p.ab}, p.a8};
  const Factor b{{static_cast<char *>(const_cast<void *>(call.b)), p.ab}, p.b8};
  const double scale =
      p.isEight() ? double(*call.scaleA) * double(*call.scaleB) : 1;
  const Ref c{static_cast<char *>(call.c), p.c};
  const Ref sums{static_cast<char *>(call.sums), p.c};
  for (int64_t i = 0; i < (p.sumsA ? p.m : p.sumsB ? p.n : 0); ++i) {
    double sum = 0; // overwritten, whatever beta is
    for (int64_t k = 0; k < p.k; ++k)
      sum += p.sumsA ? double(a.at(p.transA ? k + i * p.lda : i + k * p.lda))
                     : double(b.at(p.transB ? i + k * p.ldb : k + i * p.ldb));
    store<float>(sums, i, static_cast<float>(sum), false);
  }
  for (int64_t t = 0; t < p.batch; ++t)
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t i = 0; i < p.m; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k)
          sum += double(a.at(t * p.strideA +
                             (p.transA ? k + i * p.lda : i + k * p.lda))) *
                 double(b.at(t * p.strideB +
                             (p.transB ? j + k * p.ldb : k + j * p.ldb)));
        const int64_t at = t * p.strideC + i + j * p.ldc;
        double value = call.alpha * scale * sum;
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

} // namespace

size_t EmulatedDevice::live() const {
  std::lock_guard lock(mutex_);
  return memory_.size() + streams_.size() + events_.size();
}

} // namespace merak::cuda
