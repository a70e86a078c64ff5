#include "passes/Planning/Blocks.h"

#include <algorithm>
#include <map>

namespace merak::planning {

// How many values with few readers cross each position between two of `ops`.
static std::vector<int> countCrossing(const Graph &graph,
                                      const std::vector<int> &ops) {
  constexpr int kManyReaders = 5;
  struct LiveKind {
    int first = 0, last = 0, readers = 0;
  };
  std::map<int, LiveKind> lives; // by tensor
  for (size_t i = 0; i < ops.size(); ++i) {
    const GraphOp &op = graph.ops[ops[i]];
    for (int t : op.operands) {
      const GraphTensor &tensor = graph.tensors[t];
      if (tensor.parameter || tensor.input || tensor.constant)
        continue;
      // From an earlier run: alive from the start.
      LiveKind &life = lives[t];
      life.last = int(i);
      ++life.readers;
    }
    for (int t : op.results)
      lives[t] = {int(i), int(i), 0};
  }
  std::vector<int> change(ops.size() + 1, 0);
  for (const auto &[tensor, life] : lives)
    if (life.readers <= kManyReaders) {
      // Crosses positions first+1 .. last; position i stands before ops[i].
      ++change[std::min<size_t>(life.first + 1, ops.size())];
      --change[std::min<size_t>(life.last + 1, ops.size())];
    }
  for (size_t i = 1; i < change.size(); ++i)
    change[i] += change[i - 1];
  return change;
}

std::vector<Block> findBlocks(const Graph &graph, const std::vector<int> &ops,
                              const std::vector<char> &embedding) {
  std::vector<Block> blocks;
  if (ops.empty())
    return blocks;
  std::vector<int> crossing = countCrossing(graph, ops);
  int fewest = ops.size() > 1
                   ? *std::min_element(crossing.begin() + 1, crossing.end() - 1)
                   : 0;
  std::vector<Block> pieces(1);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (i > 0 && crossing[i] == fewest)
      pieces.emplace_back();
    Block &piece = pieces.back();
    piece.ops.push_back(ops[i]);
    for (int t : graph.ops[ops[i]].operands)
      piece.parameters |= graph.tensors[t].parameter;
    piece.contraction |= graph.ops[ops[i]].contraction;
    piece.embedding |= embedding[ops[i]] != 0;
  }
  for (Block &piece : pieces) {
    if (blocks.empty() || (piece.parameters && piece.contraction) ||
        (piece.embedding && !blocks.back().embedding)) {
      blocks.push_back(std::move(piece));
      continue;
    }
    Block &before = blocks.back();
    before.ops.insert(before.ops.end(), piece.ops.begin(), piece.ops.end());
    before.parameters |= piece.parameters;
    before.contraction |= piece.contraction;
  }
  return blocks;
}

} // namespace merak::planning
