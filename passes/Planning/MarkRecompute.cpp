#include "passes/Planning/MarkRecompute.h"

#include "passes/Planning/Blocks.h"
#include "passes/Planning/Recompute.h"

#include <cstdlib>
#include <fmt/format.h>
#include <set>

namespace merak::planning {

namespace {

class Marker {
public:
  Marker(const Graph &graph, const Strategy &pinned, PlanDecision &decision)
      : decision(decision), pinned(pinned), graph(graph) {
    keys = forwardNames(graph);
    decision.recompute.resize(graph.ops.size(), 0);
  }

  Status run() {
    std::string &mode = *decision.strategy.recompute;
    if (mode == "auto" && !pinned.recomputeOps)
      return nameChosen();
    decision.recompute.assign(graph.ops.size(), 0);
    const std::string &schedule = *decision.strategy.schedule;
    if (pinned.recomputeOps)
      return markNamed();
    if (mode == "full") {
      const bool lastKeeps = traitsOf(schedule).lastKeeps;
      for (size_t i = 0; i < graph.ops.size(); ++i)
        decision.recompute[i] =
            decision.stageOfOp[i] >= 0 &&
            !(lastKeeps && decision.stageOfOp[i] % decision.degrees.pp ==
                               decision.degrees.pp - 1);
    } else if (mode != "none") {
      return markRatio(std::strtod(mode.c_str(), nullptr), schedule);
    }
    return {};
  }

private:
  // What planning chose, as names.
  Status nameChosen() {
    std::vector<std::string> names;
    for (size_t i = 0; i < keys.size(); ++i)
      if (decision.recompute[i])
        names.push_back(keys[i]);
    if (names.empty())
      decision.strategy.recompute = "none";
    else
      decision.strategy.recomputeOps = names;
    return {};
  }

  Status markNamed() {
    std::set<std::string> open(pinned.recomputeOps->begin(),
                               pinned.recomputeOps->end());
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (auto it = open.find(keys[i]); it != open.end() && !keys[i].empty()) {
        decision.recompute[i] = 1;
        open.erase(it);
      }
    Status status;
    for (const std::string &name : open)
      status.merge(Status::error(fmt::format(
          "strategy recomputes the op '{}', which the model lacks", name)));
    decision.strategy.recomputeOps = pinned.recomputeOps;
    return status;
  }

  Status markRatio(double ratio, const std::string &schedule) {
    std::vector<char> embedding(graph.ops.size(), 0);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      embedding[i] = graph.ops[i].looksUp &&
                     graph.tensors[graph.ops[i].operands[0]].parameter;
    Result<std::vector<double>> ratios =
        stageRatios(static_cast<int>(decision.degrees.pp), {ratio},
                    traitsOf(schedule).shifts);
    if (!ratios.ok())
      return ratios.status();
    for (int64_t part = 0; part < decision.degrees.pp * decision.chunks;
         ++part) {
      int64_t stage = part % decision.degrees.pp;
      std::vector<int> ops;
      for (size_t i = 0; i < graph.ops.size(); ++i)
        if (decision.stageOfOp[i] == part)
          ops.push_back(static_cast<int>(i));
      std::vector<Block> blocks = findBlocks(graph, ops, embedding);
      int count =
          recomputedParts((*ratios)[stage], static_cast<int>(blocks.size()));
      int64_t marked = 0;
      for (int k = 0; k < count; ++k)
        if (blocks[k].parameters && !blocks[k].embedding) {
          ++marked;
          for (int op : blocks[k].ops)
            decision.recompute[op] = 1;
        }
      decision.report += fmt::format(
          "stage {} recomputes {} of {} blocks{} (ratio {:.3f})\n", stage,
          marked, blocks.size(),
          decision.chunks > 1
              ? fmt::format(" of chunk {}", part / decision.degrees.pp)
              : "",
          (*ratios)[stage]);
    }
    return {};
  }

  PlanDecision &decision;
  const Strategy &pinned;
  const Graph &graph;
  std::vector<std::string> keys; // of forward ops
};

} // namespace

Status markRecompute(const Graph &graph, const Strategy &pinned,
                     PlanDecision &decision) {
  return Marker(graph, pinned, decision).run();
}

} // namespace merak::planning
