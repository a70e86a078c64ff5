#include "passes/Planning/TouchedRows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace merak::planning {

static double named(double all, double ids) {
  return all * -std::expm1(-ids / all);
}

TouchedRows::TouchedRows(double rows, double ids)
    : all(std::numeric_limits<double>::infinity()) {
  // Of infinitely many rows each id names another one.
  constexpr double kNone = 1 - 1e-9;
  if (rows >= ids * kNone)
    return;
  // Grows with `all`, from `all` itself where ids are many.
  double low = rows, high = 2 * rows;
  while (named(high, ids) < rows)
    high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (named(middle, ids) < rows ? low : high) = middle;
  }
  all = high;
}

double TouchedRows::different(double ids) const {
  return std::isinf(all) ? ids : std::min(ids, named(all, ids));
}

} // namespace merak::planning
