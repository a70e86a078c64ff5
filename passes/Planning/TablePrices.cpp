#include "passes/Planning/TablePrices.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::planning {

const char *nameOf(TableExchange exchange) {
  switch (exchange) {
  case TableExchange::Dense:
    return "all-reduce";
  case TableExchange::Rows:
    return "gathered rows";
  case TableExchange::Columns:
    return "columns";
  case TableExchange::Ranges:
    return "ranges of rows";
  }
  return "";
}

std::vector<SparseTable> sparseTables(const Graph &graph) {
  std::vector<SparseTable> found;
  for (const GraphOp &op : graph.ops) {
    if (!op.isUpdate() || op.operands.size() < 3)
      continue;
    const GraphTensor &of = graph.tensors[size_t(op.operands[0])],
                      &ids = graph.tensors[size_t(op.operands[2])];
    SparseTable table;
    table.tensor = op.operands[0];
    table.name = of.name;
    table.rows = of.shape.front();
    table.columns = of.elements() / table.rows;
    table.ids = ids.elements();
    table.elementBytes = of.elementBytes;
    table.idBytes = ids.elementBytes;
    for (const GraphOp &sums : graph.ops)
      if (sums.touched && sums.results[0] == op.operands[1] &&
          graph.tensors[size_t(sums.operands[0])].elementBytes == 4)
        table.touched = sums.touched;
    found.push_back(std::move(table));
  }
  return found;
}

std::array<double, kTableExchanges> priceTable(const SparseTable &table,
                                               int64_t replicas,
                                               int64_t microbatches,
                                               const TableLink &link) {
  using Kind = costmodel::Collective;
  std::array<double, kTableExchanges> out{};
  if (replicas < 2)
    return out;
  auto price = [&](TableExchange exchange) -> double & {
    return out[size_t(exchange)];
  };
  const double row = double(table.columns) * table.elementBytes,
               ids = double(table.ids) / double(microbatches),
               times = double(microbatches);
  price(TableExchange::Dense) = link(Kind::AllReduce, double(table.rows) * row);
  const double sent = ids * table.sentShare(replicas, microbatches),
               gathered = link(Kind::AllGather, sent * row),
               named = link(Kind::AllGather, ids * table.idBytes);
  const auto crossed = [&](double rows) {
    return link(Kind::AllToAll, rows * row / double(replicas));
  };
  price(TableExchange::Rows) = times * (gathered + named);
  price(TableExchange::Columns) =
      table.columns % replicas ? -1
                               : times * (named + crossed(ids) + crossed(sent));
  price(TableExchange::Ranges) =
      table.rows % replicas
          ? -1
          : times * (named + link(Kind::ReduceScatter, ids * row) + gathered);
  return out;
}

namespace {

// Of ranks that hold one part of the table.
int64_t waysOf(const layout::DimLayout &dim, const Assignment &assignment,
               const char *on) {
  int64_t ways = 1;
  for (const layout::Factor &factor : dim.factors)
    for (const std::string &axis : factor.axes)
      if (isOn(axis, on))
        ways *= assignment.sizeOf(axis);
  return ways;
}

int stageOf(const Graph &graph, const PlanDecision &decision, int table) {
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const std::vector<int> &operands = graph.ops[o].operands;
    if (decision.stageOfOp[o] >= 0 &&
        std::find(operands.begin(), operands.end(), table) != operands.end())
      return decision.stageOfOp[o] % int(decision.degrees.pp);
  }
  return 0;
}

// What is known about the rows of a step, and what is sent of them.
std::string describeSent(const SparseTable &table, int64_t replicas,
                         int64_t microbatches) {
  if (!table.touched)
    return "";
  const double sent = table.sentShare(replicas, microbatches);
  return fmt::format(
      ", about {:.0f}{}", table.touched->different(double(table.ids)),
      replicas > 1 && sent < 1
          ? fmt::format(", {:.0f} % of the slices are sent", 100 * sent)
          : "");
}

// What is only stored in parts is whole where it is looked up.
TableExchange exchangeOf(const SparseTable &table,
                         const PlanDecision &decision) {
  const layout::Layout &lies = decision.outcome.tensors[size_t(table.tensor)];
  const bool isStored = decision.strategy.zero.value_or(0) > 0 ||
                        decision.strategy.stored.count(table.name) > 0;
  for (size_t d = 0; d < lies.dims.size() && !isStored; ++d)
    if (waysOf(lies.dims[d], decision.assignment, kDataAxis) > 1)
      return d == 0 ? TableExchange::Ranges : TableExchange::Columns;
  return TableExchange::Rows;
}

} // namespace

std::vector<std::string> describeTables(const Graph &graph,
                                        const PlanDecision &decision,
                                        const costmodel::Cluster &cluster) {
  std::vector<std::string> lines;
  const Degrees &d = decision.degrees;
  for (SparseTable &table : sparseTables(graph)) {
    const int id = table.tensor;
    const layout::Layout &lies = decision.outcome.tensors[size_t(id)];
    table.rows /= waysOf(lies.dims[0], decision.assignment, kTensorAxis);
    for (size_t k = 1; k < lies.dims.size(); ++k)
      table.columns /= waysOf(lies.dims[k], decision.assignment, kTensorAxis);
    std::vector<int64_t> devices;
    for (int64_t i = 0; i < d.dp; ++i)
      devices.push_back(
          std::min(stageOf(graph, decision, id) * d.dp * d.tp + i * d.tp,
                   cluster.count - 1));
    const auto link = [&](costmodel::Collective kind, double bytes) {
      return costmodel::collectiveSeconds(kind, bytes, devices, cluster,
                                          std::min(cluster.perNode, d.tp));
    };
    // Halves of a microbatch have slices of their own.
    if (cluster.device().backend != "cpu" || decision.overlapLevel > 0)
      table.touched.reset();
    const auto prices = priceTable(table, d.dp, d.microbatches, link);
    std::string text;
    for (size_t k = 0; d.dp > 1 && k < prices.size(); ++k)
      text += fmt::format("{}{} {}", k ? ", " : "", nameOf(TableExchange(k)),
                          prices[k] < 0 ? "does not divide"
                                        : fmt::format("{:.3g} s", prices[k]));
    lines.push_back(fmt::format(
        "table '{}': at most {} of {} rows a step{}{}{}{}", table.name,
        std::min(table.ids, table.rows), table.rows,
        describeSent(table, d.dp, d.microbatches), text.empty() ? "" : "; ",
        text,
        text.empty()
            ? ""
            : fmt::format("; {} taken", nameOf(exchangeOf(table, decision)))));
  }
  return lines;
}

} // namespace merak::planning
