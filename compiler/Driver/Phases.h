// The phases of the compiler: each takes the module from one to the next, is
// closed by a check and leaves a snapshot.
#pragma once

#include "compiler/Driver/Summary.h"
#include "compiler/Driver/Timing.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/Planning/Confirm.h"

namespace merak {

class Compilation {
public:
  Compilation(const CompilerOptions &options, mlir::MLIRContext &context)
      : options(options), context(context) {}

  // Runs all phases up to options.toPhase. Problems are diagnostics of the
  // context.
  mlir::LogicalResult run();

  // For questions about many plans (Explore.h). The phases up to the training
  // graph, once:
  mlir::LogicalResult prepare();
  // What the stage phase finds from there on.
  mlir::FailureOr<SearchResult> searchPlans(const Replanning &how,
                                            std::string &problem);
  // One plan as `how` says, its buffers laid out and simulated. `problem`: why
  // there is none.
  struct Trial {
    int64_t bytes = 0; // of the fullest rank
    double seconds = 0;
    const Decision *decision = nullptr; // until the next one
  };
  mlir::FailureOr<Trial> tryPlan(const Replanning &how, std::string &problem);
  // The best plan, as run() makes it; with `tried` the one that `how` takes, of
  // plans that were tried before. `remark`: a line for the report.
  mlir::LogicalResult plan(const Replanning &how, const std::string &remark,
                           std::vector<planning::Finalist> tried = {});
  mlir::LogicalResult writeFiles();

  mlir::ModuleOp getModule() { return module.get(); }
  // Of a step of the plan, if it was simulated.
  std::optional<double> getSimulatedSeconds() const { return notes.simulated; }
  // After a failure: whether it is the compiler's own fault.
  bool isInternalError() const { return isBug; }
  // Where the time went, of what was run so far.
  const CompileTimes &getTimes() const { return times; }
  // All that was decided, in lines for the user.
  const std::string &getReport() const { return report; }
  // The same on one screen.
  std::string getSummary() {
    return summarize(*module, options, notes, warnings);
  }
  const std::vector<std::string> &getWarnings() const { return warnings; }
  // A warning is a line of the report; without one it goes to stderr.
  void warn(const std::string &message);

private:
  mlir::LogicalResult checkOutputs();
  mlir::LogicalResult runPhase(const std::string &phase);
  void reportImport();
  void reportGraph();
  mlir::LogicalResult reportStages();
  void startOver(const Replanning &how);
  mlir::LogicalResult runTrial(const Replanning &how, const char *last,
                               std::string &problem);
  int64_t fullestBytes();
  mlir::LogicalResult writeReport();
  mlir::LogicalResult snapshot(size_t phase);
  mlir::LogicalResult runPhases(size_t begin, size_t end);
  mlir::LogicalResult runHeld(const std::string &phase,
                              std::vector<mlir::Diagnostic> &held);
  // Whether to go back to the stage phase after this one, with another plan.
  bool goesBack(const std::string &phase, bool failed, bool writes);
  // Whether the stages can be planned once more, for less memory, since their
  // buffers took more than the planner thought.
  bool plansAgain();
  // Whether another plan of the same search is to be compiled: to be simulated
  // too, or to be taken after all (Confirm.cpp).
  bool triesAnother(bool failed);
  std::optional<double> simulatedStep();
  std::string confirmedLines() const;
  void compareParts();
  double deviceBytes(); // what a rank may use; 0: not limited
  mlir::LogicalResult closeFile(llvm::raw_fd_ostream &out,
                                const std::string &path);
  mlir::LogicalResult emitSchedule();
  mlir::LogicalResult emit(const std::string &path, const std::string &text);
  mlir::LogicalResult emitOnnx(const planning::Strategy &strategy);
  mlir::LogicalResult error(const std::string &message);

  const CompilerOptions &options;
  mlir::MLIRContext &context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  PhaseNotes notes;
  std::string report;
  std::vector<std::string> warnings;
  CompileTimes times;
  bool isBug = false;
  // Planning once more, for less memory: how, how often, and what the first
  // plan decided.
  Replanning again;
  int plannedAgain = 0;
  std::optional<planning::Strategy> decided;
  std::string reasons;    // in lines for the user
  std::string weightUses; // weights.json of the plan; may be empty
  // What the stage phase starts from, if plans may be tried.
  struct Unplanned {
    mlir::OwningOpRef<mlir::ModuleOp> module;
    std::string report;
    size_t warnings;
  };
  std::optional<Unplanned> unplanned;
  std::vector<planning::Finalist> finalists; // of the search, from the first on
  bool isConfirmed = false;                  // the plan to write is known
  bool isTrial = false;                      // nothing is written on the way
};

} // namespace merak
