#include "passes/Planning/Boundaries.h"

#include <algorithm>

namespace merak::planning {
namespace {

class Crossings {
public:
  Crossings(const Graph &graph, const std::vector<int> &stageOf)
      : graph(graph), stages(stageOf) {
    stages.resize(graph.ops.size(), -1);
    maker.assign(graph.tensors.size(), -1);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      for (int id : graph.ops[i].results)
        maker[size_t(id)] = int(i);
  }

  std::set<TensorUse> run() {
    placeGradients();
    placeRest();
    findHolders();
    std::set<TensorUse> uses;
    for (size_t i = 0; i < graph.ops.size(); ++i)
      for (size_t o = 0; o < graph.ops[i].operands.size(); ++o)
        if (crosses(int(i), graph.ops[i].operands[o]))
          uses.insert({int(i), int(o)});
    return uses;
  }

private:
  bool isUpdate(int op) const {
    return graph.ops[size_t(op)].phase == Phase::Update;
  }
  // Parameters are converted to another type wherever they are used.
  bool convertsParameter(int op) const {
    const GraphOp &of = graph.ops[size_t(op)];
    if (!of.pointwise || of.operands.size() != 1 || of.results.size() != 1)
      return false;
    const GraphTensor &from = graph.tensors[size_t(of.operands[0])];
    return from.parameter &&
           from.elementBytes !=
               graph.tensors[size_t(of.results[0])].elementBytes;
  }

  // Gradients are made where what they are of is.
  void placeGradients() {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const int of = graph.ops[i].gradientOf;
      if (stages[i] < 0 && of >= 0 && !isUpdate(int(i)) &&
          !convertsParameter(of))
        stages[i] = stages[size_t(of)];
    }
  }

  // The rest with the maker of an operand, else with the first user.
  void placeRest() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < graph.ops.size(); ++i) {
        if (stages[i] >= 0 || isUpdate(int(i)))
          continue;
        for (int id : graph.ops[i].operands)
          if (const int of = maker[size_t(id)]; stages[i] < 0 && of >= 0)
            stages[i] = stages[size_t(of)];
        changed |= stages[i] >= 0;
      }
    }
  }

  // By op of the update the stages that run it: those that hold the parameter.
  void findHolders() {
    std::vector<std::set<int>> readers(graph.tensors.size());
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (!isUpdate(int(i)))
        for (int id : graph.ops[i].operands)
          if (graph.tensors[size_t(id)].parameter)
            readers[size_t(id)].insert(stages[i]);
    holders.resize(graph.ops.size());
    for (size_t i = graph.ops.size(); i-- > 0;) {
      if (!isUpdate(int(i)))
        continue;
      for (int id : graph.ops[i].operands) {
        holders[i].insert(readers[size_t(id)].begin(),
                          readers[size_t(id)].end());
        // A parameter that only the update reads is where its gradient is.
        if (const int of = maker[size_t(id)]; of >= 0 && !isUpdate(of))
          holders[i].insert(stages[size_t(of)]);
      }
      for (int id : graph.ops[i].operands)
        if (const int of = maker[size_t(id)]; of >= 0 && isUpdate(of))
          holders[size_t(of)].insert(holders[i].begin(), holders[i].end());
    }
  }

  // A maker that is nowhere is taken for elsewhere.
  bool crosses(int op, int id) const {
    const int of = maker[size_t(id)];
    if (of < 0 || isUpdate(of))
      return false;
    const int made = stages[size_t(of)];
    if (isUpdate(op))
      return holders[size_t(op)] != std::set<int>{made};
    return made < 0 || stages[size_t(op)] != made;
  }

  const Graph &graph;
  std::vector<int> stages, maker;
  std::vector<std::set<int>> holders;
};

} // namespace

std::set<TensorUse> crossingUses(const Graph &graph,
                                 const std::vector<int> &stageOf) {
  return Crossings(graph, stageOf).run();
}

std::set<TensorUse> sumsOfStep(const Graph &graph,
                               const std::vector<char> &late) {
  std::vector<char> isMade(graph.tensors.size(), 0);
  std::set<TensorUse> uses;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const GraphOp &op = graph.ops[i];
    if (op.phase != Phase::Update && !late[i]) {
      for (int id : op.results)
        isMade[size_t(id)] = 1;
      continue;
    }
    for (size_t o = 0; o < op.operands.size(); ++o)
      if (isMade[size_t(op.operands[o])])
        uses.insert({int(i), int(o)});
  }
  return uses;
}

} // namespace merak::planning
