// What the ways to bring a looked-up table's gradient to all its holders would
// take (Li et al., EmbRace, ICPP 2022, arXiv 2110.09132, section 3), from the
// ids of a step and, where it is known how many rows they name, slices that are
// summed before they are sent: for the report. The plan itself is priced like
// any other, by its conversions.
#pragma once

#include "passes/Planning/PlanDecision.h"

#include <array>

namespace merak::planning {

enum class TableExchange {
  Dense,   // the whole gradient is all-reduced
  Rows,    // ids and slices of all replicas are gathered
  Columns, // of the table are split: looked-up rows and slices all-to-all
  Ranges   // of rows are split: looked-up rows are summed, slices gathered
};
inline constexpr size_t kTableExchanges = 4;
const char *nameOf(TableExchange exchange);

// A table with a row-sparse gradient.
struct SparseTable {
  int tensor = 0;
  std::string name;
  int64_t rows = 1, columns = 1; // of the whole table
  int64_t ids = 0;               // of a step, all replicas'
  double elementBytes = 4, idBytes = 8;
  // Rows that ids name, where slices may be summed before they are sent.
  std::optional<TouchedRows> touched;

  // Of the slices of a replica's part of the ids, what is sent.
  double sentShare(int64_t replicas, int64_t microbatches) const {
    return touched ? touched->sentShare(double(ids) /
                                        double(replicas * microbatches))
                   : 1;
  }
};

// In order of their updates.
std::vector<SparseTable> sparseTables(const Graph &graph);

// Seconds of a collective between the replicas; `bytes` as collectiveSeconds().
using TableLink =
    std::function<double(costmodel::Collective kind, double bytes)>;

// By exchange, seconds a step; each message as long as if nothing else was
// sent. Nothing where there is one replica; a negative number where a
// dimension does not divide.
std::array<double, kTableExchanges> priceTable(const SparseTable &table,
                                               int64_t replicas,
                                               int64_t microbatches,
                                               const TableLink &link);

// A line for each table: the prices, and which exchange the plan has.
std::vector<std::string> describeTables(const Graph &graph,
                                        const PlanDecision &decision,
                                        const costmodel::Cluster &cluster);

} // namespace merak::planning
