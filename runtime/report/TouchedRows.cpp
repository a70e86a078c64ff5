#include "runtime/report/TouchedRows.h"

#include "runtime/data/DataSource.h"

#include <fmt/format.h>

#include <algorithm>

namespace merak::report {

namespace {

constexpr int64_t kMostSteps = 16;

// The rows that a step names in an input, appended to `rows`.
Status readIds(runtime::DataSource &data, const planpb::Input &input,
               int64_t step, std::vector<int64_t> &rows) {
  const std::vector<int64_t> shape(input.shape().begin(), input.shape().end());
  layout::Box all;
  int64_t count = 1;
  for (int64_t size : shape) {
    all.globalOrigin.push_back(0);
    all.localOrigin.push_back(0);
    all.extent.push_back(size);
    count *= size;
  }
  const bool isLong = input.dtype() == planpb::I64;
  std::vector<char> bytes(static_cast<size_t>(count) * (isLong ? 8 : 4));
  MERAK_RETURN_IF_ERROR(
      data.read(input.name(), step, {all}, bytes.data(), shape));
  for (int64_t i = 0; i < count; ++i)
    rows.push_back(isLong ? reinterpret_cast<const int64_t *>(bytes.data())[i]
                          : reinterpret_cast<const int32_t *>(bytes.data())[i]);
  return {};
}

} // namespace

Result<std::map<std::string, double>>
touchedShares(const planpb::PlanFile &inputs, const std::string &path,
              const std::vector<TableIds> &tables) {
  runtime::DataOptions options;
  options.path = path;
  auto data = runtime::openData(inputs, options);
  if (!data.ok())
    return data.status();
  const int64_t samples = (*data)->samples(), batch = inputs.global_batch();
  const int64_t steps =
      samples > 0 ? std::min(kMostSteps, (samples + batch - 1) / batch)
                  : kMostSteps;
  std::map<std::string, double> shares;
  Status status;
  for (const TableIds &table : tables) {
    double named = 0;
    for (int64_t step = 0; step < steps && status.ok(); ++step) {
      std::vector<int64_t> rows;
      for (const planpb::Input &input : inputs.inputs())
        if (std::count(table.inputs.begin(), table.inputs.end(), input.name()))
          status.merge(readIds(**data, input, step, rows));
      for (int64_t &row : rows) {
        const int64_t id = row;
        if (row < 0) // from the end, as lookups take it
          row += table.rows;
        if (row < 0 || row >= table.rows) {
          status.merge(Status::error(fmt::format(
              "step {}: an id of the table '{}' is {}, expected one of its {} "
              "rows",
              step, table.table, id, table.rows)));
          break;
        }
      }
      std::sort(rows.begin(), rows.end());
      named += static_cast<double>(std::unique(rows.begin(), rows.end()) -
                                   rows.begin());
    }
    shares[table.table] =
        named / (static_cast<double>(steps) * static_cast<double>(table.rows));
  }
  if (!status.ok())
    return std::move(status).withContext(path);
  return shares;
}

} // namespace merak::report
