// Two submicrobatches of a microbatch on one device: the order in which their
// work is issued, so that the communication of one runs under the computation
// of the other (Lai et al., 2023, Merak, doi 10.1109/TPDS.2023.3247001, section
// on sub-pipelined tensor parallelism; Wang et al., 2024, Domino, arXiv
// 2409.15241).
//
// The device has two streams, one that computes and one that communicates. Each
// runs what it is given in order; a task starts when its stream is free and
// what it needs is finished. Both submicrobatches run the same chain of tasks.
#pragma once

#include <vector>

namespace merak::planning {

// One task of the chain. A task of the computation that takes no time is only a
// name for what it needs: it neither occupies its stream nor waits in it.
struct StreamTask {
  double seconds = 0;
  bool communication = false;
  std::vector<int> needs; // earlier tasks of the chain
  // Collectives passed, the elementwise ops that join their results included.
  // Never falls along the chain.
  int phase = 0;
  // One task for both submicrobatches: the first half runs it when both have
  // what it needs; for the second it is a name.
  bool once = false;
};
using Chain = std::vector<StreamTask>;

// Writes a chain task by task and finds its phases.
class ChainWriter {
public:
  // Returns the number of the task. `joins`: no work, or one element of the
  // result for each of an operand, as where bias and residual are added.
  int add(double seconds, bool communication, std::vector<int> needs,
          bool joins, bool once = false);
  const Chain &chain() const { return tasks; }

private:
  Chain tasks;
  std::vector<bool> open; // a collective of its phase, or joins one's result
  int phase = 0;
};

// Task `task` of half `half`.
struct Issue {
  int half = 0;
  int task = 0;
  bool operator==(const Issue &) const = default;
};

// Where the submicrobatches wait for each other: 1 after every collective, 2
// after every second one (a transformer block has two), 3 nowhere.
inline constexpr int kMaxOverlapLevel = 3;

// Seconds until everything is finished; communication starts when `busy`
// seconds have passed. Every task must come after what it needs.
double simulateStreams(const Chain &chain, const std::vector<Issue> &order,
                       double busy = 0);
// The chain alone, once: level 0 for a chain with the times of the whole
// microbatch.
double simulateStreams(const Chain &chain);

// Seconds for which the computing stream has nothing to do before each issue; 0
// for tasks that it does not run.
std::vector<double> idleBefore(const Chain &chain,
                               const std::vector<Issue> &order);

// The issue order of two submicrobatches that run `chain` each. Each half keeps
// the chain's order and the second one never gets ahead of the first, so that
// sums over submicrobatches are formed in one order. The best of a few greedy
// orders; a higher level is never slower than a lower one.
std::vector<Issue> orderSubmicrobatches(const Chain &chain, int level);

} // namespace merak::planning
