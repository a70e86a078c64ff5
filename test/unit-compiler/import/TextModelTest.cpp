// Options, weights and errors, on models of a few nodes.
#include "test/unit-compiler/import/TextModel.h"

#include <gtest/gtest.h>

using namespace merak;

// loss = sum(x w)
static TextModel linear(const std::string &dims = "8,4") {
  TextModel model;
  model.input("x", dims).output("loss").splat("w", {4, 2}, 0.5);
  model.node("MatMul", {"x", "w"}, {"y"});
  model.node("ReduceSum", {"y"}, {"loss"}, TextModel::integer("keepdims", 0));
  return model;
}

TEST(TextModels, CarryTheirWeights) {
  ImportFixture fixture;
  Imported imported = fixture.import(linear());
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  train::ParameterOp w = imported.parameter("w");
  ASSERT_TRUE(w && w.getValue());
  EXPECT_TRUE(w.getTrainable());
  EXPECT_FALSE(w.getSource());
}

TEST(TextModels, SyntaxErrorsHaveAPlace) {
  ImportFixture fixture;
  Imported imported =
      fixture.import(fixture.write("model.textproto", "graph {\n  nod { }\n}"));
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("line 2")) << imported.allErrors();
}

TEST(Dimensions, AllUnboundOnesAreListed) {
  ImportFixture fixture;
  TextModel model = linear("batch,4");
  model.input("z", "batch,seq");
  Imported imported = fixture.import(model);
  EXPECT_FALSE(imported.ok());
  ASSERT_EQ(imported.errors.size(), 1u);
  EXPECT_TRUE(imported.says("x[0] 'batch', z[0] 'batch', z[1] 'seq'"))
      << imported.allErrors();
}

TEST(Dimensions, OneInputBindsTheSymbolOfAnother) {
  ImportFixture fixture;
  TextModel model = linear("batch,4");
  model.input("z", "batch,seq");
  ImportOptions options;
  options.shapes["z"] = {16, 5};
  Imported imported = fixture.import(model, options);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.report.globalBatch, 16);
}

TEST(Dimensions, DisagreementIsAnError) {
  ImportFixture fixture;
  ImportOptions options;
  options.globalBatch = 16;
  Imported imported = fixture.import(linear("8,4"), options);
  EXPECT_TRUE(imported.says("input 'x' dimension 0: expected size 8 as in the "
                            "model, found 16 from --global-batch"))
      << imported.allErrors();
  ImportOptions other;
  other.shapes["nobody"] = {8, 4};
  EXPECT_TRUE(fixture.import(linear(), other).says("'nobody'"));
}

TEST(Loss, MustBeClear) {
  ImportFixture fixture;
  TextModel model = linear();
  model.output("other").node("ReduceMax", {"y"}, {"other"},
                             TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  EXPECT_TRUE(imported.says("found 2 among 'loss', 'other'"))
      << imported.allErrors();
  ImportOptions options;
  options.loss = "loss";
  imported = fixture.import(model, options);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.report.unreached, 1u);
  EXPECT_EQ(imported.report.unusedOutputs, std::vector<std::string>{"other"});
  options.loss = "nothing";
  EXPECT_TRUE(fixture.import(model, options).says("found 'nothing'"));
}

TEST(Loss, NotNeededWithoutTraining) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,4").output("y", "8,2").splat("w", {4, 2}, 0.5);
  model.node("MatMul", {"x", "w"}, {"y"});
  EXPECT_FALSE(fixture.import(model).ok());
  ImportOptions options;
  options.train = false;
  Imported imported = fixture.import(model, options);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_FALSE(imported.parameter("w").getTrainable());
}

TEST(Ops, AllUnsupportedOnesAreListed) {
  ImportFixture fixture;
  TextModel model = linear();
  model.output("a", "8,4").output("b", "8,4");
  model.node("TfIdfVectorizer", {"x"}, {"a"}, "", "/drop/one");
  model.node("Add", {"a", "x"}, {"sum"});
  model.node("Multinomial", {"sum"}, {"b"}, "", "/drop/two");
  ImportOptions options;
  options.train = false;
  Imported imported = fixture.import(model, options);
  EXPECT_FALSE(imported.ok());
  ASSERT_EQ(imported.errors.size(), 2u) << imported.allErrors();
  EXPECT_TRUE(
      imported.says("model.textproto: /drop/one: TfIdfVectorizer (opset 17): "
                    "unsupported op"));
  EXPECT_TRUE(imported.says("/drop/two: Multinomial"));
}

TEST(Ops, AllTypeErrorsAreListed) {
  ImportFixture fixture;
  TextModel model = linear();
  model.output("a").output("b").splat("u", {3, 2}, 1).splat("v", {5}, 1);
  model.node("MatMul", {"x", "u"}, {"a"});
  model.node("Add", {"x", "v"}, {"b"});
  ImportOptions options;
  options.train = false;
  Imported imported = fixture.import(model, options);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("a_node: MatMul (opset 17): expected equal inner"))
      << imported.allErrors();
  EXPECT_TRUE(imported.says("b_node: Add (opset 17): expected shapes that "
                            "broadcast, found f32[8,4] and f32[5]"));
}

