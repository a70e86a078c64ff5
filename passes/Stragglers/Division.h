// The upper level: which grouping of each node, and which group in which
// pipeline.
//
// Groups of one class (rate and size) are interchangeable, so that a division
// is a number of groups of each class for each pipeline; layers, orders and
// microbatches follow exactly (StageLayers.h). Divisions that are few are
// enumerated; beyond that several searches start from different divisions, move
// and swap groups and group nodes otherwise. (Malleus, arXiv 2410.13333, solves
// a mixed-integer program here.)
#pragma once

#include "passes/Stragglers/Grouping.h"

#include <map>
#include <unordered_map>

namespace merak::stragglers {

inline constexpr int64_t kStepsOfSolving = 60;
struct SearchOptions {
  Objective objective = Objective::Steady;
  // Under `Steady`: of the plans that were seen whose steady step is at most so
  // many ten-thousandths longer than the best one's, that with the shortest
  // filled step. The steady step alone prefers pipelines that are too deep.
  int64_t ranking = 100;
  uint64_t seed = 1;
  // Do not change what is found; 0: as many as the machine has.
  int threads = 0;
  int starts = 6; // searches
  // Of each search; a pipeline that has to be solved takes kStepsOfSolving.
  int64_t steps = 20000;
  int64_t nodes = 20000; // of the enumeration
};

// Groups as numbers of classes, and nodes with the same groupings by one entry.
struct DivisionProblem {
  DivisionProblem(const Problem &problem,
                  const std::vector<NodeGroupings> &nodes, int64_t pipelines);

  const Problem &problem;
  int64_t pipelines, microbatches;
  std::vector<GroupClass> classes; // the fastest first
  // By node and grouping: classes of the groups, ascending.
  std::vector<std::vector<std::vector<int>>> groupings;
  // Microbatches of pipelines of these classes cannot be fewer than stages.
  size_t longest = 1;
};

// Sorted classes of a pipeline's groups.
using Members = std::vector<int>;
struct MembersHash {
  size_t operator()(const Members &members) const;
};

// Pipelines that were solved before. Not for several threads.
class PipelineTable {
public:
  explicit PipelineTable(const DivisionProblem &problem) : problem(problem) {}
  // At most `longest` members, at least one.
  const SolvedPipeline &of(const Members &members);
  size_t size() const { return solved.size(); }

private:
  const DivisionProblem &problem;
  std::unordered_map<Members, SolvedPipeline, MembersHash> solved;
};

struct Division {
  std::vector<int> groupingOf; // by node
  std::vector<Members> pipelines;
  Members standby;
};

// The exact scores of the best divisions that were seen.
struct Found {
  Score score;
  Division division;
};
// Those that no other beats in both times, the shortest steady step first.
class FoundFront {
public:
  explicit FoundFront(const SearchOptions &options) : options(options) {}
  bool wants(const Score &score) const;
  void add(const Score &score, const Division &division);
  void merge(const FoundFront &other);
  bool isEmpty() const { return front.empty(); }
  // What the options choose; requires that there is one. Ranking takes none
  // whose steady step is longer than `limit`, if there is a shorter one.
  const Found &best(int64_t limit = kFailed) const;
  // Of the objective; kFailed if there is none.
  int64_t bestTime() const;
  int64_t leastSteady() const;

private:
  SearchOptions options;
  std::vector<Found> front;
};

// Microbatches of the pipelines; nothing, if one does not fit, or they are too
// few. The score is exact.
std::optional<std::vector<int64_t>>
scoreDivision(const DivisionProblem &problem, PipelineTable &table,
              const Division &division, Objective objective, Score &score);

// Nodes of equal speed together for each `pipelines` of the pipelines, each
// of these tiles divided by itself; tiles of equal nodes once. Of many
// pipelines a search sees only so many divisions, of few nearly all.
Division divideTiles(const DivisionProblem &problem,
                     const SearchOptions &options, int64_t pipelines);
// A search from one of several starts, by number.
FoundFront searchFrom(const DivisionProblem &problem,
                      const SearchOptions &options, int start);
// All divisions, as far as the number of nodes allows, that may be better than
// the best of `found`, to which it adds. True if none is left.
bool enumerate(const DivisionProblem &problem, const SearchOptions &options,
               FoundFront &found);

struct DivisionResult {
  FoundFront found;
  bool optimal = false; // of the groupings that were given
};
// Both; the result does not depend on the number of threads.
DivisionResult divide(const DivisionProblem &problem,
                      const SearchOptions &options);

// The groups of a division in their stages, each class's groups in the order of
// the nodes. `spare` gets those that stand by.
Plan planOf(const DivisionProblem &problem,
            const std::vector<NodeGroupings> &nodes, const Division &division,
            Objective objective, std::vector<std::vector<int>> &spare);

} // namespace merak::stragglers
