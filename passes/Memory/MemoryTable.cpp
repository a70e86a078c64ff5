#include "passes/Lowering/Passes.h"
#include "passes/Memory/Passes.h"

#include <fmt/format.h>

using namespace mlir;

namespace merak {

std::vector<std::pair<std::string, int64_t>>
memoryRow(plan::ProgramOp program) {
  std::vector<std::pair<std::string, int64_t>> row;
  auto bytes = program->getAttrOfType<DictionaryAttr>("plan.memory");
  for (uint32_t i = 0; i <= plan::getMaxEnumValForCategory(); ++i) {
    std::string name =
        plan::stringifyCategory(static_cast<plan::Category>(i)).str();
    auto value = bytes ? bytes.getAs<IntegerAttr>(name) : IntegerAttr();
    row.emplace_back(name, value ? value.getInt() : 0);
  }
  return row;
}

std::string memoryTable(ModuleOp module) {
  constexpr double kMiB = 1 << 20;
  std::string text = fmt::format("{:<14}", "MiB per rank");
  for (uint32_t i = 0; i <= plan::getMaxEnumValForCategory(); ++i)
    text += fmt::format(
        " {:>13}",
        plan::stringifyCategory(static_cast<plan::Category>(i)).str());
  text += fmt::format(" {:>13}\n", "total");
  for (auto program : module.getOps<plan::ProgramOp>()) {
    text += fmt::format("{:<14}", program.getSymName().str());
    for (auto &[name, bytes] : memoryRow(program))
      text += fmt::format(" {:>13.2f}", bytes / kMiB);
    text += fmt::format(" {:>13.2f}\n", program.getArenaBytes() / kMiB);
  }
  return text;
}

void buildMemoryPipeline(OpPassManager &manager,
                         const MemoryPipelineOptions &options) {
  manager.addPass(createLowerBatchStatistics());
  manager.addPass(createConvertToPlan({options.sends}));
  // Before offsets: what is merged needs no memory of its own.
  manager.addPass(createUpdateInPlace());
  // Before reductions move into the last microbatch: it may be the first.
  manager.addPass(createWriteSums());
  // Behind: sums of the step before are cleared when their step was taken.
  manager.addPass(createPlaceDelayed());
  // Before streams and offsets: copies of procedures have buffers of their own.
  if (options.overlapGradients) {
    manager.addPass(createOverlapGradients());
    PrefetchParametersOptions prefetch;
    prefetch.bytes = options.gradientBucket;
    manager.addPass(createPrefetchParameters(prefetch));
  }
  BucketGradientsOptions buckets;
  buckets.bytes = options.gradientBucket;
  manager.addPass(createBucketGradients(buckets));
  // Before offsets: what runs beside the computation lives longer.
  manager.addPass(createAssignStreams());
  AssignMemoryOptions assign;
  assign.memoryLimit = options.memoryLimit;
  manager.addPass(createAssignMemory(assign));
  manager.addPass(createVerifyMemory());
}

} // namespace merak
