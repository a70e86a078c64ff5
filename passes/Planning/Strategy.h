// The decisions of planning in one value, which is also a file (--strategy,
// --emit-strategy). Later phases only apply it. Fields that are absent are
// open: the compiler decides them.
#pragma once

#include "passes/Planning/Partition.h"
#include "passes/Planning/Schedule.h"

#include <map>
#include <optional>

namespace merak::planning {

// A pipeline of stages on meshes of their own.
struct PipelineStages {
  struct Stage {
    std::vector<int64_t> devices; // row major over dp, tp
    int64_t dp = 1, tp = 1;
    std::optional<std::string> begin; // first op; of no or of all but the first
    bool operator==(const Stage &) const = default;
    std::string str() const; // "0-3 dp=2,tp=2"
  };
  std::optional<int64_t> microbatches; // a step
  std::vector<Stage> stages;
  std::vector<int64_t> spares; // devices that do nothing, ascending
  bool operator==(const PipelineStages &) const = default;

  int64_t devices() const; // of the stages
  // Whether all stages have the same degrees and the devices stand in order: a
  // plan of one mesh.
  bool isUniform() const;
  // Of a device of a stage: ranks are numbered without the spares.
  int64_t rankOf(int64_t device) const;
  std::string sparesStr() const; // "3,5-7"
  std::string str() const;       // of all stages, "0-3 dp=2,tp=2; 4 dp=1,tp=1"
};

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
  // At most one so far.
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

  // Sets mesh and, where its stages say where they begin, stageBegins by the
  // pipeline, which becomes the only one.
  void setPipeline(const PipelineStages &pipeline);

  // "none", "full", "auto" or a ratio from 0 to 1; errors say so.
  static Status checkRecompute(const std::string &text);

  std::string toJson() const; // keys in a fixed order
  // All problems at once: unknown keys, wrong types, degrees below 1, unknown
  // schedules, axes that the mesh lacks. `fileName` opens each message.
  static Result<Strategy> parse(const std::string &json,
                                const std::string &fileName);
};

} // namespace merak::planning
