#include "passes/Planning/StageProblemBuilder.h"
#include "runtime/plan/SharedPlaces.h"

#include <algorithm>

namespace merak::planning {

void StageProblemBuilder::keepForJoins() {
  out.joins = outcome.joins;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const OpOutcome &of = outcome.ops[i];
    if (stageOp[i] < 0 || (!of.join && !of.afterJoin))
      continue;
    if (out.joinEnd == 0)
      out.joinBegin = stageOp[i];
    out.joinBegin = std::min(out.joinBegin, stageOp[i]);
    out.joinEnd = std::max(out.joinEnd, stageOp[i] + 1);
    for (int t : graph.ops[i].operands)
      if (producer[t] >= 0 && graph.ops[producer[t]].phase == Phase::Forward)
        out.ops[stageOp[i]].kept.push_back(t);
  }
  for (StageOp &stage : out.ops) {
    std::sort(stage.kept.begin(), stage.kept.end());
    stage.kept.erase(std::unique(stage.kept.begin(), stage.kept.end()),
                     stage.kept.end());
  }
}

void StageProblemBuilder::keepForGradients() {
  auto actionOfOp = [&](int i) { return graph.ops[i].weightGradient ? 2 : 1; };
  auto followsWeight = [&](int from, int to) {
    if (from >= 0 && from != to)
      out.weightSums.push_back({from, to});
  };
  // Gradients that may be written over what F left for them, by operand; as
  // passes/Lowering/WriteOverKept.cpp has it.
  auto rootOf = [&](int t) {
    while (out.tensors[size_t(t)].viewOf >= 0)
      t = out.tensors[size_t(t)].viewOf;
    return t;
  };
  std::vector<int> readers(graph.tensors.size(), 0); // backward ops
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (graph.ops[i].phase == Phase::Backward && stageOp[i] >= 0)
      for (int t : graph.ops[i].operands)
        ++readers[size_t(rootOf(t))];
  for (const OutputUse &output : outcome.outputs)
    ++readers[size_t(rootOf(output.tensor))]; // after the step
  auto overwritten = [&](int i) {
    const GraphOp &op = graph.ops[size_t(i)];
    const std::optional<int> input = sharedInput(op.kernel);
    if (!input || actionOfOp(i) != 1 || op.results.size() != 1)
      return -1;
    const int t = op.operands[size_t(*input)];
    const int from = producer[t];
    const bool over = from >= 0 && stageOp[from] >= 0 &&
                      graph.ops[from].phase == Phase::Forward &&
                      !out.ops[stageOp[from]].everywhere &&
                      readers[size_t(rootOf(t))] == 1 &&
                      bytes(t) == bytes(op.results[0]);
    return over ? t : -1;
  };
  std::vector<int> lastReader(graph.tensors.size(), -1);
  std::vector<char> left(graph.tensors.size(), 0); // for W, from B
  std::vector<int> overOf(graph.tensors.size(), -1);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].phase != Phase::Backward || stageOp[i] < 0)
      continue;
    StageOp &stage = out.ops[stageOp[i]];
    if (const int over = overwritten(int(i)); over >= 0)
      overOf[graph.ops[i].results[0]] = over;
    for (int t : graph.ops[i].operands) {
      int from = producer[t];
      if (from < 0 || stageOp[from] < 0)
        continue;
      lastReader[t] = int(i);
      const bool weight = actionOfOp(int(i)) == 2;
      if (graph.ops[from].phase == Phase::Forward)
        (weight ? stage.keptForWeights : stage.kept).push_back(t);
      else if (weight && actionOfOp(from) == 1 && !left[t]) {
        left[t] = 1;
        stage.pending.push_back({bytes(t), stageOp[from], overOf[t]});
      } else if (weight && actionOfOp(from) == 2) {
        followsWeight(stageOp[from], stageOp[i]);
      }
    }
    if (actionOfOp(int(i)) == 2)
      for (const OperandUse &use : outcome.ops[i].operands)
        for (int c : use.conversions)
          if (int first = outcome.conversions[c].op;
              first >= 0 && graph.ops[first].weightGradient)
            followsWeight(stageOp[first], stageOp[i]);
  }
  std::sort(out.weightSums.begin(), out.weightSums.end());
  out.weightSums.erase(
      std::unique(out.weightSums.begin(), out.weightSums.end()),
      out.weightSums.end());
  for (StageOp &stage : out.ops)
    for (std::vector<int> *of : {&stage.kept, &stage.keptForWeights}) {
      std::sort(of->begin(), of->end());
      of->erase(std::unique(of->begin(), of->end()), of->end());
    }
  for (int action : {1, 2}) {
    double live = 0;
    std::vector<std::vector<int>> ends(graph.ops.size());
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      if (graph.ops[i].phase != Phase::Backward || stageOp[i] < 0 ||
          actionOfOp(int(i)) != action)
        continue;
      for (int t : graph.ops[i].results)
        if (!left[t] && overOf[t] < 0 && lastReader[t] >= 0 && !stays(t)) {
          live += bytes(t);
          ends[lastReader[t]].push_back(t);
        }
      double &most = out.ops[stageOp[i]].workspace;
      most = std::max(most, live);
      for (int t : ends[i])
        live -= bytes(t);
    }
  }
}

} // namespace merak::planning
