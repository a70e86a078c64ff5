// Which part of a table's rows a step looks up, counted in the data that it
// will be trained on.
#pragma once

#include "runtime/plan/Plan.h"

#include <map>
#include <string>
#include <vector>

namespace merak::report {

// The ids of a table: inputs of the model that hold nothing else.
struct TableIds {
  std::string table;
  int64_t rows = 0;
  std::vector<std::string> inputs;
};

// By table, the mean over the first steps (at most 16, of one epoch) of the
// different rows that a step names, over all rows. `inputs`: the model's, of
// one step, with its global batch. `path`: as of merak-run's --data. Errors:
// what does not hold these inputs, and ids that are no rows.
Result<std::map<std::string, double>>
touchedShares(const planpb::PlanFile &inputs, const std::string &path,
              const std::vector<TableIds> &tables);

} // namespace merak::report
