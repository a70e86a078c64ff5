// Where alternatives are timed (Tuning.h): a stream and memory of its own, so
// that nothing of a running step is read, written or waited for.
#pragma once

#include "runtime/backends/cuda/Device.h"

#include <functional>
#include <span>

namespace merak::cuda {

class Workbench {
public:
  // Needs the device until it ends.
  explicit Workbench(Device &device) : device_(device) {}
  ~Workbench();
  Workbench(const Workbench &) = delete;
  Workbench &operator=(const Workbench &) = delete;

  // Blocks of so many bytes. They hold numbers in [-1, 1), whether read as f32,
  // bf16 or (up to 2) f16: with zeros a device is faster than it will be. The
  // blocks of the call before are gone; an error where memory is short.
  Result<std::vector<char *>> take(std::span<const uint64_t> bytes);
  void giveBack();

  // Seconds that the device takes for what `enqueue` puts on the stream, again
  // and again for milliseconds, and before the first timing since `take` for
  // longer: a device that its power limits is another one than when it has
  // rested.
  Result<double> time(const std::function<Status(Stream)> &enqueue);

private:
  Status start();
  Result<double> time(const std::function<Status(Stream)> &enqueue, int runs);

  Device &device_;
  Stream stream_ = nullptr;
  Event begin_ = nullptr, end_ = nullptr;
  char *memory_ = nullptr;
  bool warm_ = false;
};

} // namespace merak::cuda
