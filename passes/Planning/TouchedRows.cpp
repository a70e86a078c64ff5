#include "passes/Planning/TouchedRows.h"

#include <algorithm>
#include <cmath>

namespace merak::planning {

// Chances of the first ranks one by one, then of ranges of ranks that grow with
// the rank.
std::vector<TouchedRows::Rows> TouchedRows::chances(double power, double size) {
  constexpr double kGrowth = 1.05;
  std::vector<Rows> out;
  double sum = 0;
  for (double first = 1, count = 1; first <= size; first += count) {
    count = std::max(1.0, std::floor(first * (kGrowth - 1)));
    count = std::min(count, size - first + 1);
    out.push_back({std::pow(first + 0.5 * (count - 1), -power), count});
    sum += out.back().chance * out.back().count;
  }
  for (Rows &rows : out)
    rows.chance /= sum;
  return out;
}

double TouchedRows::named(const std::vector<Rows> &rows, double ids) {
  double sum = 0;
  for (const Rows &some : rows)
    sum += some.count * -std::expm1(ids * std::log1p(-some.chance));
  return sum;
}

std::vector<TouchedRows::Rows> TouchedRows::fitted(const RowCount &count,
                                                   double size) {
  const auto bisect = [&](double low, double high, auto rowsAt) {
    // `low` names more rows than are known, `high` fewer.
    for (int i = 0; i < 60; ++i) {
      const double middle = 0.5 * (low + high);
      (named(rowsAt(middle), count.ids) > count.rows ? low : high) = middle;
    }
    return rowsAt(high);
  };
  const auto equal = [](double of) { return std::vector<Rows>{{1 / of, of}}; };
  // Of infinitely many rows each id names another one.
  constexpr double kNone = 1 - 1e-9;
  if (count.rows >= count.ids * kNone)
    return {};
  if (named(equal(size), count.ids) >= count.rows)
    return bisect(0, 16, [&](double power) { return chances(power, size); });
  double most = 2 * size;
  while (named(equal(most), count.ids) < count.rows)
    most *= 2;
  return bisect(most, size, equal);
}

TouchedRows::TouchedRows(std::vector<RowCount> known, double size)
    : counts(std::move(known)), below(fitted(counts.front(), size)),
      above(fitted(counts.back(), size)) {}

double TouchedRows::different(double ids) const {
  const auto after =
      std::find_if(counts.begin(), counts.end(),
                   [&](const RowCount &count) { return count.ids >= ids; });
  if (after != counts.end() && after->ids == ids)
    return std::min(ids, after->rows);
  if (after == counts.begin() || after == counts.end()) {
    const std::vector<Rows> &rows = after == counts.end() ? above : below;
    return rows.empty() ? ids : std::min(ids, named(rows, ids));
  }
  const RowCount &low = after[-1], &high = *after;
  const double power =
      std::log(high.rows / low.rows) / std::log(high.ids / low.ids);
  return std::min(ids, low.rows * std::pow(ids / low.ids, power));
}

double TouchedRows::sentShare(double ids) const {
  constexpr double kWorthIt = 0.9;
  const double left = different(ids) / ids;
  return left > kWorthIt ? 1 : left;
}

} // namespace merak::planning
