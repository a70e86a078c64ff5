// The sharding rule of an op: its iteration factors, declared once, and which
// of them each tensor dimension is made of. Plain data, no MLIR type: ops
// declare it, planning decides on it.
//
// matmul (i,k),(k,j)->(i,j): factors i, j parallel, k sum;
//   operands [[{i},{k}], [{k},{j}]], results [[{i},{j}]], linear {{0},{1}}.
// reshape 192 -> 3x64: factors 3 and 64, both parallel;
//   operands [[{0,1}]], results [[{0},{1}]].
#pragma once

#include <cstdint>
#include <vector>

namespace merak {

// What happens when a factor is split over an axis:
//   Parallel   operands and results are split alike
//   Sum, Max   results that lack the factor are partial over the axis
//   Decompose  the op must first be replaced by its decomposition
//   Whole      operands are gathered before the op, results sliced after
//   Samples    parallel over microbatches and replicas: all samples that a
//              replica has of a microbatch are needed together; over other
//              axes, submicrobatches among them, whole
enum class FactorKind { Parallel, Sum, Max, Decompose, Whole, Samples };

struct RuleFactor {
  int64_t size = 1;
  FactorKind kind = FactorKind::Parallel;
  // Decompose only: all-reduces of each result that lacks the factor once the
  // op is decomposed (embedding 1; cross entropy 3: max, sum, picked logit).
  int rounds = 1;
  // The op looks up positions along it, counted from the first one that a rank
  // has: what is split must be a range, so of a factor that the graph refines
  // (two views of 8 samples are 2 x 8 columns) only the major part may be.
  bool ranged = false;
  bool operator==(const RuleFactor &) const = default;
};

// How the dimensions of one tensor are made of the op's factors: indices into
// `ShardingRule::factors`, major to minor; their product is the dimension's
// size. Dimensions of size 1 are empty.
using RuleDim = std::vector<int>;
using RuleTensor = std::vector<RuleDim>;

// Declared by each op once. When two factors of an op are split over the same
// axis, the first of `factors` keeps it: put the factors that should win first.
struct ShardingRule {
  std::vector<RuleFactor> factors;
  std::vector<RuleTensor> operands, results;
  // Groups of operand positions: if exactly the operands of one group are
  // partial (sums) over an axis, the op may run on the summands and its
  // results are partial. add: {0,1}; mul: {0},{1}; div: {0}; reshape: {0}.
  std::vector<std::vector<int>> linear;
  bool operator==(const ShardingRule &) const = default;

  int add(int64_t size, FactorKind kind = FactorKind::Parallel) {
    factors.push_back({size, kind});
    return static_cast<int>(factors.size()) - 1;
  }
};

} // namespace merak
