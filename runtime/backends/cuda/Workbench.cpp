#include "runtime/backends/cuda/Workbench.h"

#include "runtime/backends/cuda/Kernel.h"

#include <algorithm>
#include <bit>
#include <random>

namespace merak::cuda {

namespace {

constexpr uint64_t kBlock = 4 << 20; // bytes of numbers drawn on the host
// How long work is repeated, and how often at most; before what is timed first,
// and always.
constexpr double kWarmUp = 150e-3, kSustained = 5e-3;
constexpr int kMostRuns = 500;

const std::vector<uint16_t> &numbers() {
  static const std::vector<uint16_t> drawn = [] {
    std::mt19937 random(1);
    std::vector<uint16_t> bf16(kBlock / 2);
    for (uint16_t &value : bf16)
      value = static_cast<uint16_t>(
          std::bit_cast<uint32_t>(static_cast<float>(random()) * 0x1p-31f -
                                  1) >>
          16);
    return bf16;
  }();
  return drawn;
}

int runsFor(double seconds, double once) {
  return std::max(
      1, static_cast<int>(std::min(double(kMostRuns), seconds / once)));
}

} // namespace

Workbench::~Workbench() {
  giveBack();
  for (Event event : {begin_, end_})
    if (event)
      device_.destroyEvent(event);
  if (stream_)
    device_.destroyStream(stream_);
}

Status Workbench::start() {
  if (!stream_) {
    auto stream = device_.createStream();
    if (!stream)
      return stream.status();
    stream_ = *stream;
  }
  for (Event *event : {&begin_, &end_})
    if (!*event) {
      auto timer = device_.createTimer();
      if (!timer)
        return timer.status();
      *event = *timer;
    }
  return {};
}

void Workbench::giveBack() {
  if (memory_)
    device_.release(memory_);
  memory_ = nullptr;
  warm_ = false;
}

Result<std::vector<char *>> Workbench::take(std::span<const uint64_t> bytes) {
  giveBack();
  MERAK_RETURN_IF_ERROR(start());
  uint64_t total = 0;
  std::vector<uint64_t> offsets;
  for (uint64_t size : bytes) {
    offsets.push_back(total);
    total += alignUp(size);
  }
  auto memory = device_.allocate(total);
  if (!memory)
    return memory.status();
  memory_ = static_cast<char *>(*memory);
  uint64_t filled = std::min(total, kBlock);
  MERAK_RETURN_IF_ERROR(
      device_.copy(memory_, numbers().data(), filled, stream_));
  for (; filled < total; filled *= 2)
    MERAK_RETURN_IF_ERROR(device_.copy(
        memory_ + filled, memory_, std::min(filled, total - filled), stream_));
  MERAK_RETURN_IF_ERROR(device_.synchronize(stream_));
  std::vector<char *> blocks;
  for (uint64_t offset : offsets)
    blocks.push_back(memory_ + offset);
  return blocks;
}

Result<double> Workbench::time(const std::function<Status(Stream)> &enqueue) {
  Result<double> once = time(enqueue, 1);
  if (!once.ok() || *once <= 0)
    return once;
  if (!warm_) {
    for (double left = kWarmUp; left > 0 && once.ok() && *once > 0;) {
      const int runs = runsFor(std::min(left, kSustained), *once);
      once = time(enqueue, runs);
      left -= once.ok() ? std::max(*once * runs, kWarmUp / 100) : 0;
    }
    warm_ = true;
  }
  if (!once.ok() || *once <= 0)
    return once;
  const int runs = runsFor(kSustained, *once);
  return runs > 1 ? time(enqueue, runs) : once;
}

Result<double> Workbench::time(const std::function<Status(Stream)> &enqueue,
                               int runs) {
  MERAK_RETURN_IF_ERROR(start());
  MERAK_RETURN_IF_ERROR(device_.record(begin_, stream_));
  for (int i = 0; i < runs; ++i)
    MERAK_RETURN_IF_ERROR(enqueue(stream_));
  MERAK_RETURN_IF_ERROR(device_.record(end_, stream_));
  MERAK_RETURN_IF_ERROR(device_.synchronizeEvent(end_));
  const Result<double> seconds = device_.elapsed(begin_, end_);
  if (!seconds.ok())
    return seconds.status();
  return *seconds / runs;
}

} // namespace merak::cuda
