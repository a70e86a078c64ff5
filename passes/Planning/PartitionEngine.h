// The pass over a graph that decides, for one assignment, what every op and
// tensor looks like. Compact (bit masks instead of layouts) because the search
// runs it often; `Partition.cpp` turns a recorded run into an Outcome.
//
// Notation: an *atom* is one class in one dimension of one tensor, numbered
// over all dimensions; its mask says which axes split it there. The axes of a
// class and its twins have one order (orderOf), so that a mask stands for one
// layout: with the order (tp, dp) the mask {dp, tp} is blocks over tp, each cut
// over dp.
#pragma once

#include "passes/Planning/Partition.h"

#include <algorithm>

namespace merak::planning {

// For errors: "8x4x16", and the first op of the forward pass that reads it.
std::string shapeStr(const GraphTensor &tensor);
std::string readerOf(const Graph &graph, int tensor);

using AxisMask = uint32_t; // bit a: axis a of Assignment::mesh

class PartitionEngine {
public:
  PartitionEngine(const Graph &graph, const Classes &classes);

  // One step of a tensor's way from its stored layout to another.
  struct Variant {
    int parent = -1; // 0 is the stored layout
    ConversionKind kind = ConversionKind::Slice;
    AxisMask axes = 0;
    int atom = -1, toAtom = -1;
    AxisMask partial = 0;
    std::vector<AxisMask> masks;
    int op = -1;
    Phase phase = Phase::Forward;
    bool prologue = false;
    // Behind a sum over microbatches that depends on parameters, so that it is
    // complete after the last of them only.
    bool joined = false;
    double bytes = 0;
    int64_t times = 1;
    std::optional<GatherLife> life = {}; // see Conversion
  };
  struct TensorState {
    std::vector<Variant> variants;
  };
  struct OpState {
    std::vector<AxisMask> kept;      // per slot
    std::vector<int> operandVariant; // per operand
    AxisMask lazy = 0;               // axes over which it runs on summands
    bool decompose = false, prologue = false;
    bool timely = false; // its values differ between microbatches
    bool late = false;   // once a step, with the update
    int join = 0;        // these: see OpOutcome
    bool afterJoin = false;
    double localFlops = 0;
    // After the op, per result: axes of a maximum, rounds of decomposition.
    std::vector<AxisMask> maxAxes;
    std::vector<std::pair<AxisMask, int>> expected;
  };

  // Runs over the whole graph. Errors are collected, not thrown away, only if
  // `wantErrors`; otherwise the first one ends the run.
  bool run(const Assignment &assignment, bool wantErrors);

  PartitionCost cost;
  Status status;
  std::vector<TensorState> tensors;
  std::vector<OpState> ops;
  std::vector<int> outputVariant; // per tensor, -1: no output
  std::string joins;              // see Outcome

  int axisCount() const { return int(axisSizes.size()); }
  const std::vector<AxisSize> &axes() const { return mesh; }
  // Axes of a class and its twins, major to minor.
  const std::vector<int> &orderOf(int cls) const {
    return orders[classes.classes[cls].root];
  }
  double bytesAfterOp(int tensor, AxisMask axes) const;
  std::vector<AxisMask> canonicalMasks(int tensor) const;
  int64_t sizeOf(AxisMask mask) const;

  int64_t microbatchCount() const { return microbatches; }
  void setAssignment(const Assignment &assignment);

private:
  bool placeSources();
  bool checkSource(int tensor, const Variant &stored);
  bool checkRows(int tensor, const Variant &stored);
  bool runOp(int index);
  void keepAxes(int index);
  void decidePartial(int index, std::vector<AxisMask> &resolve);
  void joinHalves(int index, const std::vector<AxisMask> &resolve);
  bool hasResolved(int tensor, AxisMask axis, Phase phase) const;
  // The variant of a tensor that has the required masks and no open sums over
  // `resolve`; walks there from the stored layout. -1 ends the run.
  int convert(int op, int tensor, const std::vector<AxisMask> &required,
              AxisMask resolve, Phase phase);
  int step(int tensor, int from, Variant next, int op, Phase phase);
  class Conversions;
  AxisMask keptPrefix(int cls, AxisMask from, AxisMask to) const;
  std::vector<AxisMask> runsOf(int cls, AxisMask axes) const;
  void orderAxes();
  std::string axesStr(AxisMask mask) const;
  void markStored(const Assignment &assignment);
  bool fail(const std::string &message);
  void markPrologue(int tensor);
  bool isTimely(int op) const;
  bool findLate();
  bool findJoins();
  std::string parameterBehind(int tensor) const;
  double localBytes(int tensor, const std::vector<AxisMask> &masks) const;
  std::string opName(int op) const;

  const Graph &graph;
  const Classes &classes;
  std::vector<int> producer;
  std::vector<char> dependsOnParameter, reducedAnyway, trained,
      byRows; // the optimizer steps on single rows of it
  // Whether a result of an op has a slot in a dimension.
  bool resultHas(int op, size_t result, size_t slot) const {
    const OpClasses &of = classes.ops[size_t(op)];
    return std::find(of.results[result].begin(), of.results[result].end(),
                     int(slot)) != of.results[result].end();
  }

  std::vector<AxisSize> mesh;
  std::vector<int64_t> axisSizes;
  std::vector<std::vector<int>> axesOf; // per class: axis indices, major first
  std::vector<std::vector<int>> orders; // per root: see orderOf
  std::string unordered;                // why there is none; empty: there is
  // Per tensor: of a stored parameter, its copy in another type, or the sum of
  // the parts of its gradients.
  std::vector<std::optional<StoredParameter>> stored;
  std::vector<char> regathered; // by class, see Assignment
  std::vector<AxisMask> classMask;
  std::vector<char> ofSamples;  // by root, see Assignment::samples
  std::set<TensorUse> complete; // see Assignment::complete
  AxisMask microbatchBit = 0, halfBit = 0;
  AxisMask batchMask = 0; // microbatches and replicas
  int64_t microbatches = 1;
  bool hasTwins = false; // some class and another one are on sides of a seam
  bool collect = false, saidWhole = false;
  std::vector<AxisMask> requiredScratch;
};

} // namespace merak::planning
