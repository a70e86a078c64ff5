// How many rows of a table a step and parts of it look up, counted in the data
// that it will be trained on.
#pragma once

#include "runtime/plan/Plan.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace merak::report {

// What a step reads, by input.
using StepInputs = std::map<std::string, std::vector<int64_t>>;
// Ids of a step, by lookup, in each those of one sample behind those of
// another.
using IdsOfLookups = std::vector<std::vector<int64_t>>;
inline constexpr int64_t kNoRow = INT64_MIN;

struct TableIds {
  std::string table;
  int64_t rows = 0;
  // Nothing: they cannot be computed.
  std::function<IdsOfLookups(const StepInputs &)> ids;
};

// The different rows that so many consecutive samples of a step name, with as
// many ids; the mean over all such parts of the steps counted.
struct TouchedCount {
  int64_t samples = 0, ids = 0;
  double rows = 0;
};

// By table, a count for each number of samples that divides a step, and for
// two steps, in the first steps (at most 16, of one epoch); tables whose ids
// cannot be computed are left out. `inputs`: the integers that they are
// computed from, of one step, with its global batch. `path`: as of merak-run's
// --data. Errors: what does not hold these inputs, and ids that are no rows.
Result<std::map<std::string, std::vector<TouchedCount>>>
countTouched(const planpb::PlanFile &inputs, const std::string &path,
             const std::vector<TableIds> &tables);

} // namespace merak::report
