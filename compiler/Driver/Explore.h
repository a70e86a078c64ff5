// Questions about more than one plan: --frontier, --pick and the objectives
// besides the least time. Every number of devices is searched for all plans
// worth having; each is compiled up to its buffers and simulated, no kernel is
// compiled and nothing written. What remains after that is the answer.
#pragma once

#include "compiler/Driver/Phases.h"
#include "passes/Planning/PlanFrontier.h"

namespace merak {

bool asksQuestion(const CompilerOptions &options);

class Exploration {
public:
  // Problems are diagnostics of the context.
  Exploration(Compilation &compilation, const CompilerOptions &options,
              mlir::MLIRContext &context)
      : compilation(compilation), options(options), context(context) {}

  // Answers, and compiles the plan that was asked for, if one was.
  mlir::LogicalResult run();
  // The answer in lines for the user.
  const std::string &getReport() const { return report; }

private:
  mlir::LogicalResult error(const std::string &message);
  mlir::FailureOr<costmodel::Cluster> machine();
  std::string question();
  bool readKnown();
  mlir::LogicalResult explore(const std::vector<int64_t> &counts);
  planning::FrontierCurve curve(int64_t devices);
  mlir::LogicalResult write();
  void describe();
  mlir::LogicalResult compile(const std::string &pick);
  mlir::LogicalResult fewestDevices();

  Compilation &compilation;
  const CompilerOptions &options;
  mlir::MLIRContext &context;
  planning::PlanFrontier frontier;
  std::string report;
};

} // namespace merak
