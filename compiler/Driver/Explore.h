// Questions about more than one plan: --frontier, --pick, a limit of memory and
// the objectives besides the least time. Every number of devices is searched
// for all plans worth having; each is compiled up to its buffers and simulated,
// no kernel is compiled and nothing written. What remains after that is the
// answer.
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
  bool search(int64_t devices, size_t most, double limit, std::string &problem);
  void setDevices(Replanning &how, int64_t devices) const;
  Replanning planOf(int64_t devices, size_t take) const;
  std::optional<planning::FrontierPoint> tryPlan(int64_t devices, size_t take,
                                                 std::string &problem);
  mlir::LogicalResult explore(const std::vector<int64_t> &counts,
                              const costmodel::Cluster &cluster);
  planning::FrontierCurve curve(int64_t devices);
  mlir::LogicalResult fastestWithin(int64_t devices);
  mlir::LogicalResult write();
  void describe();
  mlir::LogicalResult compile(const std::string &pick);
  mlir::LogicalResult fewestDevices();

  Compilation &compilation;
  const CompilerOptions &options;
  mlir::MLIRContext &context;
  // By devices: what was found, and what became of each.
  struct Explored {
    SearchResult found;
    std::vector<planning::Finalist> tried;
  };
  std::map<int64_t, Explored> explored;
  planning::PlanFrontier frontier;
  std::string report;
};

} // namespace merak
