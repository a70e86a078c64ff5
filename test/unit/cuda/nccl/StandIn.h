// A stand-in for libnccl: the functions that runtime/comm/nccl uses, between
// processes of one host, for streams of the emulated device. The runtime opens
// it as it would open NCCL (MERAK_NCCL_LIBRARY), so that ranks run as they do
// on GPUs, with nothing but the kernels of both libraries replaced.
//
// It is stricter than NCCL. What is asked for on registered memory is in
// progress on the host until all members have asked. An operation begins when
// its stream comes to it and ends when all members have begun theirs, also a
// send. What NCCL answers with a hang or with wrong numbers is an error with a
// sentence: members that ask for different operations, counts or types, or in
// another order; a communicator used by two streams, by one that is not of the
// highest priority, before it is open, while a call is in progress, or after
// its end; communicators whose kernels may not fit on the device at once;
// memory that is given back while communicators know it.
//
//   MERAK_NCCL_LATE     seconds by which this process joins communicators late
//   MERAK_NCCL_FAULT    of one operation of the communicator that this process
//                       opened as such and such one, from 0 ("swap:1.4"):
//                         swap   it comes behind the next one
//                         count  it has an element less
//                         async  it hangs, and the communicator fails
//   MERAK_NCCL_REPORT   a file for what was opened and done, in JSON
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace merak::cuda {

// An operation on a stream. `ready` is asked again and again once all that
// comes before it is done; then `run` ends it, and returns what is wrong or
// nothing. One that is captured runs with each launch of the graph.
struct StandInWork {
  std::function<bool()> ready;
  std::function<std::string()> run;
};

// The device whose streams the library is given.
class StandInDevice {
public:
  virtual ~StandInDevice() = default;
  // Returns what is wrong or nothing.
  virtual std::string enqueue(void *stream, StandInWork work) = 0;
  // Whether the stream may communicate: it has the highest priority, or is the
  // first one, on which collectives stand between what computes.
  virtual bool isUrgent(void *stream) = 0;
  // The host waits for other processes: the device goes on.
  virtual void advance() = 0;
  virtual int processors() = 0; // each holds one thread block of an operation
  virtual void *allocate(size_t bytes) = 0; // null: none left
  virtual void release(void *memory) = 0;
  // out = parts[0] + parts[1] + ..., or the maximum, of `count` elements of an
  // ncclDataType_t. `out` is none of the parts.
  virtual void reduce(const std::vector<const void *> &parts, int64_t count,
                      int type, bool maximum, void *out) = 0;
};

// Before anything else is called; the device outlives the communicators.
using StandInUse = void(StandInDevice *device);
constexpr const char *kStandInUse = "merakStandInUse";

} // namespace merak::cuda
