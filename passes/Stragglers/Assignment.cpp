#include "passes/Stragglers/Assignment.h"

#include <cstddef>
#include <limits>

namespace merak::stragglers {

namespace {

// Rows and columns are counted from 1; column 0 stands for the row that is
// being placed. Costs are what values fall short by, so that the shortest
// augmenting path gives the best place.
class Matching {
public:
  explicit Matching(const std::vector<std::vector<int64_t>> &values)
      : values(values), columns(values.front().size()),
        rowPotential(values.size() + 1), potential(columns + 1),
        rowOf(columns + 1), cameFrom(columns + 1) {}

  std::vector<int> run() {
    for (size_t row = 1; row <= values.size(); ++row)
      place(row);
    std::vector<int> result(values.size());
    for (size_t column = 1; column <= columns; ++column)
      if (rowOf[column])
        result[rowOf[column] - 1] = int(column - 1);
    return result;
  }

private:
  static constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

  void place(size_t row) {
    rowOf[0] = row;
    distance.assign(columns + 1, kFar);
    done.assign(columns + 1, false);
    size_t at = 0;
    while (rowOf[at])
      at = next(at);
    for (; at; at = cameFrom[at])
      rowOf[at] = rowOf[cameFrom[at]];
  }

  // The nearest column that is not done, after paths through `at`.
  size_t next(size_t at) {
    done[at] = true;
    const size_t row = rowOf[at];
    size_t nearest = 0;
    int64_t step = kFar;
    for (size_t column = 1; column <= columns; ++column) {
      if (done[column])
        continue;
      const int64_t through =
          -values[row - 1][column - 1] - rowPotential[row] - potential[column];
      if (through < distance[column]) {
        distance[column] = through;
        cameFrom[column] = at;
      }
      if (distance[column] < step) {
        step = distance[column];
        nearest = column;
      }
    }
    for (size_t column = 0; column <= columns; ++column)
      if (done[column]) {
        rowPotential[rowOf[column]] += step;
        potential[column] -= step;
      } else {
        distance[column] -= step;
      }
    return nearest;
  }

  const std::vector<std::vector<int64_t>> &values;
  const size_t columns;
  std::vector<int64_t> rowPotential, potential, distance;
  std::vector<size_t> rowOf, cameFrom;
  std::vector<char> done;
};

} // namespace

std::vector<int>
bestAssignment(const std::vector<std::vector<int64_t>> &values) {
  return values.empty() ? std::vector<int>() : Matching(values).run();
}

int64_t valueOf(const std::vector<std::vector<int64_t>> &values,
                const std::vector<int> &columns) {
  int64_t sum = 0;
  for (size_t row = 0; row < values.size(); ++row)
    sum += values[row][size_t(columns[row])];
  return sum;
}

} // namespace merak::stragglers
