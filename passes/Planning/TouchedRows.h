// How many different rows of a table a number of ids name.
#pragma once

#include <vector>

namespace merak::planning {

// So many different rows that so many ids of a step name.
struct RowCount {
  double ids = 0, rows = 0;
  bool operator==(const RowCount &) const = default;
};

// From counts that are known. Between two of them rows grow as a power of ids;
// beyond, and from one alone, as if chances of rows fell as a power of their
// rank, as those of words and categories do, down to equal chances: the power
// is what makes the count.
class TouchedRows {
public:
  // At least one count, by their ids; of a table of `size` rows. Counts of more
  // rows than equal chances would give (ids that avoid each other) are taken as
  // of a larger table.
  TouchedRows(std::vector<RowCount> counts, double size);
  // Rows that so many ids are expected to name, at most their number.
  double different(double ids) const;

  // Of slices of so many ids, the part that is left when those of one id are
  // summed before they are sent; 1: too few would be saved for a way through
  // memory.
  double sentShare(double ids) const;
  bool operator==(const TouchedRows &) const = default;

private:
  struct Rows { // that are named with about the same chance
    double chance, count;
    bool operator==(const Rows &) const = default;
  };
  static std::vector<Rows> chances(double power, double size);
  static std::vector<Rows> fitted(const RowCount &count, double size);
  static double named(const std::vector<Rows> &rows, double ids);

  std::vector<RowCount> counts;
  std::vector<Rows> below, above; // the first count, the last one
};

} // namespace merak::planning
