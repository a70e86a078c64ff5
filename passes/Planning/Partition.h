// What a choice of axes means: for every op the layouts it runs on, for every
// tensor the layout it is produced in, and the conversions between the two.
//
// The rules (docs/Architecture.md): an op keeps an axis for the first of its
// factors whose class is split over it; a split Sum factor makes results
// partial; Whole factors are gathered; partial values pass through linear ops
// and are reduced once, at the first other use. Partial over the microbatch
// axis is resolved by accumulation: at the end of the step for gradients and
// outputs, else in a prologue over all microbatches.
#pragma once

#include "dialects/Support/MeshAxes.h"
#include "passes/Planning/Seams.h"
#include "runtime/layout/Layout.h"

#include <map>
#include <set>

namespace merak::planning {

struct AxisSize {
  std::string name;
  int64_t size = 1;
  bool operator==(const AxisSize &) const = default;
};

// How long what is gathered of a stored parameter lives: until the end of the
// step, or of the action that uses it.
enum class GatherLife { Step, Use };

// A parameter with a layout of its own (Seams::stored).
struct StoredParameter {
  GatherLife life = GatherLife::Use;
  // Its gradient is summed over replicas once a microbatch and accumulated as
  // the parameter is stored; else accumulated as it is used and summed once a
  // step.
  bool scatterEach = false;
  bool operator==(const StoredParameter &) const = default;
};

// Axes of the mesh in a fixed order (mb, dp, tp, ...), and for each class the
// axes it is split over, major to minor. Twins may have different lists, but in
// one order: what is split over dp and then tp on one side of a seam must not
// be split over tp and then dp on another.
struct Assignment {
  std::vector<AxisSize> mesh;
  std::map<int, std::vector<std::string>> axes;
  std::map<int, StoredParameter> stored; // by tensor
  // Classes of values of the forward pass that are kept for their gradients as
  // they lie: what the forward pass gathers of them, gradients gather again.
  std::set<int> regathered;
  // Of samples: a trained parameter that has one in a dimension would be
  // another one on each replica. Roots, see ClassInfo.
  std::set<int> samples;
  // Uses that get their operand from a stage on another mesh: sums over devices
  // are complete there, see Boundaries.h.
  std::set<TensorUse> complete;

