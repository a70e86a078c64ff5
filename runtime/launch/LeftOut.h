// Devices that a run's plan leaves out since they are slow, where ranks are
// processes: none of the run is there to see how they are. So the agent starts
// a process on their hosts from time to time, which computes something short
// that is known (IdleProbe.h), and compares how long it took with what it took
// when the device was left out.
//
//   left out at rate x ─► took t0 ─► ... ─► took t: rate x * t / t0 by now
//                                           no longer severe at two looks in
//                                           a row: back
#pragma once

#include "runtime/launch/ChildProcess.h"

#include <chrono>
#include <functional>
#include <set>

namespace merak::runtime {

struct LeftOutDevice {
  int number = 0; // in the order of all hosts (Places.h)
  int local = 0;  // of its host
  std::string host;
  double rate = 1;    // when it was left out
  double seconds = 0; // that the computation took then; 0: not known
  int normal = 0;     // looks in a row that found it no longer severely slow
  bool operator==(const LeftOutDevice &) const = default;
};
// "device 1 on host a"
std::string nameOf(const LeftOutDevice &device);

// Counts what a look found; whether the device is to be taken in again.
bool isBack(LeftOutDevice &device, double seconds);

class LeftOutLooks {
public:
  using Names = std::set<std::string>;
  // `program`: this one; `seconds`: from one look to the next.
  LeftOutLooks(std::string launcher, std::string program, double seconds)
      : launcher_(std::move(launcher)), program_(std::move(program)),
        seconds_(seconds) {}
  ~LeftOutLooks();
  LeftOutLooks(const LeftOutLooks &) = delete;

  // Begins looks that are due, at those whose hosts are not lost, and hears
  // what others found: returns devices that are back, which leave `devices`.
  // `step`: that the run is in.
  std::vector<LeftOutDevice> look(std::vector<LeftOutDevice> &devices,
                                  const Names &lost,
                                  const std::function<int64_t()> &step);

private:
  struct Look {
    int number;
    std::string file; // what the process says
    ChildProcess process;
    std::chrono::steady_clock::time_point begin;
  };
  void ask(const LeftOutDevice &device, int64_t step);
  std::string launcher_, program_;
  double seconds_;
  bool isFirst_ = true;
  std::chrono::steady_clock::time_point looked_;
  std::vector<Look> looks_;
};

// What the agent's process on a host is asked: NUMBER:LOCAL:STEP.
std::string probeArgument(const LeftOutDevice &device, int64_t step);
struct ProbeRequest {
  int device = 0, local = 0;
  int64_t step = 0;
};
// Errors: not such a text.
Result<ProbeRequest> parseProbe(const std::string &text);
// What that process prints, and what is read of it; 0: it is not there.
std::string probeLine(double seconds);
double probeSeconds(const std::string &output);

} // namespace merak::runtime