TEST(Ops, InputsMustExist) {
  ImportFixture fixture;
  TextModel model = linear();
  model.output("a").node("Relu", {"nowhere"}, {"a"});
  ImportOptions options;
  options.train = false;
  EXPECT_TRUE(fixture.import(model, options)
                  .says("input 'nowhere' is made by no earlier node"));
}

TEST(External, AbsentFilesAreNoError) {
  ImportFixture fixture;
  TextModel model = linear();
  model.external("u", {4, 2}, "weights/u.bin");
  model.output("other").node("MatMul", {"x", "u"}, {"other"});
  ImportOptions options;
  options.train = false;
  Imported imported = fixture.import(model, options);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  ASSERT_TRUE(imported.parameter("u").getSource());
  EXPECT_EQ(imported.parameter("u").getSource()->getPath(), "weights/u.bin");
  EXPECT_EQ(imported.report.absentFiles,
            std::vector<std::string>{"weights/u.bin"});
  // There, but too short.
  fixture.write("weights/u.bin", std::string(31, 'x'));
  EXPECT_TRUE(fixture.import(model, options).says("expected 32 bytes at 0"));
  fixture.write("weights/u.bin", std::string(32, 'x'));
  imported = fixture.import(model, options);
  EXPECT_TRUE(imported.ok());
  EXPECT_TRUE(imported.report.absentFiles.empty());
}

TEST(External, PathsStayBelowTheModel) {
  ImportFixture fixture;
  fixture.write("real.bin", std::string(32, 'x'));
  std::filesystem::create_symlink(fixture.folder / "real.bin",
                                  fixture.folder / "link.bin");
  TextModel model = linear();
  model.external("a", {4, 2}, "/etc/passwd");
  model.external("b", {4, 2}, "../secret");
  model.external("c", {4, 2}, "link.bin");
  Imported imported = fixture.import(model);
  EXPECT_FALSE(imported.ok());
  EXPECT_EQ(imported.errors.size(), 3u) << imported.allErrors();
  EXPECT_TRUE(imported.says("'a': expected a relative path"));
  EXPECT_TRUE(imported.says("'b': expected external data below"));
  EXPECT_TRUE(imported.says("'c': expected external data that is no link"));
}

TEST(Freeze, ByGlob) {
  ImportFixture fixture;
  TextModel model = linear();
  model.splat("emb.table", {4}, 0.5);
  model.node("Mul", {"x", "emb.table"}, {"z"});
  model.node("MatMul", {"z", "w"}, {"unused"});
  ImportOptions options;
  options.freeze = {"w"};
  EXPECT_TRUE(
      fixture.import(model, options).says("expected parameters to train"));
  options.freeze = {"emb.*", "typo*"};
  EXPECT_TRUE(fixture.import(model, options).says("'typo*'"));
}

// Whatever their names are: no gradient goes to the tables of a rotation.
TEST(Freeze, TablesOfRotations) {
  ImportFixture fixture;
  TextModel model(23);
  model.input("x", "8,2,3,4").output("loss").splat("w", {4}, 0.5);
  model.splat("cos.weight", {8, 3, 2}, 0.6).splat("sin.weight", {8, 3, 2}, 0.8);
  model.node("Mul", {"x", "w"}, {"y"});
  model.node("RotaryEmbedding", {"y", "cos.weight", "sin.weight"}, {"z"});
  model.node("ReduceSum", {"z"}, {"loss"}, TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  ASSERT_EQ(imported.report.trained.size(), 1u);
  EXPECT_EQ(imported.report.trained[0].name, "w");
  EXPECT_EQ(imported.report.frozen.size(), 2u);
}

// What TorchScript writes in evaluation mode: equal norms behind Identity.
TEST(Unmerge, VectorsBehindIdentity) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,4").output("loss");
  model.splat("a.weight", {4}, 1).splat("a.bias", {4}, 0);
  model.node("Identity", {"a.weight"}, {"b.weight"});
  model.node("Identity", {"a.bias"}, {"b.bias"});
  model.node("LayerNormalization", {"x", "a.weight", "a.bias"}, {"y"});
  model.node("LayerNormalization", {"y", "b.weight", "b.bias"}, {"z"});
  model.node("ReduceSum", {"z"}, {"loss"}, TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.report.trained.size(), 4u);
  EXPECT_TRUE(imported.parameter("b.weight"));
  EXPECT_EQ(imported.report.unmerged.size(), 2u);
  ImportOptions options;
  options.keepShared = true;
  imported = fixture.import(model, options);
  EXPECT_EQ(imported.report.trained.size(), 2u);
  EXPECT_FALSE(imported.parameter("b.weight"));
}

