// Exchanges of a table's gradient against the cost table of EmbRace.
#include "passes/Planning/TablePrices.h"

#include "test/unit/planning/ModelGraphs.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

double at(const std::array<double, kTableExchanges> &prices,
          TableExchange exchange) {
  return prices[size_t(exchange)];
}

// Bytes that each rank sends on a ring, at a byte a second.
TableLink bytesBetween(int64_t replicas) {
  return [replicas](costmodel::Collective kind, double bytes) {
    return costmodel::ringBytes(kind, bytes, replicas);
  };
}

// Rows of which each of `replicas` looks up the part `share`, with ids that
// weigh nothing.
SparseTable tableOf(double share, int64_t replicas) {
  SparseTable table;
  table.rows = 1 << 20;
  table.columns = 1024;
  table.ids = int64_t(share * double(table.rows)) * replicas;
  table.idBytes = 0;
  return table;
}

// Section 3: an all-reduce sends 1/a times as much as the two all-to-alls,
// gathered rows N/2 times as much; they are worse than it from a = 2/N on.
TEST(TablePrices, RatiosAreThoseOfThePaper) {
  for (int64_t replicas = 2; replicas <= 256; replicas *= 2)
    for (double share = 1.0 / 1024; share <= 1; share *= 2) {
      const auto prices = priceTable(tableOf(share, replicas), replicas, 1,
                                     bytesBetween(replicas));
      const double columns = at(prices, TableExchange::Columns),
                   dense = at(prices, TableExchange::Dense),
                   rows = at(prices, TableExchange::Rows);
      EXPECT_NEAR(dense / columns, 1 / share, 1e-9 / share);
      EXPECT_NEAR(rows / columns, double(replicas) / 2, 1e-6);
      EXPECT_EQ(rows > dense * (1 + 1e-9), share > 2.0 / double(replicas));
      // Rows that are looked up are sent once more than gathered slices.
      EXPECT_NEAR(at(prices, TableExchange::Ranges), 2 * rows, 1e-6 * rows);
    }
}

// The same bytes in more messages.
TEST(TablePrices, MicrobatchesCostLatencyAlone) {
  const SparseTable table = tableOf(0.01, 8);
  const auto link = [](costmodel::Collective kind, double bytes) {
    return 1000.0 + costmodel::ringBytes(kind, bytes, 8);
  };
  const auto once = priceTable(table, 8, 1, link),
             often = priceTable(table, 8, 4, link);
  EXPECT_EQ(at(once, TableExchange::Dense), at(often, TableExchange::Dense));
  const auto messages = [&](TableExchange exchange) {
    return (at(often, exchange) - at(once, exchange)) / 3000;
  };
  EXPECT_NEAR(messages(TableExchange::Rows), 2, 1e-3);
  EXPECT_NEAR(messages(TableExchange::Columns), 3, 1e-3);
  EXPECT_NEAR(messages(TableExchange::Ranges), 3, 1e-3);
}

// Slices are summed before they are sent; looked-up rows are sent for each id.
TEST(TablePrices, SumsAreFewerThanSlices) {
  SparseTable table = tableOf(0.01, 8);
  const auto slices = priceTable(table, 8, 1, bytesBetween(8));
  const double ids = double(table.ids);
  table.touched =
      TouchedRows({{ids / 8, ids / 32}, {ids, ids / 16}}, double(table.rows));
  const auto sums = priceTable(table, 8, 1, bytesBetween(8));
  const auto left = [&](TableExchange exchange) {
    return at(sums, exchange) / at(slices, exchange);
  };
  EXPECT_EQ(left(TableExchange::Dense), 1);
  EXPECT_NEAR(left(TableExchange::Rows), 0.25, 1e-3);
  EXPECT_NEAR(left(TableExchange::Columns), (1 + 0.25) / 2, 1e-3);
  EXPECT_NEAR(left(TableExchange::Ranges), (1 + 0.25) / 2, 1e-3);
  // Of half as many ids at once more are different.
  const auto often = priceTable(table, 8, 2, bytesBetween(8));
  EXPECT_GT(at(often, TableExchange::Rows), at(sums, TableExchange::Rows));
}

TEST(TablePrices, WhatDoesNotDivideHasNoPrice) {
  SparseTable table = tableOf(0.01, 3);
  const auto prices = priceTable(table, 3, 1, bytesBetween(3));
  EXPECT_LT(at(prices, TableExchange::Columns), 0);
  EXPECT_LT(at(prices, TableExchange::Ranges), 0);
  EXPECT_GT(at(prices, TableExchange::Rows), 0);
}

TEST(TablePrices, OneReplicaSendsNothing) {
  for (double seconds : priceTable(tableOf(0.01, 1), 1, 1, bytesBetween(1)))
    EXPECT_EQ(seconds, 0);
}

// A dense gradient is none of a row-sparse table.
TEST(TablePrices, FindsTablesByTheirUpdates) {
  test::TrainGraph model = test::makeGpt({.layers = 1, .batch = 4});
  EXPECT_TRUE(sparseTables(model.graph).empty());
  const int wte = model.find("wte.weight"), ids = model.find("input_ids");
  for (GraphOp &op : model.graph.ops)
    if (op.isUpdate() && op.operands[0] == wte)
      op.operands.push_back(ids);
  const std::vector<SparseTable> found = sparseTables(model.graph);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tensor, wte);
  EXPECT_EQ(found[0].rows, model.shape(wte)[0]);
  EXPECT_EQ(found[0].columns, model.shape(wte)[1]);
  EXPECT_EQ(found[0].ids, model.graph.tensors[size_t(ids)].elements());
}

} // namespace
} // namespace merak::planning
