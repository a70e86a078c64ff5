// The evaluation of Merak, simulated: iteration times of the best plans that
// different systems can make of the same models on the same cluster. What each
// system may choose from is a Way; all are priced by one cost model.
//
//   merak-table --cluster=FILE --global-batch=N MODEL.onnx...
//
// docs/MerakTable.md states the assumptions and holds the table.
#include "compiler/Import/Importer.h"
#include "compiler/Pipeline/Registration.h"
#include "passes/Graph/Passes.h"
#include "passes/Planning/PlanSearch.h"
#include "passes/Staging/PlanningGraph.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include <fmt/format.h>
#include <map>
#include <memory>
#include <tuple>

using namespace mlir;
using namespace merak;
using planning::PlanCandidate;
using planning::StageCost;
using planning::StageModel;
using planning::Way;

static llvm::cl::opt<std::string> clusterFile("cluster", llvm::cl::Required,
                                              llvm::cl::desc("cluster.json"));
static llvm::cl::opt<int64_t> globalBatch("global-batch", llvm::cl::init(256),
                                          llvm::cl::desc("samples a step"));
static llvm::cl::opt<bool>
    recomputeAll("recompute-all",
                 llvm::cl::desc("every system recomputes all it can"));
static llvm::cl::opt<bool>
    fused("fused",
          llvm::cl::desc("fused attention and elementwise kernels, which "
                         "merakc has; else one kernel an operation, as in "
                         "2022"));
static llvm::cl::opt<int64_t>
    customTp("custom-tp", llvm::cl::init(0),
             llvm::cl::desc("the systems of 2022 divide every layer over so "
                            "many devices, as was the custom; merakc's auto "
                            "still chooses (0: all choose)"));
static llvm::cl::list<std::string> models(llvm::cl::Positional,
                                          llvm::cl::OneOrMore,
                                          llvm::cl::desc("MODEL.onnx..."));

namespace {

// Cuts so that the most parameters of a stage are as few as possible.
Result<std::vector<int>> fewestParameters(const planning::StageModel &model,
                                          int parts) {
  const std::vector<int> &at = model.shards();
  if (int(at.size()) - 1 < parts)
    return planning::equalLayers(model, parts); // says why not
  std::vector<double> weights;
  for (size_t i = 0; i + 1 < at.size(); ++i)
    weights.push_back(model.parameterBytes(at[i], at[i + 1]));
  std::vector<int> begin;
  for (int cut : planning::balance(weights, parts))
    begin.push_back(at[cut]);
  return begin;
}

// What a stage costs where activations are recomputed shard by shard during the
// backward, each from what it keeps, instead of a stage at once; and, if the
// optimizer's state is sharded over replicas, where each updates its share.
class Shardwise {
public:
  explicit Shardwise(bool shardsState) : shardsState(shardsState) {}

  const StageCost &operator()(const StageModel &model,
                              const planning::PipelineShape &shape, int begin,
                              int end, planning::Marks marks) {
    const int64_t replicas = shardsState ? shape.reduce.replicas : 1;
    auto [it, isNew] = known.try_emplace(
        {&model, replicas, begin, end, marks.level, marks.until});
    if (isNew) {
      it->second = price(model, begin, end, marks);
      it->second.stateBytes /= double(replicas);
      it->second.times.U /= double(replicas);
    }
    return it->second;
  }

private:
  static StageCost price(const StageModel &model, int begin, int end,
                         planning::Marks marks) {
    StageCost out = model.cost(begin, end, marks);
    out.keptBytes = out.againBytes = out.workspace = out.times.R = 0;
    const std::vector<int> &at = model.shards();
    for (size_t k = 0; k + 1 < at.size(); ++k) {
      int from = std::max(begin, at[k]), to = std::min(end, at[k + 1]);
      if (from >= to)
        continue;
      StageModel::Kept shard = model.kept(from, to, marks);
      out.keptBytes += shard.keptBytes;
      out.againBytes = std::max(out.againBytes, shard.againBytes);
      out.workspace = std::max(out.workspace, shard.workspace);
      out.times.R += shard.seconds;
    }
    out.held = {};
    out.held.at(planning::Life::FW) = out.keptBytes;
    out.held.at(planning::Life::RW) = out.againBytes;
    out.arriving.clear();
    // What arrives and leaves, one microbatch each way.
    out.workspace += model.forwardBytes(begin) + model.forwardBytes(end) +
                     model.gradientBytes(begin) + model.gradientBytes(end);
    return out;
  }

