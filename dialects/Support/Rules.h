// Sharding rules of common ops from their shapes: what the ops of the train
// dialect declare, and what the property tests over simulated devices run.
#pragma once

#include "dialects/Support/ShardingRule.h"

#include <string_view>

namespace merak {

using Shape = std::vector<int64_t>;

// "btd,df->btf": one letter a dimension. Letters that the result lacks are
// sums; linear in each operand. Requires shapes that fit the text.
ShardingRule einsumRule(std::string_view text,
                        const std::vector<Shape> &operands,
                        const Shape &result);

// NumPy broadcasting: trailing dimensions agree, size 1 stretches. `linear` as
// in ShardingRule: {{0,1}} for add, {{0},{1}} for mul, {} for relu.
ShardingRule elementwiseRule(const std::vector<Shape> &operands,
                             const Shape &result,
                             std::vector<std::vector<int>> linear);

// `kind`: Sum (linear) or Max over `axes`.
ShardingRule reduceRule(const Shape &from, const std::vector<int64_t> &axes,
                        bool keepDims, FactorKind kind);

// Common factors where the two shapes align, whole factors elsewhere: 192 to
// 3 x 64 gives 3 and 64; 6 x 4 to 8 x 3 gives 2, and 3, 4 against 4, 3 whole.
ShardingRule reshapeRule(const Shape &from, const Shape &to);

// perm[i]: the operand's dimension that becomes dimension i of the result.
ShardingRule transposeRule(const Shape &from, const std::vector<int64_t> &perm);

// ------------------------------------------------------------ to write others

// Adds a factor of `kind` for a dimension; -1 for sizes 1 and 0.
int addFactor(ShardingRule &rule, int64_t size,
              FactorKind kind = FactorKind::Parallel);
// One factor per dimension of a shape.
std::vector<int> addFactors(ShardingRule &rule, const Shape &shape,
                            FactorKind kind = FactorKind::Parallel);
// One dimension made of one factor; of none for factor -1.
RuleDim dimOf(int factor);
RuleTensor tensorOf(const std::vector<int> &factors);
// A tensor that broadcasts (right-aligned) to dimensions with these factors.
RuleTensor broadcastOf(const Shape &shape, const std::vector<int> &factors);

} // namespace merak
