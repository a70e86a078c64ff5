// The recorded training cases: imported, legalized and raised, they have the
// parameters and tables that PyTorch had, and one op per known pattern.
#define JSON_NOEXCEPTION
#include "test/unit-compiler/import/TextModel.h"

#include "mlir/IR/Verifier.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

using namespace merak;
using nlohmann::json;

static const std::string kModels = std::string(MERAK_TEST_DATA) + "/models/";

static ImportOptions batchOf8() {
  ImportOptions options;
  options.globalBatch = 8;
  return options;
}

class Models : public testing::TestWithParam<const char *> {};

TEST_P(Models, HaveTheirParameters) {
  std::string folder = kModels + GetParam();
  std::ifstream file(folder + "/expected.json");
  json expected = json::parse(file, nullptr, false);
  ASSERT_TRUE(expected.is_object());

  ImportFixture fixture;
  Imported imported = fixture.import(folder + "/model.onnx", batchOf8());
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_TRUE(succeeded(mlir::verify(*imported.module)));
  EXPECT_EQ(imported.histogram()["train.onnx_node"], 0);

  std::set<std::string> trained, wanted;
  for (const auto &decision : imported.report.trained)
    trained.insert(decision.name);
  for (const auto &param : expected["params"]) {
    std::string name = param["name"];
    wanted.insert(name);
    train::ParameterOp op = imported.parameter(name);
    ASSERT_TRUE(op) << name;
    EXPECT_TRUE(op.getTrainable()) << name;
    auto type = llvm::cast<mlir::RankedTensorType>(op.getType());
    std::vector<int64_t> shape(type.getShape().begin(), type.getShape().end());
    EXPECT_EQ(shape, param["shape"].get<std::vector<int64_t>>()) << name;
    ASSERT_TRUE(op.getSource()) << name;
    EXPECT_EQ(op.getSource()->getLength(), 4u * type.getNumElements()) << name;
  }
  EXPECT_EQ(trained, wanted);
  std::set<std::string> frozen, tables;
  for (const auto &decision : imported.report.frozen)
    frozen.insert(decision.name);
  for (const auto &name : expected["frozen_initializers"])
    tables.insert(name.get<std::string>());
  EXPECT_EQ(frozen, tables);
}

TEST_P(Models, AreOneGraphOfTheGlobalBatch) {
  ImportFixture fixture;
  Imported imported =
      fixture.import(kModels + GetParam() + "/model.onnx", batchOf8());
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  auto model = imported.module->lookupSymbol<mlir::func::FuncOp>("model");
  for (mlir::Type type : model.getArgumentTypes())
    EXPECT_EQ(llvm::cast<mlir::RankedTensorType>(type).getDimSize(0), 8);
  EXPECT_EQ(model.getNumResults(), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, Models,
                         testing::Values("mlp-mse", "mlp-ce", "gpt2-tiny",
                                         "gpt2-tiny-opset13",
                                         "gpt2-tiny-untied", "bert-tiny",
                                         "bert-tiny-opset14", "resnet-tiny",
                                         "resnet-plain-tiny", "vit-tiny"),
                         [](const auto &info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Written-out layer norms and shape arithmetic of a dynamic batch lead to the
// same graph as the whole ops of a static export.
TEST(ModelVariants, OpsetsGiveTheSameOps) {
  ImportFixture fixture;
  for (auto [one, other] : {std::pair("gpt2-tiny", "gpt2-tiny-opset13"),
                            std::pair("bert-tiny", "bert-tiny-opset14")}) {
    Imported a = fixture.import(kModels + one + "/model.onnx", batchOf8());
    Imported b = fixture.import(kModels + other + "/model.onnx", batchOf8());
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a.histogram(), b.histogram()) << one;
  }
}

TEST(ModelVariants, PatternsAreRaised) {
  ImportFixture fixture;
  struct Case {
    const char *name;
    int norms, gelus, attentions, einsums, softmaxes, transposes;
  };
  // Two per GPT layer and one at the end; four products a layer and the head.
  for (Case c : {Case{"gpt2-tiny", 5, 2, 2, 9, 0, 0},
                 Case{"gpt2-tiny-untied", 9, 4, 4, 17, 0, 0},
                 Case{"bert-tiny", 6, 3, 2, 14, 0, 0},
                 Case{"vit-tiny", 7, 3, 3, 13, 0, 1}}) {
    Imported imported =
        fixture.import(kModels + c.name + "/model.onnx", batchOf8());
    ASSERT_TRUE(imported.ok()) << imported.allErrors();
    auto ops = imported.histogram();
    EXPECT_EQ(ops["train.layer_norm"], c.norms) << c.name;
    EXPECT_EQ(ops["train.gelu"], c.gelus) << c.name;
    EXPECT_EQ(ops["train.attention"], c.attentions) << c.name;
    EXPECT_EQ(ops["train.einsum"], c.einsums) << c.name;
    EXPECT_EQ(ops["train.softmax"], c.softmaxes) << c.name;
    EXPECT_EQ(ops["train.transpose"], c.transposes) << c.name;
  }
}

// A tied weight is one symbol with a read of its own per use.
TEST(ModelVariants, TiedHeadIsOneSymbol) {
  ImportFixture fixture;
  Imported imported =
      fixture.import(kModels + "gpt2-tiny/model.onnx", batchOf8());
  ASSERT_TRUE(imported.ok());
  int reads = 0;
  imported.module->walk([&](train::ReadOp op) {
    EXPECT_TRUE(op->hasOneUse());
    reads += op.getParameter() == "transformer.wte.weight";
  });
  EXPECT_EQ(reads, 2);
  ASSERT_EQ(imported.report.tied.size(), 1u);
}

TEST(ModelVariants, ImportAloneKeepsCarriers) {
  ImportFixture fixture;
  Imported imported = fixture.import(kModels + "gpt2-tiny/model.onnx",
                                     batchOf8(), /*raise=*/false);
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported.histogram()["train.onnx_node"], 87);
  imported.module->walk([&](train::OnnxNodeOp op) {
    EXPECT_TRUE(llvm::isa<mlir::NameLoc>(op.getLoc()));
    for (mlir::Type type : op.getOutputs().getTypes())
      EXPECT_TRUE(llvm::isa<mlir::RankedTensorType>(type));
  });
}

// RMS norms, rotary embeddings and grouped heads, as exporters write them out.
TEST(ModelVariants, LlamaLayerIsRaised) {
  ImportFixture fixture;
  Imported imported = fixture.import(
      std::string(MERAK_TEST_DATA) + "/../import/Inputs/llama-layer.textproto",
      batchOf8());
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  auto ops = imported.histogram();
  EXPECT_EQ(ops["train.rms_norm"], 3);
  EXPECT_EQ(ops["train.rotary"], 2);
  EXPECT_EQ(ops["train.attention"], 1);
  EXPECT_EQ(ops["train.transpose"], 0);
  EXPECT_EQ(ops["train.expand"], 0);
  imported.module->walk([&](train::AttentionOp op) {
    EXPECT_TRUE(op.getCausal());
    EXPECT_FALSE(op.getMask());
    auto heads = [](mlir::Value value) {
      return llvm::cast<mlir::RankedTensorType>(value.getType()).getDimSize(2);
    };
    EXPECT_EQ(heads(op.getQ()), 4);
    EXPECT_EQ(heads(op.getK()), 2);
    EXPECT_EQ(heads(op.getV()), 2);
  });
  ASSERT_EQ(imported.report.frozen.size(), 1u);
  EXPECT_EQ(imported.report.frozen[0].name, "rotary.inv_freq");
}
