// The decisions of planning in one value, which is also a file (--strategy,
// --emit-strategy). Later phases only apply it. Fields that are absent are
// open: the compiler decides them.
#pragma once

#include "passes/Planning/Partition.h"
#include "passes/Planning/PipelineStages.h"
#include "passes/Planning/Schedule.h"

#include <map>
#include <optional>

namespace merak::planning {

struct Strategy {
  std::map<std::string, int64_t> mesh; // "pp", "dp", "tp": degrees
  // Of dp and tp: their parts, major to minor; "tp.0" is the first of tp.
  std::map<std::string, std::vector<int64_t>> parts;
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
  // Instead of mesh and microbatch, which are then derived, and of stageBegins
  // where a stage has one part: dp and tp are the least common multiples of
  // those of the stages, so that what they divide every stage's degrees divide.
  // With several, the degree of pp is the number of all stages, and `lists` has
  // those of all, whose microbatches are those of the step: of pipelines of 5
  // and 3 the second has numbers 5 to 7.
  std::vector<PipelineStages> pipelines;
  // Per parameter, for each dimension the axes ("" or absent: whole).
  struct ParameterAxes {
    std::vector<std::vector<std::string>> dims;
    bool operator==(const ParameterAxes &) const = default;
  };
  std::map<std::string, ParameterAxes> parameters;
  // Trained parameters stored over more axes than their uses have: for each
  // dimension all axes, and how long what is gathered lives. `zero`: a level
  // for all of them over dp (SeamLayouts.h).
  struct StoredLayout {
    std::vector<std::vector<std::string>> dims;
    StoredParameter how;
    bool operator==(const StoredLayout &) const = default;
  };
  std::map<std::string, StoredLayout> stored;
  std::optional<int64_t> zero;
  // Tokens split over tp between the parts of the model that tp divides: 1, or
  // 0 for not.
  std::optional<int64_t> sequence;
  // Tokens split over tp everywhere, keys and values gathered: 1, or 0 for not.
  std::optional<int64_t> context;
  // Layouts that differ between parts of the model (LayoutSearch.h) are tried
  // or not. In no file: what was found is seams and classes.
  std::optional<int64_t> mixed;
  // Of these: all values are tried.
  static constexpr int64_t kAuto = -1;
  // Where a parameter is read in another type: "step", it is converted once a
  // step and kept, "use", at each use, or "auto".
  std::optional<std::string> castWeights;
  // How values go between stages on unlike meshes (resharding::Strategy);
  // nothing: the fastest way of each.
  std::optional<std::string> reshard;
  // Uses of tensors where layouts may change (Seams.h).
  struct SeamUse {
    std::string op; // see forwardNames
    int operand = 0;
    bool operator==(const SeamUse &) const = default;
  };
  std::vector<SeamUse> seams;
  // Classes by anchor and the axes they are split over.
  struct SplitClass {
    ClassAnchor anchor;
    std::vector<std::string> axes;
    bool operator==(const SplitClass &) const = default;
  };
  std::vector<SplitClass> classes;
  bool operator==(const Strategy &) const = default;

  // Sets mesh and, of a single pipeline whose stages say where they begin,
  // stageBegins.
  void setPipelines(std::vector<PipelineStages> all);
  // What is decided of one of the pipelines, whose microbatches count from 0;
  // its degrees dp and tp are those of all.
  Strategy ofPipeline(size_t index) const;
  int64_t firstMicrobatch(size_t index) const; // of the step, of a pipeline

  // "none", "full", "auto" or a ratio from 0 to 1; errors say so.
  static Status checkRecompute(const std::string &text);

  std::string toJson() const; // keys in a fixed order
  // All problems at once: unknown keys, wrong types, degrees below 1, unknown
  // schedules, axes that the mesh lacks. `fileName` opens each message.
  static Result<Strategy> parse(const std::string &json,
                                const std::string &fileName);

private:
  void takeBegins(const PipelineStages &pipeline);
};

} // namespace merak::planning
