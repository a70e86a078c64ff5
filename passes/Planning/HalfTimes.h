// How long the actions of a stage take when its microbatches run as two halves
// that hide each other's collectives: what TwoStream.h makes of the tasks of
// the stage's ops. Stages of equal blocks are simulated once.
#pragma once

#include "passes/Planning/TwoStream.h"

#include <cstddef>
#include <map>

namespace merak::planning {

// A task of half a microbatch, or of a whole one (`once`), and the stage op
// that it belongs to; `needs` are earlier tasks of the same action over all
// ops.
struct HalfTask {
  int op = 0;
  double seconds = 0;
  bool communication = false;
  bool joins = false; // see ChainWriter
  std::vector<int> needs;
  bool once = false; // the whole microbatch at once, see StreamTask
};

class HalfTimes {
public:
  // The tasks of one action in the order of the graph. Ops are 0 to `ops` - 1.
  HalfTimes(const std::vector<HalfTask> &tasks, int ops, int level);

  struct Times {
    double seconds = 0; // both halves, until the last collective has ended
    double compute = 0; // without collectives
  };
  // Of ops [begin, end) alone: what they need of others is there.
  Times of(int begin, int end) const;
  size_t simulated() const { return known.size(); } // different chains

private:
  const std::vector<HalfTask> *tasks;
  int level;
  std::vector<int> kind;                 // of each task: equal ones are alike
  std::vector<std::vector<int>> tasksOf; // by op
  mutable std::map<std::vector<int>, double> known;
};

} // namespace merak::planning
