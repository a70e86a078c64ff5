// The evaluation of Merak, simulated: iteration times of the best plans that
// different systems can make of the same models on the same cluster. What each
// system may choose from is a SearchPolicy; all are priced by one cost model.
//
//   merak-table --cluster=FILE --global-batch=N MODEL.onnx...
//
// docs/MerakTable.md states the assumptions and holds the table.
#include "compiler/Pipeline/Pipelines.h"
#include "compiler/Pipeline/Registration.h"
#include "onnx/Import/Importer.h"
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
using planning::SearchPolicy;
using planning::StageCost;
using planning::StageModel;

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
  const std::vector<int> &at = model.blockBounds();
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
    out.keptBytes = out.recomputedBytes = out.workspace = out.times.R = 0;
    const std::vector<int> &at = model.blockBounds();
    for (size_t k = 0; k + 1 < at.size(); ++k) {
      int from = std::max(begin, at[k]), to = std::min(end, at[k + 1]);
      if (from >= to)
        continue;
      StageModel::Kept shard = model.kept(from, to, marks);
      out.keptBytes += shard.keptBytes;
      out.recomputedBytes =
          std::max(out.recomputedBytes, shard.recomputedBytes);
      out.workspace = std::max(out.workspace, shard.workspace);
      out.times.R += shard.seconds;
    }
    out.held = {};
    out.held.at(planning::LiveKind::FW) = out.keptBytes;
    out.held.at(planning::LiveKind::RW) = out.recomputedBytes;
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

// A function object that a SearchPolicy may copy.
planning::StagePricer shardwise(bool shardsState) {
  auto pricer = std::make_shared<Shardwise>(shardsState);
  return
      [pricer](const StageModel &model, const planning::PipelineShape &shape,
               int begin, int end, planning::Marks marks) -> const StageCost & {
        return (*pricer)(model, shape, begin, end, marks);
      };
}

SearchPolicy megatron() {
  SearchPolicy policy;
  policy.name = "Megatron-LM style";
  policy.schedules = {"1f1b"};
  policy.recompute = {"none", "full"};
  policy.cutters = {planning::equalLayers};
  policy.price = shardwise(false);
  return policy;
}

// Balanced by parameters, optimizer state sharded over replicas.
SearchPolicy deepspeed() {
  SearchPolicy policy = megatron();
  policy.name = "DeepSpeed style";
  policy.cutters = {fewestParameters};
  policy.price = shardwise(true);
  return policy;
}

// Its schedules, shares of recomputation by its rule, overlap at level 3, and
// either of the partitions above.
SearchPolicy merak() {
  SearchPolicy policy;
  policy.name = "Merak's techniques";
  policy.schedules = {"1f1b", "early", "last", "scp"};
  policy.recompute = {"none", "0.2", "0.4", "0.6", "0.8", "full"};
  policy.cutters = {planning::equalLayers, fewestParameters};
  policy.overlap = {0, 3};
  return policy;
}

SearchPolicy automatic() {
  SearchPolicy policy = planning::ownPolicy({});
  policy.name = "merakc auto";
  policy.overlap = {0, 3};
  return policy;
}

// The policy, and the policy without one of its techniques.
class Ablations {
public:
  explicit Ablations(const SearchPolicy &policy) : all{policy} {}
  template <typename Change>
  Ablations &without(const char *name, Change &&change) {
    SearchPolicy policy = all.front();
    policy.name = name;
    change(policy);
    all.push_back(policy);
    return *this;
  }
  std::vector<SearchPolicy> all;
};

// The baselines come first. With --recompute-all nobody may keep activations
// but where a schedule or Merak's rule says so.
std::vector<SearchPolicy> waysOf2022() {
  Ablations techniques(merak());
  techniques.without("- its schedules",
                     [](SearchPolicy &policy) { policy.schedules = {"1f1b"}; });
  if (!recomputeAll)
    techniques.without("- stage-aware recomputation", [](SearchPolicy &policy) {
      policy.recompute = {"none", "full"};
    });
  techniques.without("- overlap",
                     [](SearchPolicy &policy) { policy.overlap = {0}; });
  std::vector<SearchPolicy> all = {megatron(), deepspeed()};
  all.insert(all.end(), techniques.all.begin(), techniques.all.end());
  if (recomputeAll)
    for (SearchPolicy &policy : all)
      policy.recompute = {"full"};
  return all;
}

std::vector<SearchPolicy> waysOfMerakc() {
  return Ablations(automatic())
      .without("- schedules but 1F1B",
               [](SearchPolicy &policy) {
                 policy.schedules = {"1f1b"};
                 policy.otherChunks.clear();
                 policy.lists = false;
               })
      .without("- list schedules",
               [](SearchPolicy &policy) { policy.lists = false; })
      .without("- cuts by simulated time",
               [](SearchPolicy &policy) {
                 policy.cutters = {planning::equalLayers};
               })
      .without("- recomputation by op",
               [](SearchPolicy &policy) {
                 policy.recompute = {"none", "full"};
                 policy.otherRecompute.clear();
               })
      .without("- overlap", [](SearchPolicy &policy) { policy.overlap = {0}; })
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

// One kernel an operation: each element-wise op gets a loop that no other has,
// so that no kernel can hold two of them (passes/Planning/FusionGroups.h).
// Nothing walks the loop, so the op's own kernel and its price stay.
void separateKernels(planning::Graph &graph) {
  int64_t unlike = int64_t(1) << 31; // no dimension is so large
  for (planning::GraphOp &op : graph.ops) {
    if (!op.loops || llvm::is_contained(op.loops->reduced, true))
      continue;
    op.loops->sizes.push_back(unlike++);
    op.loops->reduced.push_back(false);
  }
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
  if (!fused)
    separateKernels(step.graph);
  planning::Classes classes = planning::unify(step.graph);
  planning::SearchInput input;
  input.graph = &step.graph;
  input.classes = &classes;
  input.batched = step.batched;
  input.cluster = cluster;
  input.globalBatch = globalBatch;
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
  auto print = [&](planning::PlanSearch &search, const SearchPolicy &policy) {
    std::vector<PlanCandidate> found = search.search(policy, 12);
    if (found.empty() || !found.front().fits()) {
      llvm::outs() << "| " << policy.name
                   << " | - | - | nothing fits | | | |\n";
      return;
    }
    const PlanCandidate &best = found.front();
    const planning::PipelineCost &cost = best.plan.cost;
    bool isBaseline =
        policy.name == megatron().name || policy.name == deepspeed().name;
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
        policy.name, cost.seconds, gain, best.degrees.str(),
        best.plan.schedule.name, best.recompute, best.techniques.overlap,
        100 * cost.bubble(), cost.exposedSeconds, memory / 1048576);
    llvm::outs().flush();
  };
  planning::PlanSearch of2022(customary), own(input);
  for (const SearchPolicy &policy : waysOf2022())
    print(of2022, policy);
  if (!recomputeAll)
    for (const SearchPolicy &policy : waysOfMerakc())
      print(own, policy);
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