// One module that is used twice is one module.
TEST(Unmerge, NotWithinAModule) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,4").output("loss");
  model.splat("encoder.ln.weight", {4}, 1).splat("encoder.ln.bias", {4}, 0);
  for (auto [from, to, node] :
       {std::tuple("x", "y", "/encoder/ln/LayerNormalization"),
        std::tuple("y", "z", "/encoder/ln_1/LayerNormalization"),
        std::tuple("z", "a", "/encoder/ln_2/LayerNormalization")})
    if (std::string(node) != "/encoder/ln_1/LayerNormalization")
      model.node("LayerNormalization",
                 {from, "encoder.ln.weight", "encoder.ln.bias"}, {to}, "",
                 node);
    else
      model.node("Relu", {from}, {to});
  model.node("ReduceSum", {"a"}, {"loss"}, TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.report.trained.size(), 2u);
  EXPECT_TRUE(imported.report.unmerged.empty());
}

// The same without Identity, which other tools remove.
TEST(Unmerge, VectorsSharedByNorms) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,4").output("loss");
  model.splat("h.0.ln.weight", {4}, 1).splat("h.0.ln.bias", {4}, 0);
  model.node("LayerNormalization", {"x", "h.0.ln.weight", "h.0.ln.bias"}, {"y"},
             "", "/h.0/ln/LayerNormalization");
  model.node("LayerNormalization", {"y", "h.0.ln.weight", "h.0.ln.bias"}, {"z"},
             "", "/h.1/ln/LayerNormalization");
  model.node("ReduceSum", {"z"}, {"loss"}, TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_TRUE(imported.parameter("h.1.ln.weight"));
  EXPECT_TRUE(imported.parameter("h.1.ln.bias"));
}

// A mask built by shape arithmetic folds, and is recognised as causal.
TEST(Folding, ComputedCausalMask) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,6,4").output("loss").splat("w", {4, 4}, 0.5);
  model.weight("one", {}, "int64_data: 1", 7);
  model.weight("low", {}, "float_data: -inf");
  model.weight("shape", {2}, "int64_data: 6 int64_data: 6", 7);
  model.node("MatMul", {"x", "w"}, {"q"});
  model.node("Transpose", {"q"}, {"k"},
             "attribute { name: \"perm\" type: INTS ints: 0 ints: 2 ints: 1 }");
  model.node("MatMul", {"q", "k"}, {"s"});
  model.node(
      "ConstantOfShape", {"shape"}, {"ones"},
      "attribute { name: \"value\" type: TENSOR t { data_type: 1 dims: 1 "
      "float_data: 1 } }");
  model.node("Trilu", {"ones", "one"}, {"upper"},
             TextModel::integer("upper", 1));
  model.node("Cast", {"upper"}, {"hidden"}, TextModel::integer("to", 9));
  model.node("Where", {"hidden", "low", "s"}, {"m"});
  model.node("Softmax", {"m"}, {"p"});
  model.node("MatMul", {"p", "q"}, {"o"});
  model.node("ReduceSum", {"o"}, {"loss"}, TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  int found = 0;
  imported.module->walk([&](train::AttentionOp op) {
    ++found;
    EXPECT_TRUE(op.getCausal());
    EXPECT_FALSE(op.getMask());
  });
  EXPECT_EQ(found, 1);
}

// Sizes that depend on data name the node that asks for them.
TEST(Folding, DataDependentShape) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,4").input("n", "2", 7).output("y");
  model.node("Reshape", {"x", "n"}, {"y"}, "", "/view");
  ImportOptions options;
  options.train = false;
  EXPECT_TRUE(fixture.import(model, options)
                  .says("/view: Reshape (opset 17): expected constant shape"));
}

// A folded table that repeats along the batch keeps one copy.
TEST(Folding, RepeatedTableIsExpanded) {
  ImportFixture fixture;
  TextModel model;
  model.input("x", "8,4").output("loss").splat("w", {4}, 0.5);
  model.weight("row", {1, 4},
               "int64_data: 3 int64_data: 1 int64_data: 2 int64_data: 0", 7);
  model.weight("shape", {2}, "int64_data: 8 int64_data: 4", 7);
  model.node("Expand", {"row", "shape"}, {"rows"});
  model.node("Cast", {"rows"}, {"table"}, TextModel::integer("to", 1));
  model.node("Mul", {"x", "w"}, {"z"});
  model.node("Add", {"z", "table"}, {"y"});
  model.node("ReduceSum", {"y"}, {"loss"}, TextModel::integer("keepdims", 0));
  Imported imported = fixture.import(model);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  imported.module->walk([&](train::ConstantOp op) {
    auto type = llvm::cast<mlir::RankedTensorType>(op.getType());
    EXPECT_TRUE(type.getRank() == 0 || type.getDimSize(0) == 1);
  });
}
