// A few ops of a graph as a graph of their own, with the classes that they have
// in the whole: what a layout of them costs is asked of the same functions as
// that of a whole model. What other ops make lies as the classes of the value
// itself say, as an input does.
#pragma once

#include "passes/Planning/StageCosts.h"

namespace merak::planning {

// What a piece costs a device, all additive.
struct LayoutCost {
  bool feasible = true;
  double stay = 0;          // bytes: parameters, gradients, state
  double inFlight = 0;      // bytes of a microbatch that gradients read
  double perMicrobatch = 0; // seconds
  double perStep = 0;       // seconds

  LayoutCost &operator+=(const LayoutCost &other);
  LayoutCost &operator-=(const LayoutCost &other);
};

class LayoutPiece {
public:
  // `ops` ascending; ops whose gradients are among them are added.
  LayoutPiece(const Graph &graph, const Classes &classes, std::vector<int> ops);

  const Graph &graph() const { return own; }
  // By class of the piece, that of the whole graph.
  const std::vector<int> &classes() const { return outer; }
  // Equal for pieces that differ in names alone.
  const std::string &key() const { return text; }

  // `axes` by class of the piece; `samples` those whose root is of samples.
  Assignment
  assignment(const Assignment &base,
             const std::vector<std::vector<std::string>> &axes) const;
  LayoutCost cost(const Assignment &assignment, const StageCostOptions &options,
                  const GradientReduction &reduce) const;

private:
  int tensorOf(int id);
  int classOf(int cls);
  void addOp(int index);
  void markInputs();
  void write();

  const Graph &whole;
  const Classes &wholeClasses;
  Graph own;
  Classes ownClasses;
  std::vector<int> outer;
  std::map<int, int> tensors, numbers, opsOf; // of the whole: of the piece
  std::map<int, int> roots;
  std::string text;
};

} // namespace merak::planning
