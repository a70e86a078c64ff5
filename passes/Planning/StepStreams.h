// Tasks of several devices on their streams and links: what a step takes when
// all of its tasks are known. Each stream runs what it is given in order; ends
// of a message wait for each other; links are those of the plan simulator
// (runtime/plan/Links.h), and messages reach them in the order in which they
// are ready, as there (runtime/plan/Execution.h).
//
//   tasks                                  runs
//   0  row 0, stream 0, 3 s                0 to 3
//   1  row 0, stream 1, sends, needs 0     3 to 5
//   2  row 1, stream 1, receives           3 to 5
//   3  row 1, stream 0, 2 s, needs 2       5 to 7
#pragma once

#include <vector>

namespace merak::planning {

struct TimedTask {
  int row = 0, stream = 0;
  double seconds = 0;
  std::vector<int> needs; // tasks
  int message = -1;       // that this is an end of; -1: it computes
};

// Of a group on one row, between two rows (the sender's task first), or of all
// rows that have a task in it.
struct TimedMessage {
  std::vector<int> tasks;
  bool transfer = false;
  double seconds = 0;
  double latency = 0; // its part that does not occupy links
  int level = 0;      // 1: it leaves the node
};

struct StreamProgram {
  std::vector<TimedTask> tasks; // those of a stream in its order
  std::vector<TimedMessage> messages;
  int rows = 1;
};

struct StepTimes {
  double seconds = 0;
  std::vector<double> finish; // by task; negative: it never ran
  bool finished = true;       // all did
};

StepTimes simulateProgram(const StreamProgram &step);

} // namespace merak::planning
