#include "compiler/Pipeline/Pipelines.h"

#include "compiler/Pipeline/Phases.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"
#include "onnx/Conversion/Passes.h"
#include "passes/Graph/Passes.h"
#include "passes/Lowering/Passes.h"
#include "passes/Memory/Passes.h"
#include "passes/Scheduling/Passes.h"
#include "passes/Sharding/Passes.h"
#include "passes/Staging/Passes.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/StringSaver.h"

#include <fmt/format.h>

using namespace mlir;
using namespace merak;

void merak::buildImportPipeline(OpPassManager &manager,
                                const CompilerOptions &options,
                                PhaseNotes *notes) {
  manager.addPass(createImportOnnx(options, notes));
}

void merak::buildGraphImportPipeline(OpPassManager &manager, bool dropout,
                                     bool train) {
  manager.addPass(createLegalizeOnnx({dropout, train}));
  // One form for the patterns; equal ops merged, since patterns compare values.
  manager.addPass(createCanonicalizeGraph());
  manager.addPass(createCSEPass());
  // Norms before activations: a norm's product must not look like a factor.
  manager.addPass(createRaiseNorms());
  manager.addPass(createRaiseActivations());
  manager.addPass(createRaiseCrossEntropy());
  // Rotary first: attention then sees its operands in their final layout.
  manager.addPass(createRaiseRotary());
  manager.addPass(createCanonicalizeGraph());
  manager.addPass(createRaiseAttention());
  manager.addPass(createCanonicalizeGraph());
  manager.addPass(createCSEPass());
  manager.addPass(createFinishGraph());
}

std::string merak::lowTypeOf(const std::string &precision) {
  return precision == "bf16" || precision == "fp8" ? "bf16"
         : precision == "fp16"                     ? "f16"
                                                   : "model";
}

void merak::buildGraphPipeline(OpPassManager &manager,
                               const CompilerOptions &options) {
  buildGraphImportPipeline(manager, options.train && options.dropout,
                           options.train);
  // Before gradients: they are then made in the types of what they belong to.
  manager.addPass(
      createLowerPrecision({lowTypeOf(options.precision), options.train}));
  if (options.precision == "fp8")
    manager.addPass(createRoundProducts());
  manager.addPass(createDifferentiate({options.train}));
  if (options.train && options.sparse != "off") {
    SparseUpdatesOptions sparse{
        options.sparse,         options.optimizer.restsWithoutGradient(),
        options.optimizerGiven, {},
        options.data,           options.delayedRows};
    for (const auto &[name, share] : options.touched)
      sparse.touched.push_back(fmt::format("{}={}", name, share));
    manager.addPass(createSparseUpdates(sparse));
  }
}

void merak::buildStagePipeline(OpPassManager &manager,
                               const CompilerOptions &options,
                               PhaseNotes *notes, const Replanning &again) {
  manager.addPass(createPlanStages(options, notes, again));
  manager.addPass(createVerifyStages());
}

void merak::buildShardPipeline(OpPassManager &manager,
                               const CompilerOptions &options) {
  manager.addPass(createLocalize());
  // Before submicrobatches: a fault of layouts is told once, not for both.
  manager.addPass(createVerifyShards());
  // Need local shapes; halves of a microbatch would have ids of their own.
  manager.addPass(createDelayRows());
  manager.addPass(createCoalesceSlices());
  // Needs local shapes: it prices what one rank does.
  manager.addPass(createSubPipeline());
  // Needs the ops of all submicrobatches, whose sums it leaves to a step.
  if (options.delayedGradients)
    manager.addPass(createDelayGradients({options.gradOverlap}));
  // Behind it: what is left to the next step is converted there.
  manager.addPass(createKeepCopies());
  // Values, actions and transfers may have been made anew.
  manager.addPass(createVerifyStages());
  manager.addPass(createVerifyShards());
}

void merak::buildSchedulePipeline(OpPassManager &manager) {
  manager.addPass(createAttachSchedule());
}

void merak::buildMemoryPipeline(OpPassManager &manager,
                                const CompilerOptions &options) {
  MemoryPipelineOptions memory;
  memory.memoryLimit = options.memoryLimit;
  memory.overlapGradients = options.gradOverlap;
  memory.gradientBucket = options.gradBucket.value_or(-1);
  memory.sends = options.sends;
  buildMemoryPipeline(manager, memory);
}

void merak::buildPhasePipeline(const std::string &phase, OpPassManager &manager,
                               const CompilerOptions &options,
                               PhaseNotes *notes, const Replanning &again) {
  if (phase == "import")
    buildImportPipeline(manager, options, notes);
  else if (phase == "graph")
    buildGraphPipeline(manager, options);
  else if (phase == "stage")
    buildStagePipeline(manager, options, notes, again);
  else if (phase == "shard")
    buildShardPipeline(manager, options);
  else if (phase == "schedule")
    buildSchedulePipeline(manager);
  else if (phase == "memory")
    buildMemoryPipeline(manager, options);
  else
    buildPlanPipeline(manager);
}

namespace {
struct PhaseArguments : PassPipelineOptions<PhaseArguments> {
  Option<std::string> options{*this, "options",
                              llvm::cl::desc("the command line of merakc"),
                              llvm::cl::init("")};
};
} // namespace

// As on merakc's command line; the model only matters for import.
static FailureOr<CompilerOptions>
parseArguments(StringRef text,
               function_ref<LogicalResult(const Twine &)> error) {
  PhaseArguments arguments;
  if (failed(arguments.parseFromString(text)))
    return failure();
  llvm::BumpPtrAllocator allocator;
  llvm::StringSaver saver(allocator);
  SmallVector<const char *> argv{"merak-opt"};
  llvm::cl::TokenizeGNUCommandLine(arguments.options, saver, argv);
  argv.append({"-o", "-"});
  ParsedOptions parsed =
      parseOptions(static_cast<int>(argv.size()), argv.data());
  if (parsed.options.input.empty() && parsed.exitCode) {
    argv.push_back("no-model");
    parsed = parseOptions(static_cast<int>(argv.size()), argv.data());
  }
  if (parsed.exitCode)
    return error(parsed.text);
  return parsed.options;
}

void merak::registerPhasePipelines() {
  for (const std::string &phase : phaseNames())
    registerPassPipeline(
        "phase-" + phase, "what merakc does from the phase before to " + phase,
        [phase](OpPassManager &manager, StringRef text,
                function_ref<LogicalResult(const Twine &)> error) {
          FailureOr<CompilerOptions> options = parseArguments(text, error);
          if (failed(options))
            return failure();
          buildPhasePipeline(phase, manager, *options);
          return success();
        },
        [](function_ref<void(const detail::PassOptions &)> handler) {
          handler(PhaseArguments());
        });
}
