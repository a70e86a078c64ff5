#include "passes/Planning/KeptViews.h"

#include "runtime/layout/Strides.h"

#include <algorithm>

namespace merak::planning {

namespace {

class Finder {
public:
  Finder(const Graph &graph, const Outcome &outcome,
         const layout::AxisMap &mesh)
      : graph(graph), outcome(outcome), mesh(mesh),
        strides(graph.tensors.size()), wanted(graph.tensors.size(), 0),
        sliced(graph.tensors.size(), 0), again(graph.ops.size(), 0) {}

  std::vector<char> run() {
    for (size_t i = 0; i < graph.ops.size(); ++i)
      again[i] = isForward(i) && takesRows(i);
    for (size_t i = graph.ops.size(); i-- > 0;)
      want(i);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (again[i] && graph.ops[i].moves == Moves::Slice)
        again[i] = outcome.ops[i].operands[0].conversions.empty() &&
                   isWanted(graph.ops[i].operands[0]);
    return std::move(again);
  }

private:
  bool isForward(size_t op) const {
    const OpOutcome &of = outcome.ops[op];
    return graph.ops[op].phase == Phase::Forward && !of.late && !of.join &&
           !of.afterJoin;
  }
  std::vector<int64_t> shapeOf(int tensor) const {
    return outcome.tensors[size_t(tensor)].localShape(mesh);
  }
  double elements(int tensor) const {
    double all = 1;
    for (int64_t size : shapeOf(tensor))
      all *= double(size);
    return all;
  }

  bool isWanted(int tensor) const {
    return wanted[size_t(tensor)] ||
           (sliced[size_t(tensor)] > 0 &&
            sliced[size_t(tensor)] >= elements(tensor));
  }

  // Whether the op is a view whose rows are in one piece; notes its strides.
  bool takesRows(size_t index) {
    const GraphOp &op = graph.ops[index];
    if (op.moves != Moves::Reshape && op.moves != Moves::Transpose &&
        op.moves != Moves::Slice)
      return false;
    // What no action makes of a microbatch's values is there for all of them.
    const GraphTensor &operand = graph.tensors[size_t(op.operands[0])];
    if (operand.input || operand.parameter || operand.constant)
      return false;
    const layout::Layout &read =
        operandLayout(outcome, outcome.ops[index].operands[0], op.operands[0]);
    const std::vector<int64_t> from = read.localShape(mesh),
                               to = shapeOf(op.results[0]);
    std::vector<int64_t> own = strides[size_t(op.operands[0])], view;
    if (own.empty() || !outcome.ops[index].operands[0].conversions.empty())
      own = layout::denseStrides(from);
    if (op.moves == Moves::Reshape) {
      auto there = layout::reshapedStrides(from, own, to);
      if (!there)
        return false;
      view = *there;
    } else if (op.moves == Moves::Transpose) {
      for (int64_t d : op.perm)
        view.push_back(own[size_t(d)]);
    } else {
      for (size_t d = 0; d < own.size(); ++d)
        view.push_back(own[d] * op.steps[d]);
    }
    size_t last = to.size();
    while (last > 0 && to[last - 1] == 1)
      --last;
    if (last > 0 && view[last - 1] != 1)
      return false;
    strides[size_t(op.results[0])] = view;
    return true;
  }

  // What another action reads, and what it takes that as a view of. Behind all
  // of its users.
  void want(size_t index) {
    const GraphOp &op = graph.ops[index];
    if (isForward(index)) {
      if (!again[index] || !isWanted(op.results[0]) ||
          !outcome.ops[index].operands[0].conversions.empty())
        return;
      if (op.moves == Moves::Slice)
        sliced[size_t(op.operands[0])] += elements(op.results[0]);
      else
        wanted[size_t(op.operands[0])] = 1;
      return;
    }
    if (op.phase == Phase::Update || outcome.ops[index].late)
      return;
    for (size_t o = 0; o < op.operands.size(); ++o) {
      const std::vector<int> &chain =
          outcome.ops[index].operands[o].conversions;
      // Else the converted value is kept.
      if (chain.empty() ||
          outcome.conversions[size_t(chain[0])].phase != Phase::Forward)
        wanted[size_t(op.operands[o])] = 1;
    }
  }

  const Graph &graph;
  const Outcome &outcome;
  const layout::AxisMap &mesh;
  std::vector<std::vector<int64_t>> strides; // of views; empty: dense
  std::vector<char> wanted;                  // by tensor
  std::vector<double> sliced; // elements of slices of it that are wanted
  std::vector<char> again;
};

} // namespace

std::vector<char> viewsTakenAgain(const Graph &graph, const Outcome &outcome,
                                  const layout::AxisMap &mesh) {
  return Finder(graph, outcome, mesh).run();
}

} // namespace merak::planning
