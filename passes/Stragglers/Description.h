// What a user writes of a model, devices and situations, in JSON
// (docs/Stragglers.md).
#pragma once

#include "passes/Stragglers/Plan.h"

#include <optional>

namespace merak::stragglers {

struct Situation {
  std::string name;
  Problem problem;
};
struct Description {
  std::vector<Situation> situations; // at least one
  // Of one layer of one microbatch on a full group of normal devices; 0: not
  // said, times are in such units.
  double seconds = 0;
  std::optional<Plan> plan; // that runs; nothing: the uniform one
};

// `fileName` opens each message; a cluster's file is looked for in `folder`.
// All missing, unknown and contradictory fields at once, each with its path,
// and what `check` says of the problem.
Result<Description> parseDescription(const std::string &json,
                                     const std::string &fileName,
                                     const std::string &folder);

// A plan as `toJson` writes it: {"pipelines": [{"microbatches": 23, "stages":
// [{"devices": "0-7", "layers": 20}]}]}, alone or as the field "plan" of a
// report.
Result<Plan> parsePlan(const std::string &json, const std::string &fileName);

// Times longer than normal: "0=2.57,8-15=6.87,20=gone" replaces the rates of
// these devices.
Status setRates(Problem &problem, const std::string &text);

} // namespace merak::stragglers
