// A schedule with its sends and receives in place, for links without
// asynchronous transfers: both ends of a message meet (rendezvous). Where the
// two directions between neighbours would wait for each other they are one
// group. Planning uses it as the strictest test of a schedule: what runs here
// runs everywhere.
#pragma once

#include "passes/Planning/ScheduleSimulate.h"

namespace merak::planning {

struct Message {
  bool sends = true, gradient = false;
  int microbatch = 0;
  int peer = 0; // stage at the other end
};

// A step, or messages that run together.
struct ProgramItem {
  Step step;
  std::vector<Message> messages; // empty: the step
};
using StageProgram = std::vector<ProgramItem>;

// The messages between two neighbours run in the order in which the later
// stage needs its activations and has its gradients; the earlier stage holds
// back its activations where needed. Requires one chunk and
// checkSchedule().ok().
std::vector<StageProgram> blockingPrograms(const Schedule &schedule);

// "F0 {sa0} F1 {sa1,rg0} r0 B0": s sends, r receives, a activation, g gradient.
std::string str(const StageProgram &program, const Schedule &schedule,
                int stage);

struct BlockingRun {
  double total = 0;
  bool finished = true; // false: the rest waits forever
};
// `message` is the time of one message; a group ends with its last one.
BlockingRun runBlocking(const std::vector<StageProgram> &programs,
                        const std::vector<ActionTimes> &times, double message);

} // namespace merak::planning
