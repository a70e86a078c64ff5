#include "runtime/report/TouchedRows.h"

#include "runtime/data/DataSource.h"

#include <fmt/format.h>

#include <algorithm>

namespace merak::report {

namespace {

constexpr int64_t kMostSteps = 16;

// Rows that a sample of a step names.
struct Named {
  int64_t sample, row;
};

Result<std::vector<int64_t>>
readInput(runtime::DataSource &data, const planpb::Input &input, int64_t step) {
  const std::vector<int64_t> shape(input.shape().begin(), input.shape().end());
  layout::Box all;
  size_t count = 1;
  for (int64_t size : shape) {
    all.globalOrigin.push_back(0);
    all.localOrigin.push_back(0);
    all.extent.push_back(size);
    count *= static_cast<size_t>(size);
  }
  std::vector<int64_t> values(count);
  if (input.dtype() == planpb::I64) {
    MERAK_RETURN_IF_ERROR(
        data.read(input.name(), step, {all}, values.data(), shape));
  } else {
    std::vector<int32_t> narrow(count);
    MERAK_RETURN_IF_ERROR(
        data.read(input.name(), step, {all}, narrow.data(), shape));
    std::copy(narrow.begin(), narrow.end(), values.begin());
  }
  return values;
}

// Rows of all parts of so many samples. A row is new to a part if the sample
// that named it before lies in front of the part.
class Parts {
public:
  Parts(int64_t batch, int64_t steps, int64_t rows)
      : before_(static_cast<size_t>(rows), -1) {
    for (int64_t samples = 1; samples <= batch; ++samples)
      if (batch % samples == 0)
        counts_.push_back({samples, 0, 0});
    if (steps > 1) // which part of a step's rows the next one names again
      counts_.push_back({2 * batch, 0, 0});
    for (const TouchedCount &count : counts_)
      whole_.push_back(steps * batch / count.samples * count.samples);
  }

  void add(const Named &named) {
    int32_t &before = before_[static_cast<size_t>(named.row)];
    for (size_t i = 0; i < counts_.size(); ++i) {
      const int64_t samples = counts_[i].samples;
      if (named.sample < whole_[i] &&
          (before < 0 || before / samples != named.sample / samples))
        ++counts_[i].rows;
    }
    before = static_cast<int32_t>(named.sample);
  }

  // `ids`: of a sample.
  std::vector<TouchedCount> means(int64_t ids) {
    for (size_t i = 0; i < counts_.size(); ++i) {
      TouchedCount &count = counts_[i];
      count.ids = count.samples * ids;
      count.rows /= static_cast<double>(whole_[i] / count.samples);
    }
    return std::move(counts_);
  }

private:
  std::vector<TouchedCount> counts_;
  std::vector<int64_t> whole_;  // samples in parts that are there as a whole
  std::vector<int32_t> before_; // by row, the sample that named it last
};

// What a step names of a table, in the order of samples; ids are numbered by
// `step` in errors.
Status named(const TableIds &table, const IdsOfLookups &ids, int64_t step,
             int64_t batch, std::vector<Named> &out) {
  for (const std::vector<int64_t> &lookup : ids) {
    const auto size = static_cast<int64_t>(lookup.size());
    for (int64_t i = 0; i < size; ++i) {
      const int64_t id = lookup[static_cast<size_t>(i)];
      if (id == kNoRow)
        continue;
      const int64_t row = id < 0 ? id + table.rows : id; // as lookups take it
      if (row < 0 || row >= table.rows)
        return Status::error(fmt::format(
            "step {}: an id of the table '{}' is {}, expected one of its {} "
            "rows",
            step, table.table, id, table.rows));
      out.push_back({step * batch + i * batch / size, row});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Named &a, const Named &b) {
    return a.sample < b.sample;
  });
  return {};
}

} // namespace

Result<std::map<std::string, std::vector<TouchedCount>>>
countTouched(const planpb::PlanFile &inputs, const std::string &path,
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
  struct Counted {
    Parts parts;
    int64_t ids = 0; // of a sample
    bool known = true;
  };
  std::vector<Counted> counted;
  for (const TableIds &table : tables)
    counted.push_back({Parts(batch, steps, table.rows)});
  Status status;
  for (int64_t step = 0; step < steps && status.ok(); ++step) {
    StepInputs values;
    for (const planpb::Input &input : inputs.inputs()) {
      auto read = readInput(**data, input, step);
      if (read.ok())
        values[input.name()] = std::move(*read);
      else
        status.merge(read.status());
    }
    if (!status.ok())
      break;
    for (size_t t = 0; t < tables.size(); ++t) {
      Counted &of = counted[t];
      const IdsOfLookups ids =
          of.known ? tables[t].ids(values) : IdsOfLookups{};
      if (!(of.known = !ids.empty()))
        continue;
      std::vector<Named> rows;
      status.merge(named(tables[t], ids, step, batch, rows));
      of.ids = 0;
      for (const std::vector<int64_t> &lookup : ids)
        of.ids += static_cast<int64_t>(lookup.size()) / batch;
      for (const Named &row : rows)
        of.parts.add(row);
    }
  }
  if (!status.ok())
    return std::move(status).withContext(path);
  std::map<std::string, std::vector<TouchedCount>> counts;
  for (size_t t = 0; t < tables.size(); ++t)
    if (counted[t].known)
      counts[tables[t].table] = counted[t].parts.means(counted[t].ids);
  return counts;
}

} // namespace merak::report
