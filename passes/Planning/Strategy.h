// The decisions of planning in one value, which is also a file (--strategy,
// --emit-strategy). Later phases only apply it. Fields that are absent are
// open: the compiler decides them.
#pragma once

#include "passes/Planning/FactorClasses.h"
#include "passes/Planning/Schedule.h"
#include "runtime/layout/Layout.h"

#include <map>
#include <optional>

namespace merak::planning {

// How a strategy names ops, given the nodes of the forward ops in order:
// "node", or "node#2" where the third op of that node is meant.
std::vector<std::string> opNames(const std::vector<std::string> &nodes);

struct Strategy {
  std::map<std::string, int64_t> mesh; // "pp", "dp", "tp": degrees
  std::optional<int64_t> globalBatch;
  std::optional<int64_t> microbatch;   // samples of one replica
  std::optional<std::string> schedule; // a name or FILE.json
  // Its lists, where no name makes them: what the search found, or the file's.
  std::optional<Schedule> lists;
  std::optional<int64_t> chunks;        // parts of the model on each stage
  std::optional<std::string> recompute; // see checkRecompute
  // The forward ops to recompute (opNames). Overrides `recompute`.
  std::optional<std::vector<std::string>> recomputeOps;
  std::optional<std::string> tpOverlap; // "0" to "3" or "auto"
  // The first op of each part but part 0 (opNames); parts are stages, or
  // chunk * pp + stage.
  std::optional<std::vector<std::string>> stageBegins;
  // Per parameter, for each dimension the axes ("" or absent: whole).
  struct ParameterAxes {
    std::vector<std::vector<std::string>> dims;
    bool operator==(const ParameterAxes &) const = default;
  };
  std::map<std::string, ParameterAxes> parameters;
  // Classes by anchor and the axes they are split over.
  struct SplitClass {
    ClassAnchor anchor;
    std::vector<std::string> axes;
    bool operator==(const SplitClass &) const = default;
  };
  std::vector<SplitClass> classes;
  bool operator==(const Strategy &) const = default;

  // "none", "full", "auto" or a ratio from 0 to 1; errors say so.
  static Status checkRecompute(const std::string &text);

  std::string toJson() const; // keys in a fixed order
  // All problems at once: unknown keys, wrong types, degrees below 1, unknown
  // schedules, axes that the mesh lacks. `fileName` opens each message.
  static Result<Strategy> parse(const std::string &json,
                                const std::string &fileName);
};

} // namespace merak::planning
