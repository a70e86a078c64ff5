// Pareto frontiers of (memory, time): the algebra of the search over layouts
// (Cai et al., 2020, TensorOpt, arXiv 2004.10856).
//
// What a part of a model costs is four numbers that add up (`LifeCost`), but a
// frontier is kept of two (`Cost`): among four almost nothing dominates
// anything, so frontiers would grow to the number of strategies, and pruning on
// any other two could discard the only plan that fits. `project` makes two of
// four, for microbatches in flight and in a step that are known, and it does so
// where costs enter: sums of projected costs are the projected sums. The four
// are not lost, since every tuple refers to the leaves that it is the sum of
// (`FrontierGraph::Leaf`).
//
// All costs are integers. Sums of bytes and nanoseconds of a whole model differ
// in their last digits, which floating point rounds away.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace merak::planning {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct Cost {
  int64_t bytes = 0;
  int64_t nanoseconds = 0;
  bool operator==(const Cost &) const = default;
};
inline Cost operator+(Cost a, Cost b) {
  return {a.bytes + b.bytes, a.nanoseconds + b.nanoseconds};
}

// The four numbers, by how long bytes live and how often seconds are spent.
struct LifeCost {
  int64_t stay = 0;          // bytes: parameters, gradients, state
  int64_t inFlight = 0;      // bytes for each microbatch in flight
  int64_t perMicrobatch = 0; // nanoseconds
  int64_t perStep = 0;       // nanoseconds
  bool operator==(const LifeCost &) const = default;
};
LifeCost operator+(const LifeCost &a, const LifeCost &b);

struct Projection {
  int64_t inFlight = 1;     // microbatches in flight
  int64_t microbatches = 1; // of a step
};
Cost project(const LifeCost &cost, const Projection &projection);

// All tuples that a search has made. A record is never changed or dropped while
// the arena lives, since another one may refer to it.
class FrontierArena {
public:
  using Index = uint32_t;
  static constexpr Index kLeaf = ~Index(0);
  // The sum of two records or, with `left` = kLeaf, the leaf number `right`.
  struct Record {
    Cost cost;
    Index left = kLeaf;
    Index right = 0;
  };

  Index add(const Record &record);
  void append(std::span<const Record> more);
  const Record &operator[](Index index) const { return records[index]; }
  size_t size() const { return records.size(); }

  // The numbers of the leaves below a record, from left to right.
  std::vector<Index> leaves(Index root) const;
  // The first records on the way down for which `stop` holds, from left to
  // right; a leaf ends its way in any case.
  std::vector<Index> descend(Index root,
                             const std::function<bool(Index)> &stop) const;

private:
  std::vector<Record> records;
};

// Undominated tuples, bytes ascending, nanoseconds therefore descending. Of
// equal tuples it has one.
struct Frontier {
  std::vector<FrontierArena::Index> points;
  // What buckets may have cost: a tuple that they dropped has one in its place
  // that is as fast and takes at most so many bytes more. 0: exact.
  int64_t slack = 0;

  bool empty() const { return points.empty(); }
  size_t size() const { return points.size(); }
};

// left (x) right, a part of a union. The left one's leaves stand first.
struct FrontierTerm {
  const Frontier *left;
  const Frontier *right;
};

struct FrontierOptions {
  int threads = 1;
  // Of every product only the fastest tuple in each of the buckets
  // [0, w), [w, 2w), ... of bytes is kept, and the smallest one of all; 0: no
  // buckets.
  int64_t bucketBytes = 0;
};

// The operations. Results, records' indices included, do not depend on the
// number of threads.
class FrontierAlgebra {
public:
  explicit FrontierAlgebra(const FrontierOptions &options = {})
      : options(options) {}

  // One tuple, that of a leaf with a number of the caller's.
  Frontier leaf(Cost cost, FrontierArena::Index number);
  // The first of `count` numbers that nobody else was given.
  FrontierArena::Index reserveLeaves(size_t count);

  Frontier reduce(std::vector<FrontierArena::Index> points) const;
  Frontier unite(std::span<const Frontier *const> parts) const;
  // Without the tuples of more than `limit` bytes.
  void cut(Frontier &frontier, int64_t limit) const;
  // The same of a product.
  Frontier product(const Frontier &left, const Frontier &right,
                   int64_t limit = kNoLimit);
  // Entry i is the union of the products of the terms that `termsOf` (called
  // from several threads) writes for i. Only tuples of the result get records.
  using TermsOf =
      std::function<void(size_t target, std::vector<FrontierTerm> &terms)>;
  std::vector<Frontier> tabulate(size_t targets, const TermsOf &termsOf,
                                 int64_t limit = kNoLimit);

  Cost cost(FrontierArena::Index point) const { return arena_[point].cost; }
  std::vector<Cost> costs(const Frontier &frontier) const;
  // The bytes of the smallest tuple; 0 where there is none.
  int64_t leastBytes(const Frontier &frontier) const;
  const FrontierArena &arena() const { return arena_; }

private:
  FrontierOptions options;
  FrontierArena arena_;
  FrontierArena::Index nextLeaf = 0;
};

} // namespace merak::planning
