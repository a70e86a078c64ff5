// reduce(U left (x) right) without making the products.
//
// A row of a product (one tuple of the shorter frontier plus all of the longer)
// is a frontier. It is compared with what is known, a frontier too, by leaps:
// as long as the row is no faster than what is known at its bytes, it leaps to
// where it is; then what is known leaps to the row's bytes. A row that is
// dominated by much is passed in a few leaps, and most of them are: what is
// known begins with one path through each product, from its first tuple to its
// last, that is nearly undominated.
//
//   left (1,9) (4,2), right (0,5) (3,1)
//   tuples: (1,14) (4,10)    the path (1,14), (4,7), (7,3) advances where most
//           (4, 7) (7, 3)    time is saved for a byte; (4,10) is dominated
#pragma once

#include "passes/Planning/Frontier.h"

namespace merak::planning {

class FrontierMerge {
public:
  explicit FrontierMerge(const FrontierArena &arena) : arena(arena) {}

  // Appends the result to `out`, by bytes, and returns its slack.
  int64_t run(std::span<const FrontierTerm> terms, int64_t limit,
              int64_t bucketBytes, std::vector<FrontierArena::Record> &out);

private:
  // A tuple of a product: which one, its row and its column.
  struct Place {
    uint32_t term, row, column;
  };
  struct Point {
    Cost cost;
    Place place;
  };

  void clear(int64_t limit);
  bool load(const FrontierTerm &term);
  void addPath(uint32_t term);
  void addRows(uint32_t term);
  // Adds the points of `at(0)`, ..., `at(count - 1)`, a frontier, that are not
  // dominated, nor equal to one that is known.
  template <typename At> void add(size_t count, const At &at);
  // The number of known tuples of at most so many bytes, which are at least
  // `from`.
  size_t countWithin(int64_t most, size_t from) const;
  void splice();
  int64_t write(int64_t bucketBytes, std::span<const FrontierTerm> of,
                std::vector<FrontierArena::Record> &out) const;

  const FrontierArena &arena;
  int64_t limit = kNoLimit;
  std::vector<Cost> rows, columns; // of the term in hand
  // Known tuples: bytes ascending, nanoseconds descending.
  std::vector<int64_t> bytes, nanoseconds;
  std::vector<Place> places;
  // Points to be spliced in, and before how many known ones each stands.
  std::vector<Point> path, fresh;
  std::vector<size_t> before;
  std::vector<int64_t> splicedBytes, splicedNanoseconds;
  std::vector<Place> splicedPlaces;
};

} // namespace merak::planning
