#include "passes/Planning/Frontier.h"

#include "passes/Planning/FrontierMerge.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <numeric>
#include <thread>

namespace merak::planning {

using Index = FrontierArena::Index;

LifeCost operator+(const LifeCost &a, const LifeCost &b) {
  return {a.stay + b.stay, a.inFlight + b.inFlight,
          a.perMicrobatch + b.perMicrobatch, a.perStep + b.perStep};
}

// stay 100, 10 for each of 3 in flight: 130 bytes; 5 for each of 8 microbatches
// and 2 once: 42 nanoseconds.
Cost project(const LifeCost &cost, const Projection &projection) {
  return {cost.stay + projection.inFlight * cost.inFlight,
          projection.microbatches * cost.perMicrobatch + cost.perStep};
}

// ---------------------------------------------------------------------- arena

Index FrontierArena::add(const Record &record) {
  append({&record, 1});
  return Index(records.size() - 1);
}

void FrontierArena::append(std::span<const Record> more) {
  // 4 billion records are 100 GB: memory ends first.
  assert(records.size() + more.size() < kLeaf);
  records.insert(records.end(), more.begin(), more.end());
}

std::vector<Index>
FrontierArena::descend(Index root,
                       const std::function<bool(Index)> &stop) const {
  std::vector<Index> found, open{root};
  while (!open.empty()) {
    Index at = open.back();
    open.pop_back();
    if (records[at].left == kLeaf || stop(at)) {
      found.push_back(at);
      continue;
    }
    open.push_back(records[at].right);
    open.push_back(records[at].left);
  }
  return found;
}

std::vector<Index> FrontierArena::leaves(Index root) const {
  std::vector<Index> found = descend(root, [](Index) { return false; });
  for (Index &leaf : found)
    leaf = records[leaf].right;
  return found;
}

// ----------------------------------------------------------------- operations

Frontier FrontierAlgebra::leaf(Cost cost, Index number) {
  return {{arena_.add({cost, FrontierArena::kLeaf, number})}, 0};
}

Index FrontierAlgebra::reserveLeaves(size_t count) {
  nextLeaf += Index(count);
  return nextLeaf - Index(count);
}

// Of equal tuples the one that stands first in `points` stays.
Frontier FrontierAlgebra::reduce(std::vector<Index> points) const {
  std::stable_sort(points.begin(), points.end(), [&](Index a, Index b) {
    Cost x = cost(a), y = cost(b);
    return x.bytes != y.bytes ? x.bytes < y.bytes
                              : x.nanoseconds < y.nanoseconds;
  });
  int64_t fastest = kNoLimit;
  std::erase_if(points, [&](Index point) {
    bool dominated = cost(point).nanoseconds >= fastest;
    fastest = std::min(fastest, cost(point).nanoseconds);
    return dominated;
  });
  return {std::move(points), 0};
}

Frontier FrontierAlgebra::unite(std::span<const Frontier *const> parts) const {
  std::vector<Index> points;
  int64_t slack = 0;
  for (const Frontier *part : parts) {
    points.insert(points.end(), part->points.begin(), part->points.end());
    slack = std::max(slack, part->slack);
  }
  Frontier united = reduce(std::move(points));
  united.slack = slack;
  return united;
}

void FrontierAlgebra::cut(Frontier &frontier, int64_t limit) const {
  auto end = std::partition_point(
      frontier.points.begin(), frontier.points.end(),
      [&](Index point) { return cost(point).bytes <= limit; });
  frontier.points.erase(end, frontier.points.end());
}

Frontier FrontierAlgebra::product(const Frontier &left, const Frontier &right,
                                  int64_t limit) {
  return std::move(tabulate(
      1,
      [&](size_t, std::vector<FrontierTerm> &terms) {
        terms.push_back({&left, &right});
      },
      limit)[0]);
}

namespace {

// The results of one thread: their records one after the other.
struct Worker {
  explicit Worker(const FrontierArena &arena) : merge(arena) {}
  FrontierMerge merge;
  std::vector<FrontierTerm> terms;
  std::vector<FrontierArena::Record> records;
};
struct Piece {
  int worker = 0;
  size_t begin = 0, end = 0; // of the worker's records
  int64_t slack = 0;
};

// Points that a table must have made before it is worth while to start threads.
constexpr size_t kWorthThreads = 1 << 13;

// Merges the targets of one table: each thread takes the next one that is left
// and writes into records of its own, so that nothing is shared but the count.
class Tabulation {
public:
  Tabulation(const FrontierArena &arena, const FrontierOptions &options,
             const FrontierAlgebra::TermsOf &termsOf, int64_t limit,
             size_t targets)
      : options(options), termsOf(termsOf), limit(limit), pieces(targets),
        workers(std::max(1, options.threads), Worker(arena)) {}

  void run() {
    while (next < pieces.size() && work < kWorthThreads)
      merge(0, next++);
    std::vector<std::thread> threads;
    for (size_t i = 1; i < workers.size() && next < pieces.size(); ++i)
      threads.emplace_back([this, i] { mergeAll(int(i)); });
    mergeAll(0);
    for (std::thread &thread : threads)
      thread.join();
  }

  // By target and not by thread: indices are the same for any number of
  // threads.
  std::vector<Frontier> moveInto(FrontierArena &arena) {
    std::vector<Frontier> table;
    table.reserve(pieces.size());
    for (const Piece &piece : pieces) {
      Frontier &frontier = table.emplace_back();
      frontier.points.resize(piece.end - piece.begin);
      std::iota(frontier.points.begin(), frontier.points.end(),
                Index(arena.size()));
      frontier.slack = piece.slack;
      arena.append(std::span(workers[piece.worker].records)
                       .subspan(piece.begin, frontier.size()));
    }
    return table;
  }

private:
  void mergeAll(int worker) {
    for (size_t target; (target = next++) < pieces.size();)
      merge(worker, target);
  }
  void merge(int number, size_t target) {
    Worker &worker = workers[number];
    worker.terms.clear();
    termsOf(target, worker.terms);
    size_t begin = worker.records.size();
    int64_t slack = worker.merge.run(worker.terms, limit, options.bucketBytes,
                                     worker.records);
    pieces[target] = {number, begin, worker.records.size(), slack};
    if (number == 0)
      for (const FrontierTerm &term : worker.terms)
        work += term.left->size() + term.right->size();
  }

  const FrontierOptions &options;
  const FrontierAlgebra::TermsOf &termsOf;
  int64_t limit;
  std::vector<Piece> pieces;
  std::vector<Worker> workers;
  std::atomic<size_t> next{0};
  size_t work = 0; // of worker 0
};

} // namespace

std::vector<Frontier> FrontierAlgebra::tabulate(size_t targets,
                                                const TermsOf &termsOf,
                                                int64_t limit) {
  Tabulation tabulation(arena_, options, termsOf, limit, targets);
  tabulation.run();
  return tabulation.moveInto(arena_);
}

std::vector<Cost> FrontierAlgebra::costs(const Frontier &frontier) const {
  std::vector<Cost> costs;
  for (Index point : frontier.points)
    costs.push_back(cost(point));
  return costs;
}

int64_t FrontierAlgebra::leastBytes(const Frontier &frontier) const {
  return frontier.empty() ? 0 : cost(frontier.points.front()).bytes;
}

} // namespace merak::planning
