#include "passes/Planning/FrontierMatrix.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace merak::planning {

FrontierMatrix multiply(FrontierAlgebra &algebra, const FrontierMatrix &a,
                        const FrontierMatrix &b, int64_t limit) {
  assert(a.columns == b.rows);
  auto termsOf = [&](size_t target, std::vector<FrontierTerm> &terms) {
    int row = int(target) / b.columns, column = int(target) % b.columns;
    for (int k = 0; k < a.columns; ++k)
      terms.push_back({&a.at(row, k), &b.at(k, column)});
  };
  return {a.rows, b.columns,
          algebra.tabulate(size_t(a.rows) * b.columns, termsOf, limit)};
}

EqualBlocks::EqualBlocks(FrontierAlgebra &algebra, FrontierMatrix matrix,
                         int64_t capacity)
    : algebra(algebra), block(std::move(matrix)), capacity(capacity) {
  assert(block.rows == block.columns);
  int64_t smallest = kNoLimit;
  for (Frontier &entry : block.entries) {
    algebra.cut(entry, capacity);
    tuples.insert(tuples.end(), entry.points.begin(), entry.points.end());
    if (!entry.empty())
      smallest = std::min(smallest, algebra.leastBytes(entry));
  }
  std::sort(tuples.begin(), tuples.end());
  least = tuples.empty() ? 0 : smallest;
}

// Blocks that are not in a tuple yet will take `least` each.
int64_t EqualBlocks::limitWith(int blocksLeft) const {
  return capacity == kNoLimit ? kNoLimit : capacity - blocksLeft * least;
}

// 13 = 1101b: 1, 2, 3, 6, 12, 13 blocks. Beginning with the highest bit, so
// that what is added for a set bit is the block, whose frontiers are short.
FrontierMatrix EqualBlocks::power(int count) const {
  assert(count >= 1);
  FrontierMatrix result = block;
  int done = 1;
  for (int bit = std::bit_width(unsigned(count)) - 2; bit >= 0; --bit) {
    done *= 2;
    result = multiply(algebra, result, result, limitWith(count - done));
    if (count >> bit & 1) {
      ++done;
      result = multiply(algebra, result, block, limitWith(count - done));
    }
  }
  return result;
}

std::vector<FrontierMatrix> EqualBlocks::prefixes(FrontierMatrix start,
                                                  int count) const {
  for (Frontier &entry : start.entries)
    algebra.cut(entry, capacity);
  std::vector<FrontierMatrix> results{std::move(start)};
  for (int n = 1; n <= count; ++n)
    results.push_back(multiply(algebra, results.back(), block, capacity));
  return results;
}

std::vector<FrontierArena::Index>
EqualBlocks::blocks(FrontierArena::Index tuple) const {
  return algebra.arena().descend(tuple, [&](FrontierArena::Index index) {
    return std::binary_search(tuples.begin(), tuples.end(), index);
  });
}

} // namespace merak::planning
