// What goes from the recomputation R and the gradients of weights W of a stage
// into the idle slots of its backward pass B, which waits for its collectives
// there. One choice for both who makes it: the compiler moves ops
// (passes/Sharding/FillGaps.h), the search prices what it will move
// (StageIdleSlots.cpp).
//
//   R goes as late as it may, its last tasks first: what stays of it is then
//   complete in itself, and a task stands in front of all that reads it.
//   W goes as early as it may, each sum with all that only it needs.
//
// Positions are those of tasks in B: a task that moves to position 3 runs in
// front of the task that was number 3.
#pragma once

#include "passes/Planning/IdleSlots.h"

#include <functional>
#include <vector>

namespace merak::planning {

// Where tasks go, by task; kStays: nowhere.
inline constexpr int kStays = -1;
struct Filling {
  std::vector<int> place;
  double seconds = 0; // of all that moves
  double late = 0;    // of that, what no idle time covers
  bool any() const;
};

// How long B takes with what moves, as whoever asks can tell: exactly with the
// order that it then has, or about.
using SecondsWith = std::function<double(const Filling &moves)>;

// ------------------------------------------------------------ recomputation

struct LateValue {
  double bytes = 0;
  bool kept = false;     // it outlives R anyhow
  bool onlyForB = false; // it does so for B alone
};
struct LateTask {
  double seconds = 0;          // of both submicrobatches
  int before = 0;              // the first position that reads it, or the last
  std::vector<int> reads = {}; // values that tasks before it make
  std::vector<int> makes = {}; // values
};
struct LateWork {
  std::vector<LateTask> tasks; // of R, in order
  std::vector<LateValue> values;
};

// Takes from `slots` what it moves. Nothing moves if that takes more bytes (a
// value must be kept where its maker stays and a reader moves) or does not pay;
// B took `seconds`.
Filling fillLate(const LateWork &work, IdleSlots &slots, double seconds,
                 const SecondsWith &with);

// ------------------------------------------------------ gradients of weights

struct EarlyTask {
  std::vector<int> needs = {}; // tasks before it
  bool fixed = false;          // it cannot move
  bool sum = false;            // it adds to a gradient
};
// For each sum that may move the tasks that it and nothing else needs, itself
// among them, ascending. Work that another task shares stays where both are.
std::vector<std::vector<int>> slicesOf(const std::vector<EarlyTask> &tasks);

struct EarlySlice {
  double seconds = 0; // of both submicrobatches
  int after = 0;      // the first position where all that it reads is there
};
// The same, for slices in their order.
Filling fillEarly(const std::vector<EarlySlice> &slices, IdleSlots &slots,
                  double seconds, const SecondsWith &with);

} // namespace merak::planning