  using Key = std::tuple<const StageModel *, int64_t, int, int, int, int>;
  bool shardsState;
  std::map<Key, StageCost> known;
};

// A function object that a Way may copy.
planning::StagePricer shardwise(bool shardsState) {
  auto pricer = std::make_shared<Shardwise>(shardsState);
  return
      [pricer](const StageModel &model, const planning::PipelineShape &shape,
               int begin, int end, planning::Marks marks) -> const StageCost & {
        return (*pricer)(model, shape, begin, end, marks);
      };
}

Way megatron() {
  Way way;
  way.name = "Megatron-LM style";
  way.schedules = {"1f1b"};
  way.recompute = {"none", "full"};
  way.cutters = {planning::equalLayers};
  way.price = shardwise(false);
  return way;
}

// Balanced by parameters, optimizer state sharded over replicas.
Way deepspeed() {
  Way way = megatron();
  way.name = "DeepSpeed style";
  way.cutters = {fewestParameters};
  way.price = shardwise(true);
  return way;
}

// Its schedules, shares of recomputation by its rule, overlap at level 3, and
// either of the partitions above.
Way merak() {
  Way way;
  way.name = "Merak's techniques";
  way.schedules = {"1f1b", "early", "last", "scp"};
  way.recompute = {"none", "0.2", "0.4", "0.6", "0.8", "full"};
  way.cutters = {planning::equalLayers, fewestParameters};
  way.overlap = {0, 3};
  return way;
}

Way automatic() {
  Way way = planning::ownWay({});
  way.name = "merakc auto";
  way.overlap = {0, 3};
  return way;
}

// The way, and the way without one of its techniques.
class Ablations {
public:
  explicit Ablations(const Way &way) : all{way} {}
  template <typename Change>
  Ablations &without(const char *name, Change &&change) {
    Way way = all.front();
    way.name = name;
    change(way);
    all.push_back(way);
    return *this;
  }
  std::vector<Way> all;
};

// The baselines come first. With --recompute-all nobody may keep activations
// but where a schedule or Merak's rule says so.
std::vector<Way> waysOf2022() {
  Ablations techniques(merak());
  techniques.without("- its schedules",
                     [](Way &way) { way.schedules = {"1f1b"}; });
  if (!recomputeAll)
    techniques.without("- stage-aware recomputation", [](Way &way) {
      way.recompute = {"none", "full"};
    });
  techniques.without("- overlap", [](Way &way) { way.overlap = {0}; });
  std::vector<Way> all = {megatron(), deepspeed()};
  all.insert(all.end(), techniques.all.begin(), techniques.all.end());
  if (recomputeAll)
    for (Way &way : all)
      way.recompute = {"full"};
  return all;
}

std::vector<Way> waysOfMerakc() {
  return Ablations(automatic())
      .without("- schedules but 1F1B",
               [](Way &way) {
                 way.schedules = {"1f1b"};
                 way.otherChunks.clear();
                 way.lists = false;
               })
      .without("- list schedules", [](Way &way) { way.lists = false; })
      .without("- cuts by simulated time",
               [](Way &way) { way.cutters = {planning::equalLayers}; })
      .without("- recomputation by op",
               [](Way &way) {
                 way.recompute = {"none", "full"};
                 way.otherRecompute.clear();
               })
      .without("- overlap", [](Way &way) { way.overlap = {0}; })
      .all;
}

// The import's passes and autodiff. Without --fused softmax(q k^T) v stays
// written out.
FailureOr<OpPassManager> graphPasses() {
  OpPassManager all("builtin.module");
  buildGraphImportPipeline(all);
  all.addPass(createDifferentiate());
  std::string text;
  llvm::raw_string_ostream out(text);
  all.printAsTextualPipeline(out);
  const std::string attention = "raise-attention,";
  if (size_t at = text.find(attention); !fused && at != std::string::npos)
    text.erase(at, attention.size());
  return parsePassPipeline(text);
}

LogicalResult evaluate(const std::string &path,
                       const costmodel::Cluster &cluster,
                       MLIRContext &context) {
  ImportOptions import;
  import.globalBatch = globalBatch;
  FailureOr<OwningOpRef<ModuleOp>> module =
      importOnnx(path, import, context, nullptr);
  if (failed(module))
    return failure();
  FailureOr<OpPassManager> passes = graphPasses();
  if (failed(passes))
    return failure();
  PassManager manager(&context);
  static_cast<OpPassManager &>(manager) = std::move(*passes);
  if (failed(manager.run(**module)))
    return failure();
  PlanningGraph step =
      buildPlanningGraph((*module)->lookupSymbol<func::FuncOp>("step"));
  planning::Classes classes = planning::unify(step.graph);
  planning::SearchInput input;
  input.graph = &step.graph;
  input.classes = &classes;
  input.batched = step.batched;
  input.cluster = cluster;
  input.globalBatch = globalBatch;
  input.fuse = fused;
  input.memoryBytes = static_cast<double>(cluster.device().memoryBytes);
  input.reduction.bucketBytes = 0; // as the table was made
  planning::SearchInput customary = input;
  if (customTp > 0)
    customary.pinned.mesh["tp"] = customTp;
  double bytes = 0;
  for (const planning::GraphTensor &tensor : step.graph.tensors)
    bytes += tensor.parameter ? double(tensor.elements()) : 0;
  llvm::outs() << fmt::format(
      "\n{}: {:.2f} billion parameters, {} kernels\n\n"
      "| | seconds | baseline / it | plan | idle | collectives | MiB |\n"
      "|---|---|---|---|---|---|---|\n",
      llvm::sys::path::stem(path).str(), bytes / 1e9,
      fused ? "fused" : "separate");
  double baseline = 0;
  auto print = [&](planning::PlanSearch &search, const Way &way) {
    std::vector<PlanCandidate> found = search.search(way, 12);
    if (found.empty() || !found.front().fits()) {
      llvm::outs() << "| " << way.name << " | - | - | nothing fits | | | |\n";
      return;
    }
    const PlanCandidate &best = found.front();
    const planning::PipelineCost &cost = best.plan.cost;
    bool isBaseline =
        way.name == megatron().name || way.name == deepspeed().name;
    if (isBaseline && (baseline == 0 || cost.seconds < baseline))
      baseline = cost.seconds;
    std::string gain = isBaseline || baseline == 0
                           ? ""
                           : fmt::format("{:.2f}", baseline / cost.seconds);
    double memory = 0;
    for (double held : cost.memory)
      memory = std::max(memory, held);
    llvm::outs() << fmt::format(
        "| {} | {:.3f} | {} | {}, {}, recompute {}, overlap {} | {:.1f} % | "
        "{:.3f} s | {:.0f} |\n",
        way.name, cost.seconds, gain, best.degrees.str(),
        best.plan.schedule.name, best.recompute, best.overlap,
        100 * cost.bubble(), cost.exposedSeconds, memory / 1048576);
    llvm::outs().flush();
  };
  planning::PlanSearch of2022(customary), own(input);
  for (const Way &way : waysOf2022())
    print(of2022, way);
  if (!recomputeAll)
    for (const Way &way : waysOfMerakc())
      print(own, way);
  return success();
}

} // namespace

int main(int argc, char **argv) {
  llvm::cl::ParseCommandLineOptions(argc, argv,
                                    "the evaluation of Merak, simulated\n");
  Result<costmodel::Cluster> cluster = costmodel::readCluster(clusterFile);
  if (!cluster.ok()) {
    llvm::errs() << cluster.status().str() << "\n";
    return 1;
  }
  registerAllPasses();
  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  llvm::outs() << fmt::format("{}: {} devices, {} a node; global batch {}\n",
                              cluster->name, cluster->count, cluster->perNode,
                              int64_t(globalBatch));
  for (const std::string &path : models)
    if (failed(evaluate(path, *cluster, context)))
      return 1;
  return 0;
}
