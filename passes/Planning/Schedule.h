// Pipeline schedules as data: for every stage the ordered list of its actions.
// Generators make such lists, the checker, the simulator and the printers read
// them, and a user can hand in one as a file. See docs/Schedules.md.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/plan/Actions.h"

#include <string>
#include <vector>

namespace merak::planning {

struct Schedule {
  std::string name;
  int stages = 1, microbatches = 1, chunks = 1;
  std::vector<std::vector<Step>> order; // per stage

  // Chunk c of stage s is the (c * stages + s)-th part of the model.
  int virtualStages() const { return stages * chunks; }
  bool operator==(const Schedule &) const = default;
};

struct ScheduleOptions {
  int stages = 1, microbatches = 1, chunks = 1;
  bool recompute = false; // an R before each B, on every stage
  // Which stages recompute; empty: `recompute` for all. A stage that does not
  // keeps its activations from F to B and W; last and scp never recompute on
  // the last stage.
  std::vector<bool> recomputeStages;
  bool splitBackward = false;      // a W after each B (else B stands for both)
  bool prologue = false;           // all P before the first F
  std::vector<int> prologueStages; // on these stages; empty: on all
  bool update = false;             // a U at the end
  // eager: forward operations a stage runs before its first backward; empty:
  // the schedule's own rule.
  std::vector<int> warmup;

  bool recomputes(int stage) const {
    return recomputeStages.empty() ? recompute : recomputeStages[stage];
  }
};

// Of how many microbatches stage s may do W after its last B: of one, of s + 1,
// of all of them.
enum class LateWeights { No, ByStage, Any };

// What planning asks of a schedule by name; all names stand in kSchedules.
struct ScheduleTraits {
  std::string name;
  bool takesChunks = false; // several parts of the model on a stage
  bool lastKeeps = false;   // the last stage never recomputes
  // The stage before the last has as many microbatches in flight as the one
  // before it (Merak's shifted critical path).
  bool shifts = false;
  LateWeights weights = LateWeights::No;
  // When `auto` tries it, with one chunk; 0: it does not. Of equals the first
  // is taken.
  int searched = 0;
};
// Of a name that is none (a file): nothing but the name, and anything may be.
ScheduleTraits traitsOf(const std::string &name);
// What `auto` tries, in order, with one or with several chunks.
std::vector<std::string> searchedSchedules(bool chunks);

// By name (scheduleNames). Errors: unknown name (lists the known ones), a shape
// the schedule is not defined for.
Result<Schedule> makeSchedule(const std::string &name,
                              const ScheduleOptions &options);
const std::vector<std::string> &scheduleNames();

// Whether a schedule with so many chunks is defined for the shape.
inline bool dividesIntoChunks(int chunks, int stages, int microbatches) {
  return chunks == 1 || microbatches % stages == 0;
}

// Adds to the F, R, B (and W) of a stage what every schedule has alike: P
// first, W after its B unless there is one already, U last.
std::vector<Step> completeStage(const std::vector<Step> &order,
                                const ScheduleOptions &options, int stage);

// Of several pipelines whose lists stand one behind the other, and whose
// microbatches are those of the step: those of one, which counts its own from
// 0. The prologue is left out: it goes over all microbatches everywhere.
Schedule listsOfPipeline(const Schedule &all, int firstStage, int stages,
                         int firstMicrobatch, int microbatches);
// The other way: puts one behind the others. `all` has no stages at first.
void append(const Schedule &own, int firstMicrobatch, Schedule &all);

// "F0 F1 r0 B0 ..." for one stage.
std::string stageStr(const Schedule &schedule, int stage);
// One line a stage.
std::string tableStr(const Schedule &schedule);

// {"name": .., "microbatches": .., "stages": ["F0 F1 B0 ...", ...]}: all
// problems at once, with stage and position.
Result<Schedule> parseSchedule(const std::string &json,
                               const std::string &fileName);
std::string toJson(const Schedule &schedule);

} // namespace merak::planning
