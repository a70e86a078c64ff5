// The sharding rule of an op: its iteration factors, declared once, and which
// of them each tensor dimension is made of. Plain data, no MLIR type, so that
// planning can read it.
//
// matmul (i,k),(k,j)->(i,j): factors i, j parallel, k sum;
//   operands [[{i},{k}], [{k},{j}]], results [[{i},{j}]].
// reshape 192 -> 3x64: factors 3 and 64, both parallel;
//   operands [[{0,1}]], results [[{0},{1}]].
#pragma once

#include <cstdint>
#include <vector>

namespace merak {

enum class FactorKind {
  Parallel,  // split operands give split results
  Sum,       // a reduction: split operands give a partial sum
  Max,       // the same, partial maximum
  Decompose, // the op must be replaced by its decomposition first
  Whole,     // operands must not be split here
  Samples,   // parallel, but what a replica has of them is needed together
};

struct RuleFactor {
  int64_t size = 1;
  FactorKind kind = FactorKind::Parallel;
};

// A dimension: factor indices, major to minor. Size-1 dimensions have none.
using RuleDim = std::vector<int>;
using RuleTensor = std::vector<RuleDim>;

struct ShardingRule {
  std::vector<RuleFactor> factors;
  std::vector<RuleTensor> operands, results;
  // Groups of operands: if exactly the operands of one group are partial sums
  // over an axis, so are the results (add: {0,1}; mul: {0} and {1}).
  std::vector<std::vector<int>> linear;

  int add(int64_t size, FactorKind kind = FactorKind::Parallel) {
    factors.push_back({size, kind});
    return static_cast<int>(factors.size()) - 1;
  }
};

} // namespace merak
