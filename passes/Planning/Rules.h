// Rules of common ops, so that an op's declaration is one line.
#pragma once

#include "passes/Planning/FactorGraph.h"

#include <string_view>

namespace merak::planning {

using Shape = std::vector<int64_t>;

// "btd,df->btf": one letter a factor, spaces ignored. Letters that no result
// has are sums. A product of factors in one dimension is written "(bt)d".
// Letters of operand dimensions of size 1 count as absent (broadcast). Linear
// in each operand. Requires shapes that fit the text.
ShardingRule einsumRule(std::string_view text,
                        const std::vector<Shape> &operands,
                        const std::vector<Shape> &results);

// ONNX broadcasting: trailing dimensions agree, size 1 stretches. `linear`
// as in ShardingRule: {{0,1}} for add, {{0},{1}} for mul, {} for relu.
ShardingRule elementwiseRule(const std::vector<Shape> &operands,
                             const Shape &result,
                             std::vector<std::vector<int>> linear);

// Common factors where the two shapes align, whole factors elsewhere.
ShardingRule reshapeRule(const Shape &from, const Shape &to);

// perm[i]: the operand's dimension that becomes dimension i of the result.
ShardingRule transposeRule(const Shape &from, const std::vector<int> &perm);

} // namespace merak::planning
