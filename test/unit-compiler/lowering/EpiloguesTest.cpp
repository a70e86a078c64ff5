// What the search expects products to do besides is what lowering makes them
// do, on recorded models: both apply passes/Planning/Epilogues.h, to views of
// their own, which must not differ.
#include "passes/Lowering/Epilogues.h"

#include "compiler/Pipeline/Pipelines.h"
#include "compiler/Pipeline/Registration.h"
#include "dialects/Pipe/PipeDialect.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Lowering/JoinPads.h"
#include "passes/Planning/ActionFusion.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

using namespace mlir;
using namespace merak;

namespace {

// Each product that does something besides, by action: "MatMul_3: bias gelu
// +2".
using Found = std::map<std::string, std::multiset<std::string>>;

struct Setting {
  const char *model, *precision;
  int64_t tp;
  bool gpu;
};
std::ostream &operator<<(std::ostream &out, const Setting &of) {
  return out << of.model << " " << of.precision << " tp=" << of.tp
             << (of.gpu ? " gpu" : " cpu");
}

CompilerOptions optionsOf(const Setting &setting) {
  CompilerOptions options;
  options.input = std::string(MERAK_SOURCE_DIR "/test/data/models/") +
                  setting.model + "/model.onnx";
  options.mesh = {{"pp", 1}, {"dp", 1}, {"tp", setting.tp}};
  options.devices = setting.tp;
  options.globalBatch = 8;
  options.microbatch = 4;
  options.precision = setting.precision;
  options.recompute = "none";
  options.tpOverlap = "0";
  if (setting.gpu)
    options.cluster = MERAK_SOURCE_DIR "/samples/clusters/h200-8x8.json";
  return options;
}

std::string describe(const std::string &product,
                     planning::FusedProduct::Gelu gelu, bool bias,
                     bool argument, bool sums, bool source, size_t besides) {
  using Gelu = planning::FusedProduct::Gelu;
  return product + ":" + (bias ? " bias" : "") +
         (gelu == Gelu::Forward    ? " gelu"
          : gelu == Gelu::Gradient ? " slope"
                                   : "") +
         (argument ? " argument" : "") + (sums ? " sums" : "") +
         (source ? " source" : "") + " +" + std::to_string(besides);
}

constexpr const char *kLetters[planning::kLists] = {"F", "B", "W", "U", "P"};

Found expected(const Decision &decision, bool gpu) {
  const planning::Graph &graph = decision.step.graph;
  const std::vector<int> home(graph.ops.size(), -1);
  auto lists = planning::actionOps(graph, decision.outcome,
                                   decision.assignment.axisMap(), home, gpu);
  Found found;
  for (int list = 0; list < planning::kLists; ++list)
    for (const planning::FusedProduct &product :
         planning::fuseActions(graph, lists[list], planning::ListOf(list),
                               {.gpu = gpu})
             .products)
      found[kLetters[list]].insert(
          describe(lists[list].opOf(graph, product.op)->name, product.gelu,
                   product.bias >= 0, product.argument >= 0, product.sums >= 0,
                   product.source >= 0, product.ops.size()));
  return found;
}

Found lowered(ModuleOp module, bool gpu) {
  Found found;
  module.walk([&](pipe::ActionOp action) {
    Block &body = action.getBody().front();
    if (gpu)
      lowering::joinPads(body);
    std::vector<lowering::KernelGroup> groups =
        lowering::formKernelGroups(body, gpu);
    SmallVector<Operation *> unused;
    for (const lowering::Epilogue &of :
         lowering::takeEpilogues(body, groups, gpu, unused))
      found[std::string(1, letter(action.getKind()))].insert(
          describe(nodeName(of.product), of.gelu, !!of.bias, !!of.argument,
                   !!of.sums, !!of.source, of.ops.size()));
  });
  return found;
}

class Epilogues : public testing::TestWithParam<Setting> {};

TEST_P(Epilogues, AreWhatTheSearchExpected) {
  const CompilerOptions options = optionsOf(GetParam());
  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry);
  OwningOpRef<ModuleOp> module = ModuleOp::create(UnknownLoc::get(&context));
  PhaseNotes notes;
  for (const char *phase : {"import", "graph", "stage", "shard", "schedule"}) {
    PassManager manager(&context);
    buildPhasePipeline(phase, manager, options, &notes);
    ASSERT_TRUE(succeeded(manager.run(*module))) << phase;
  }
  ASSERT_TRUE(notes.decision);
  const bool gpu = GetParam().gpu;
  const Found planned = expected(*notes.decision, gpu);
  EXPECT_EQ(planned, lowered(*module, gpu));
  // On GPUs transformers have biases behind their products.
  const std::string model = GetParam().model;
  if (gpu && (model == "gpt2-tiny" || model == "bert-tiny"))
    EXPECT_FALSE(planned.empty());
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const char *model : {"gpt2-tiny", "bert-tiny", "mlp-mse", "resnet-tiny"})
    for (const char *precision : {"fp32", "bf16"})
      for (int64_t tp : {1, 2})
        for (bool gpu : {false, true})
          all.push_back({model, precision, tp, gpu});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Models, Epilogues, testing::ValuesIn(settings()));

} // namespace
