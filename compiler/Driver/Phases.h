// The phases of the compiler: each takes the module from one to the next, is
// closed by a check and leaves a snapshot.
#pragma once

#include "compiler/Driver/Options.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Pass/Pass.h"
#include "passes/CostModel/Cluster.h"
#include "passes/Planning/Schedule.h"
#include "runtime/report/Decisions.h"

namespace merak {

struct ImportOptions;
// What the command line says about the model.
ImportOptions importOptions(const CompilerOptions &options);

class Compilation {
public:
  Compilation(const CompilerOptions &options, mlir::MLIRContext &context)
      : options(options), context(context), optimizer(options.optimizer) {}

  // Runs all phases up to options.toPhase. Problems are diagnostics of the
  // context.
  mlir::LogicalResult run();
  mlir::ModuleOp getModule() { return module.get(); }
  // After a failure: whether it is the compiler's own fault.
  bool isOurFault() const { return isBug; }
  // What was decided, in lines for the user.
  const std::string &getReport() const { return report; }
  // A warning is a line of the report; without one it goes to stderr.
  void warn(const std::string &message);

private:
  mlir::LogicalResult load(); // the model, or IR with --from
  mlir::LogicalResult graph();
  mlir::LogicalResult stage();
  mlir::LogicalResult shard();
  mlir::LogicalResult schedule();
  mlir::LogicalResult memory();
  mlir::LogicalResult plan();
  mlir::LogicalResult writeFiles();
  mlir::LogicalResult writeReport();
  mlir::LogicalResult snapshot(size_t phase);
  mlir::LogicalResult runPhases(size_t begin, size_t end);
  // Whether the stages can be planned once more, for less memory, since their
  // buffers took more than the planner thought.
  bool plansAgain();
  double deviceBytes(); // what a rank may use; 0: not limited
  mlir::LogicalResult verifyWith(std::unique_ptr<mlir::Pass> pass);
  mlir::FailureOr<planning::Schedule> readSchedule(const std::string &path);
  mlir::FailureOr<costmodel::Cluster> readClusterOption();
  mlir::LogicalResult emitOnnx(const planning::Strategy &strategy);
  mlir::LogicalResult error(const std::string &message);

  const CompilerOptions &options;
  mlir::MLIRContext &context;
  OptimizerOptions optimizer; // the options' or the model's
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::string report;
  bool isBug = false;
  std::optional<planning::Strategy> noted; // decisions the model brings
  double plannedBytes = 0; // a device's for the planner, less if again
  int plannedAgain = 0;
  // Of the first plan, kept when planning again: a search for all degrees takes
  // long for large models.
  std::optional<planning::Strategy> decided;
  bool keepsDegrees = false;
  std::string again;            // why, in lines for the user
  std::string weightUses;       // weights.json of the plan; may be empty
  report::Decisions considered; // by the planner
};

} // namespace merak
