// Different rows by the number of ids.
#include "passes/Planning/TouchedRows.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace merak::planning {
namespace {

TEST(TouchedRows, AreWhatIsKnown) {
  for (double ids : {10., 4096., 1e6})
    for (double share : {0.001, 0.1, 0.5, 0.9, 0.999}) {
      const double rows = std::max(1., share * ids);
      EXPECT_NEAR(TouchedRows(rows, ids).different(ids), rows, 1e-6 * rows);
    }
}

TEST(TouchedRows, AreNeverMoreThanIds) {
  const TouchedRows all(100, 100), more(300, 100), few(3, 100);
  for (double ids : {1., 10., 100., 1000.}) {
    EXPECT_EQ(all.different(ids), ids);
    EXPECT_EQ(more.different(ids), ids);
    EXPECT_LE(few.different(ids), ids);
    EXPECT_LE(few.different(ids), 4);
  }
}

// Ids drawn evenly from some rows.
TEST(TouchedRows, AreThoseOfEvenChances) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> row(0, 999);
  auto count = [&](int ids) {
    double sum = 0;
    for (int trial = 0; trial < 200; ++trial) {
      std::set<int> rows;
      for (int i = 0; i < ids; ++i)
        rows.insert(row(random));
      sum += double(rows.size());
    }
    return sum / 200;
  };
  const TouchedRows known(count(2000), 2000);
  for (int ids : {50, 250, 1000})
    EXPECT_NEAR(known.different(ids), count(ids), 0.03 * ids) << ids;
}

} // namespace
} // namespace merak::planning
