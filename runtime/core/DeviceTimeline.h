// When a device came to points of a stream: a timeline of its work that does
// not wait for any of it.
#pragma once

#include "runtime/core/Backend.h"

namespace merak::runtime {

class DeviceTimeline {
public:
  explicit DeviceTimeline(Backend &backend) : backend_(backend) {}
  ~DeviceTimeline();
  DeviceTimeline(const DeviceTimeline &) = delete;

  // Starts over. The stream must have nothing to do: its clock and the host's
  // are compared now.
  Status begin(StreamHandle stream);
  // Marks where the stream is; the number of the mark, from 0.
  Result<size_t> mark(StreamHandle stream);
  // Nanoseconds of the steady clock at each mark, once the stream is done.
  Result<std::vector<int64_t>> read() const;

private:
  Status record(size_t timer, StreamHandle stream);

  Backend &backend_;
  std::vector<EventHandle> timers_; // the first is the beginning
  size_t used_ = 0;
  int64_t started_ = 0; // on the host
};

} // namespace merak::runtime
