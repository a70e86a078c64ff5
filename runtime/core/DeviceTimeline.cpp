#include "runtime/core/DeviceTimeline.h"

#include <chrono>

namespace merak::runtime {

DeviceTimeline::~DeviceTimeline() {
  for (EventHandle timer : timers_)
    backend_.destroyEvent(timer);
}

Status DeviceTimeline::begin(StreamHandle stream) {
  used_ = 0;
  MERAK_RETURN_IF_ERROR(record(used_++, stream));
  MERAK_RETURN_IF_ERROR(backend_.synchronize(stream));
  started_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::steady_clock::now().time_since_epoch())
                 .count();
  return {};
}

Result<size_t> DeviceTimeline::mark(StreamHandle stream) {
  MERAK_RETURN_IF_ERROR(record(used_, stream));
  return used_++ - 1;
}

Result<std::vector<int64_t>> DeviceTimeline::read() const {
  std::vector<int64_t> times;
  for (size_t i = 1; i < used_; ++i) {
    Result<double> seconds = backend_.elapsed(timers_.front(), timers_[i]);
    if (!seconds)
      return seconds.status();
    times.push_back(started_ + int64_t(*seconds * 1e9));
  }
  return times;
}

Status DeviceTimeline::record(size_t timer, StreamHandle stream) {
  if (timer == timers_.size()) {
    auto made = backend_.createTimer();
    if (!made)
      return made.status();
    timers_.push_back(*made);
  }
  return backend_.recordEvent(timers_[timer], stream);
}

} // namespace merak::runtime
