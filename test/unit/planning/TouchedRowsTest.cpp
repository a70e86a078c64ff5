// Different rows by the number of ids.
#include "passes/Planning/TouchedRows.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace merak::planning {
namespace {

TouchedRows known(double rows, double ids, double size) {
  return TouchedRows({{ids, rows}}, size);
}

TEST(TouchedRows, AreWhatIsKnown) {
  for (double size : {100., 1e4, 1e7})
    for (double ids : {10., 4096., 1e6})
      for (double share : {0.001, 0.1, 0.5, 0.9, 0.999})
        if (const double rows = std::max(1.0, share * ids); rows <= size) {
          EXPECT_NEAR(known(rows, ids, size).different(ids), rows, 2e-4 * rows)
              << rows << " of " << size;
        }
}

TEST(TouchedRows, AreNeverMoreThanIds) {
  const TouchedRows all = known(100, 100, 1000), more = known(300, 100, 1000),
                    few = known(3, 100, 1000);
  for (double ids : {1., 10., 100., 1000.}) {
    EXPECT_EQ(all.different(ids), ids);
    EXPECT_EQ(more.different(ids), ids);
    EXPECT_LE(few.different(ids), ids);
    EXPECT_LE(few.different(ids), 6);
  }
  EXPECT_NEAR(few.different(1), 1, 1e-9);
}

// Ids whose chances fall as a power of the rank, down to even chances: of a
// whole step's count follow those of its parts and of two steps.
TEST(TouchedRows, AreThoseOfChancesThatFall) {
  constexpr int kRows = 20000, kIds = 4096, kTrials = 10;
  for (double power : {0.0, 0.7, 1.1, 1.5}) {
    std::vector<double> chances(kRows);
    for (int k = 0; k < kRows; ++k)
      chances[size_t(k)] = std::pow(k + 1, -power);
    std::discrete_distribution<int> row(chances.begin(), chances.end());
    std::mt19937 random(5);
    const auto count = [&](int ids) {
      double sum = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        std::set<int> rows;
        for (int i = 0; i < ids; ++i)
          rows.insert(row(random));
        sum += double(rows.size());
      }
      return sum / kTrials;
    };
    const TouchedRows touched = known(count(kIds), kIds, kRows);
    for (int ids : {256, 512, 1024, 2048, 8192})
      EXPECT_NEAR(touched.different(ids), count(ids), 0.05 * count(ids))
          << power << " " << ids;
  }
}

// Between counts nothing of such a law is needed.
TEST(TouchedRows, LieBetweenCounts) {
  const TouchedRows touched({{10, 8}, {1000, 80}, {2000, 100}}, 1e6);
  EXPECT_NEAR(touched.different(10), 8, 1e-2);
  EXPECT_DOUBLE_EQ(touched.different(100), 8 * std::sqrt(10));
  EXPECT_DOUBLE_EQ(touched.different(1000), 80);
  EXPECT_DOUBLE_EQ(touched.different(2000), 100);
  EXPECT_GT(touched.different(3000), 100);
  EXPECT_LT(touched.different(5), 5);
  EXPECT_GT(touched.different(5), 4);
}

// Few repeats are not worth a way through memory.
TEST(TouchedRows, SlicesAreSummedWhereThatMakesThemFewer) {
  EXPECT_EQ(known(95, 100, 1000).sentShare(100), 1);
  EXPECT_NEAR(known(60, 100, 1000).sentShare(100), 0.6, 1e-4);
}

} // namespace
} // namespace merak::planning