  layout::AxisMap axisMap() const;
  void addAxis(const AxisSize &axis); // or changes its size
  // Of all parts, where the mesh has those; 1 if absent.
  int64_t sizeOf(const std::string &axis) const;
  // The axis, or its parts, major to minor; none if absent.
  std::vector<std::string> axesOn(const std::string &axis) const;
  // Each axis that the mesh has in parts replaced by all of them.
  std::vector<std::string> inParts(const std::vector<std::string> &axes) const;
  // Whether a class is split over the axis or a part of it.
  bool splits(int cls, const std::string &axis) const;
  bool operator==(const Assignment &) const = default;
};

// Whether the axis or a part of it is among them.
bool hasAxisOn(const std::vector<std::string> &axes, const std::string &axis);

// Splits dimension 0 of the given tensors (batched inputs, and constants with a
// batch baked in) over `axes`, e.g. mb=4, dp=2, by assigning their classes.
// Axes of size 1 are left out of layouts. Errors name the tensor, how its batch
// is made up and the op that made it so; where a later op needs the whole
// batch, apply() says which.
Status assignBatch(const Graph &graph, const Classes &classes,
                   const std::vector<int> &batched,
                   const std::vector<AxisSize> &axes, Assignment &assignment);

// A parameter all of whose values are the same along dimension `dim`.
struct Repeated {
  int tensor = 0, dim = 0;
};
// Errors: such a parameter, and the dimension is the batch of `batched`. It is
// a table that was expanded, and each sample would train a copy of its own.
Status checkRepeated(const Graph &graph, const Classes &classes,
                     const std::vector<int> &batched,
                     const std::vector<Repeated> &repeated);

enum class ConversionKind {
  AllReduceSum,
  AllReduceMax,  // on the result of an op with a split Max factor
  ReduceScatter, // partial over the axis -> split over it
  AllGather,
  AllToAll,   // the axis moves from one factor to another
  Slice,      // no communication
  Place,      // of a microbatch's part, a summand of all microbatches' parts
  Accumulate, // partial over "mb" -> summed in a buffer over microbatches
};
const char *str(ConversionKind kind);

struct Conversion {
  ConversionKind kind = ConversionKind::Slice;
  int tensor = 0;
  int op = -1; // first op that needs it (the producer for AllReduceMax); -1: an
               // output of the step
  std::vector<std::string> axes;
  // AllGather, Slice, ReduceScatter, AllToAll: the factor of `from` (of `to`
  // for Slice and ReduceScatter) that changes; AllToAll: gathered in `from`.
  int dim = -1, factor = -1;
  // AllToAll: the factor of `to` that becomes split.
  int toDim = -1, toFactor = -1;
  layout::Layout from, to;
  bool joined = false; // Accumulate: see OpOutcome::join
  double bytes = 0;    // sent by each device each time, on a ring
  int64_t times = 1;   // a step: microbatches, or 1 for once a step
  Phase phase = Phase::Forward;
  bool prologue = false; // at the end of the prologue, once a step
  // Of a stored parameter in front of its uses; once a step if it lives so
  // long.
  std::optional<GatherLife> life = {};
  bool isGatheredOnce() const { return life == GatherLife::Step; }
};
// In every microbatch although only the update reads it: of a gradient that is
// scattered, of parts that are put side by side.
bool isOfEach(const Graph &graph, const Conversion &conversion);
// The second of the two.
bool isStacked(const Graph &graph, const Conversion &conversion);

// One operand of one op: the conversions, in order, from the layout in which
// the tensor lies to the one in which the op wants it (operandLayout).
// Conversions are shared by all uses that need the same.
struct OperandUse {
  std::vector<int> conversions;
};

struct OpOutcome {
  std::vector<OperandUse> operands;
  std::vector<layout::Layout> produced; // as the op leaves its results
  // Conversions right after the op, per result: AllReduceMax, and for an op
  // to decompose the all-reduces it is expected to need.
  std::vector<std::vector<int>> after;
  bool decompose = false; // a Decompose factor is split: replace and plan again
  bool prologue = false;  // (also) runs in the prologue
  bool late = false;      // of sums over microbatches or parameters alone, and
                          // nothing before the update reads it: once, there
  // Where sums over microbatches that depend on parameters are read before the
  // update, all forwards come first, then all gradients. Some ops go over the
  // microbatches between: `join` numbers these passes from 1, 0: none.
  int join = 0;
  bool afterJoin = false; // of Phase::Forward, but runs with the gradients
  double localFlops = 0;  // a device, a step
};

struct OutputUse {
  int tensor = 0;
  std::vector<int> conversions;
};

struct Outcome {
  std::vector<OpOutcome> ops;
  std::vector<layout::Layout> tensors; // as produced, after `after`
  std::vector<Conversion> conversions;
  std::vector<OutputUse> outputs;
  // Tensors summed over microbatches: at the end of the step, or of the
  // prologue.
  std::vector<int> accumulated, prologueValues;
  std::string joins; // which op reads such a sum; empty: none does
};

// The layout in which an op gets an operand, the tensor `id`.
inline const layout::Layout &operandLayout(const Outcome &outcome,
                                           const OperandUse &use, int id) {
  return use.conversions.empty()
             ? outcome.tensors[size_t(id)]
             : outcome.conversions[size_t(use.conversions.back())].to;
}

// Errors: the batch is needed whole, a value summed over microbatches is used
// too early and depends on a parameter, a parameter has the batch as dimension.
Result<Outcome> apply(const Graph &graph, const Classes &classes,
                      const Assignment &assignment);

// Ops with a split Decompose factor: replace them and build the graph again
// before apply(). The assignment carries over by ClassAnchor.
std::vector<int> opsToDecompose(const Graph &graph, const Classes &classes,
                                const Assignment &assignment);

// The layout of a tensor that no op produces: each class split over its axes,
// the first one keeping an axis that is used twice.
layout::Layout canonicalLayout(const Graph &graph, const Classes &classes,
                               int tensor, const Assignment &assignment);

// Numbers of an assignment, for objectives and reports. Feasible: apply() has
// no errors.
struct PartitionCost {
  double contractionFlops = 0;  // a device, a step
  double totalContraction = 0;  // undivided
  double communicatedBytes = 0; // sent by a device, a step, without Accumulate
  double parameterBytes = 0;    // held by a device
  bool feasible = true;
};
PartitionCost costOf(const Graph &graph, const Classes &classes,
                     const Assignment &assignment);

} // namespace merak::planning
