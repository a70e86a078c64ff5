// Chains of equal blocks. A block between two boundaries is a matrix of
// frontiers, its entry (r, c) what the block can cost with configuration r at
// its begin and c at its end; n blocks are its n-th power under (union,
// product).
#pragma once

#include "passes/Planning/Frontier.h"

namespace merak::planning {

struct FrontierMatrix {
  int rows = 0, columns = 0;
  std::vector<Frontier> entries; // row by row

  const Frontier &at(int row, int column) const {
    return entries[size_t(row) * columns + column];
  }
};

// Entry (r, c) is the union over k of a(r, k) (x) b(k, c).
FrontierMatrix multiply(FrontierAlgebra &algebra, const FrontierMatrix &a,
                        const FrontierMatrix &b, int64_t limit = kNoLimit);

// Of blocks that are one matrix; what a block decides inside is in its entries.
class EqualBlocks {
public:
  // `block` is square. `capacity`: bytes that no chain may exceed.
  EqualBlocks(FrontierAlgebra &algebra, FrontierMatrix block,
              int64_t capacity = kNoLimit);

  // `count` >= 1 blocks, by repeated squaring: log2(count) products of long
  // frontiers and as many with the block itself at most.
  FrontierMatrix power(int count) const;

  // Entry n of the result is start (x) block^n, for all n up to `count`: what a
  // stage of n blocks costs, wherever it begins. `start` with one row for each
  // configuration at the begin that a caller wants to keep apart; with a single
  // row this is the dynamic program over a chain (LDP).
  std::vector<FrontierMatrix> prefixes(FrontierMatrix start, int count) const;

  // The tuple of each block in turn, of a tuple of a power. What a product with
  // `start` or an end added stands before or after them.
  std::vector<FrontierArena::Index> blocks(FrontierArena::Index tuple) const;

private:
  int64_t limitWith(int blocksLeft) const;

  FrontierAlgebra &algebra;
  FrontierMatrix block;
  int64_t capacity;
  int64_t least = 0; // bytes of the smallest tuple of the block
  std::vector<FrontierArena::Index> tuples; // of the block, ascending
};

} // namespace merak::planning
