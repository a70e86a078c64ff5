// How long the actions of a stage take beside their collectives: what
// TwoStream.h makes of the tasks of the stage's ops. At level 0 one after the
// other, where only what does not need a collective runs beside it; above, the
// two submicrobatches of a microbatch hide each other's. Stages of equal blocks
// are simulated once.
#pragma once

#include "passes/Planning/TwoStream.h"

#include <cstddef>
#include <limits>
#include <map>
#include <unordered_map>

namespace merak::planning {

// A task of a submicrobatch, or of both (`once`), and the stage op that it
// belongs to; `needs` are earlier tasks of the same action over all ops.
struct SubmicrobatchTask {
  int op = 0;
  double seconds = 0;
  bool communication = false;
  bool joins = false; // see ChainWriter
  std::vector<int> needs;
  bool once = false; // the whole microbatch at once, see StreamTask
  // What a task of B or W reads of other actions: values of the forward
  // (tensors), and tasks of B.
  std::vector<int> values = {}, backward = {};
  bool operator==(const SubmicrobatchTask &) const = default;
  // Seconds of a microbatch.
  double both() const { return (once ? 1 : 2) * seconds; }
};

class SubmicrobatchTimes {
public:
  // The tasks of one action in the order of the graph. Ops are 0 to `ops` - 1.
  SubmicrobatchTimes(const std::vector<SubmicrobatchTask> &tasks, int ops,
                     int level);

  struct Times {
    double seconds =
        0; // both submicrobatches, until the last collective has ended
    double compute = 0; // without collectives
    // How long the links may be busy with something else when they begin
    // before that holds them up; every second above is one more.
    double slack = std::numeric_limits<double>::infinity();
  };
  // Of ops [begin, end) alone: what they need of others is there.
  Times of(int begin, int end) const;
  // Their tasks, and the seconds that the computing stream is idle in front of
  // each, for both submicrobatches together; empty where nothing communicates.
  struct Idle {
    std::vector<int> tasks;
    const std::vector<double> *before = nullptr; // null: none
  };
  Idle idle(int begin, int end) const;
  size_t simulated() const { return known.size(); } // different chains
  // The tasks of ops [begin, end), ascending.
  std::vector<int> tasksIn(int begin, int end) const;

private:
  struct Simulated {
    double seconds = 0, slack = 0;
    std::vector<double> idle; // by task
  };
  // The simulation of `chosen`, the tasks of the range; null: none
  // communicates.
  const Simulated *find(int begin, int end,
                        const std::vector<int> &chosen) const;
  const Simulated *simulated(const std::vector<int> &chosen) const;
  // What their chain depends on: of each task its kind, as -1 - kind, then how
  // far before it in the chain each of its needs is.
  std::vector<int> keyOf(const std::vector<int> &chosen) const;
  ChainWriter chainOf(const std::vector<int> &key,
                      const std::vector<int> &chosen) const;

  struct KeyHash {
    size_t operator()(const std::vector<int> &key) const;
  };

  const std::vector<SubmicrobatchTask> *tasks;
  int level;
  std::vector<int> kind; // of each task: equal ones are alike
  std::vector<int> opOf; // by task
  // By op, its first task, and one more than its last one; none: `first` is no
  // less.
  std::vector<int> first, past;
  mutable std::vector<int> placeOf; // in a chain that is looked at, by task
  mutable std::unordered_map<std::vector<int>, Simulated, KeyHash> known;
  // By range: a search asks for the same ones with other recomputation.
  mutable std::map<std::pair<int, int>, const Simulated *> ranges;
};

} // namespace merak::planning
