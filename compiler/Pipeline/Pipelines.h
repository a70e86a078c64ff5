// The seven phases as pass pipelines: the whole of what the driver runs, and
// what `merak-opt` runs under the same options.
#pragma once

#include "compiler/Pipeline/Options.h"
#include "mlir/Pass/PassManager.h"
#include "onnx/Import/ImportReport.h"
#include "passes/Staging/Planner.h"

namespace merak {

struct ImportOptions;
// What the command line says about the model.
ImportOptions importOptions(const CompilerOptions &options);

// What phases know that the IR does not say, for the driver's report and files.
struct PhaseNotes {
  ImportReport imported;
  std::optional<Decision> decision;
  std::optional<double>
      simulated; // seconds of a step of the plan to be written
  // Where stages with meshes of their own were simulated too: the best plan of
  // one mesh, if there is any, and the best of theirs.
  struct Kinds {
    std::optional<double> uniform, parts;
  };
  std::optional<Kinds> parts;
  // The same of pipelines with shares of the microbatches, as `parts`.
  std::optional<Kinds> shares;
};

// How the stages are planned once more, see Compilation::plansAgain and
// Compilation::triesAnother.
struct Replanning {
  double memoryBytes = 0; // for the planner; 0: what a device has
  // Of the first plan, kept: a search for all degrees takes long.
  std::optional<planning::Strategy> degrees;
  // What was found under these, and which of it to take.
  std::optional<SearchResult> found;
  size_t take = 0;
  // For questions (compiler/Driver/Explore.h): on so many devices instead of
  // those that the options say; all plans worth having, at most so many,
  // instead of the fastest; this plan and no other.
  std::optional<int64_t> devices;
  size_t explores = 0;
  std::optional<planning::Strategy> picked;
};

// `notes` may be null and must outlive the manager's run.
void buildImportPipeline(mlir::OpPassManager &manager,
                         const CompilerOptions &options,
                         PhaseNotes *notes = nullptr);
void buildGraphPipeline(mlir::OpPassManager &manager,
                        const CompilerOptions &options);
void buildStagePipeline(mlir::OpPassManager &manager,
                        const CompilerOptions &options,
                        PhaseNotes *notes = nullptr,
                        const Replanning &again = {});
void buildShardPipeline(mlir::OpPassManager &manager,
                        const CompilerOptions &options);
void buildSchedulePipeline(mlir::OpPassManager &manager);
void buildMemoryPipeline(mlir::OpPassManager &manager,
                         const CompilerOptions &options);
// The last one, buildPlanPipeline, is that of passes/Lowering/Passes.h.

// The pipeline of a phase of phaseNames().
void buildPhasePipeline(const std::string &phase, mlir::OpPassManager &manager,
                        const CompilerOptions &options,
                        PhaseNotes *notes = nullptr,
                        const Replanning &again = {});

// Each phase by its name ("--phase-stage"); the pipeline option `options` holds
// the command line of merakc, e.g. --phase-stage="options='--mesh=pp=2'".
void registerPhasePipelines();

// The option `low` of lower-precision that --precision means.
std::string lowTypeOf(const std::string &precision);

// Carriers -> train ops -> one op for each known pattern. Input: what
// importOnnx makes. Output: forward ops only, ready to be differentiated.
// `dropout`: whether masks are drawn; `train`: whether batch norm takes the
// statistics of the batch.
void buildGraphImportPipeline(mlir::OpPassManager &manager, bool dropout = true,
                              bool train = true);

} // namespace merak
