// What F, B, W, U and P do with a whole model on one stage, as outlining of
// stages will write it (passes/Staging/OutlineStages.cpp): the ops of the step
// and the conversions of its layouts by action, with what each action reads
// anew or makes again for itself. Cuts between stages divide these lists.
#pragma once

#include "passes/Planning/Partition.h"

#include <array>

namespace merak::planning {

// As in plans: what each list has.
enum class ListOf { F, B, W, U, P };
inline constexpr int kLists = 5;

struct ActionValue {
  std::vector<int64_t> shape; // on a device
  int elementBytes = 4;
  bool isFloat = true;
  int tensor = -1;
  int maker = -1;               // op of the list; -1: it lies in a named buffer
  std::vector<int> users;       // ops of the list, each once for each operand
  bool kept = false;            // other actions or stages read it
  bool summed = false;          // added up over the microbatches
  bool updates = false;         // an update reads it as its gradient
  bool splat = false;           // an immediate value of kernels
  bool ofSubmicrobatch = false; // see Submicrobatches.h
  // Its elements are of some samples, of some tokens of each.
  bool ofSamples = false, ofTokens = false;
  unsigned axes = 0; // over which ranks hold other elements or summands
  double elements() const;
  double bytes() const { return elements() * elementBytes; }
};

struct ActionOp {
  enum Kind { Op, Conversion, Load, Fill, Copy } kind = Op;
  int index = -1; // of the graph's op, of the conversion
  int at = -1;    // the forward op that it belongs to; -1: none
  Moves moves = Moves::No;
  int64_t axis = 0;                   // Concat
  std::vector<int> operands, results; // values
};

struct ActionOps {
  std::vector<ActionValue> values;
  std::vector<ActionOp> ops;
  // The op of the graph; null for what only lists have (loads, casts).
  const GraphOp *opOf(const Graph &graph, int op) const {
    const ActionOp &of = ops[size_t(op)];
    return of.kind == ActionOp::Op ? &graph.ops[size_t(of.index)] : nullptr;
  }
};

// `home`: by graph op, the forward op that it belongs to; -1: none. `mesh`: the
// sizes of axes that divide shapes. `joinPads`: sums of padded parts that fill
// a tensor are concatenations (passes/Lowering/JoinPads.h).
std::array<ActionOps, kLists> actionOps(const Graph &graph,
                                        const Outcome &outcome,
                                        const layout::AxisMap &mesh,
                                        const std::vector<int> &home,
                                        bool joinPads);

// Whether an op makes of a parameter, once a step, what microbatches read of it
// in a smaller type; by op. What is gathered of that is gathered where it is
// used. None if not `wanted`.
std::vector<char> convertedOnce(const Graph &graph, const Outcome &outcome,
                                bool wanted);
// Whether a graph has any parameter that is read in a smaller type.
bool convertsAny(const Graph &graph);

// Whether an op that hangs on data and constants alone runs wherever it is
// needed instead of being kept or sent; by op. A parameter in another type
// costs less to make than to keep.
std::vector<char> everywhereOps(const Graph &graph, const Outcome &outcome);

} // namespace merak::planning
