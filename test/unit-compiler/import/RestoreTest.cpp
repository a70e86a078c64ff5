// What the dynamo exporter's optimizer does to parameters is undone, or refused
// with the remedy; constants are not trained.
#include "NotedModel.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace merak;

namespace {

struct Restore : testing::Test {
  ImportFixture fixture;

  static std::vector<std::string> trained(const Imported &imported) {
    std::vector<std::string> names;
    for (const auto &decision : imported.report.trained)
      names.push_back(decision.name);
    std::sort(names.begin(), names.end());
    return names;
  }
  using Names = std::vector<std::string>;
};

TEST_F(Restore, ConstantsAreNotTrained) {
  NotedModel model({"w"}, {"prior"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2, 3});
  model.weight("prior", {4}, {0.5, 0.25}).weight("val_1", {4}, {3, 1, 4, 1});
  model.node("Mul", {"x", "w"}, "mul", "mul(%x, %p_w)");
  model.node("Mul", {"mul", "prior"}, "mul_1", "mul(%mul, %b)");
  model.node("Add", {"mul_1", "val_1"}, "add", "add(%mul_1, %full)");
  Imported imported = model.sum("add").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"w"});
  ASSERT_EQ(imported.report.frozen.size(), 2u);
  EXPECT_EQ(imported.report.frozen[0].reason,
            "a buffer of the exported program");
  EXPECT_EQ(imported.report.frozen[1].reason,
            "a constant of the exported program");
}

NotedModel norms(const std::string &second) {
  NotedModel model({"a.weight", "a.bias", "b.weight", "b.bias"});
  model.input("x", {8, 4});
  model.weight("a.weight", {4}, {1}).weight("a.bias", {4}, {0});
  model.node("LayerNormalization", {"x", "a.weight", "a.bias"}, "one",
             "layer_norm(%x, [4], %p_a_weight, %p_a_bias)");
  model.node("LayerNormalization", {"one", "a.weight", "a.bias"}, "two",
             "layer_norm(%one, [4]" + second + ")");
  model.sum("two");
  return model;
}

TEST_F(Restore, MergedParametersAreSeparated) {
  Imported imported = norms(", %p_b_weight, %p_b_bias").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported),
            (Names{"a.bias", "a.weight", "b.bias", "b.weight"}));
}

TEST_F(Restore, SharedModulesStayOne) {
  Imported imported = norms(", %p_a_weight, %p_a_bias").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"a.bias", "a.weight"}));
}

// A norm without scale and bias got vectors of ones and zeros, which are equal
// to another's.
TEST_F(Restore, ConstantsMergedWithParameters) {
  Imported imported = norms(", None, None").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"a.bias", "a.weight"}));
  EXPECT_EQ(imported.report.frozen.size(), 2u);
}

TEST_F(Restore, RemovedBiases) {
  NotedModel model({"l.weight", "l.bias"});
  model.input("x", {8, 4}).weight("l.weight", {4, 3}, {1, 2, 3, 4, 5});
  for (auto [from, to] : {std::pair("x", "one"), std::pair("x", "two")})
    model.node("Gemm", {from, "l.weight"}, to,
               "linear(%x, %p_l_weight, %p_l_bias)",
               "RemoveOptionalBiasFromGemm");
  model.node("Add", {"one", "two"}, "add", "add(%one, %two)");
  Imported imported = model.sum("add").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"l.bias", "l.weight"}));
  EXPECT_EQ(imported.parameter("l.bias").getType().getShape()[0], 3);
  EXPECT_EQ(imported.report.splitUses.size(), 2u);
}

NotedModel token(const std::vector<float> &values) {
  NotedModel model({"token"});
  model.input("x", {8, 1, 2}).weight("expand", {8, 1, 2}, values);
  model.folded("expand", "'token', 'val_1'");
  model.node("Mul", {"x", "expand"}, "mul", "mul(%x, %expand)");
  model.sum("mul");
  return model;
}

TEST_F(Restore, WhatWasExpandedToTheBatch) {
  Imported imported = token({3, 4}).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"token"});
  auto type = imported.parameter("token").getType();
  EXPECT_EQ(type.getShape(), (llvm::ArrayRef<int64_t>{1, 1, 2}));
  ASSERT_EQ(imported.report.foldedUses.size(), 1u);
  EXPECT_EQ(imported.report.foldedUses[0].initializer, "expand");
  EXPECT_TRUE(imported.report.warnings.empty());
  // Zeros do not show along what they were repeated.
  imported = token({0}).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.parameter("token").getType().getShape(),
            (llvm::ArrayRef<int64_t>{1, 1, 2}));
  EXPECT_EQ(imported.report.warnings.size(), 1u);
}

TEST_F(Restore, ArithmeticIsRefused) {
  NotedModel model({"g", "v"});
  model.input("x", {8, 4}).weight("mul_2", {4}, {1, 2, 3});
  model.folded("mul_2", "'div', 'g', 'linalg_vector_norm', 'v', 'val_1'");
  model.node("Mul", {"x", "mul_2"}, "mul_3", "mul(%x, %mul_2)");
  model.sum("mul_3");
  Imported imported = model.import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(
      imported.says("noted.onnx: mul_2: expected parameter 'g', 'v' of "
                    "the exported program, found 'mul_2' [4], which the "
                    "exporter computed from it (div, linalg_vector_norm, "
                    "mul)"))
      << imported.allErrors();
  EXPECT_TRUE(imported.says("(export with optimize=False)"));
  ImportOptions options;
  options.train = false;
  EXPECT_TRUE(model.import(fixture, options).ok());
}

// -exp(decay): the parameter is what gives the values again.
TEST_F(Restore, FunctionsOfOneParameterAreUndone) {
  NotedModel model({"decay"});
  model.input("x", {8, 2}).weight("neg", {2}, {-1, -std::exp(2.0f)});
  model.folded("neg", "'decay', 'exp'");
  model.node("Mul", {"x", "neg"}, "mul", "mul(%x, %neg)");
  Imported imported = model.sum("mul").import(fixture, {}, true);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"decay"});
  auto values = llvm::cast<mlir::DenseElementsAttr>(
      *imported.parameter("decay").getValue());
  EXPECT_FLOAT_EQ(values.getValues<float>()[0], 0);
  EXPECT_FLOAT_EQ(values.getValues<float>()[1], 2);
  EXPECT_EQ(imported.histogram()["train.exp"], 1);
  EXPECT_EQ(imported.report.foldedUses[0].functions, (Names{"Exp", "Neg"}));
}

TEST_F(Restore, MovedElementsAreTrained) {
  NotedModel model({"l.weight", "l.bias"});
  model.input("x", {8, 5, 4}).weight("l.bias", {3}, {1, 2});
  model.weight("val_5", {4, 3}, {1, 2, 3, 4, 5});
  model.folded("val_5", "'l.weight'");
  model.node("MatMul", {"x", "val_5"}, "val_6",
             "linear(%x, %p_l_weight, %p_l_bias)");
  model.node("Add", {"val_6", "l.bias"}, "linear",
             "linear(%x, %p_l_weight, %p_l_bias)");
  Imported imported = model.sum("linear").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"l.bias", "val_5"}));
  EXPECT_EQ(imported.report.moved, Names{"'l.weight' as 'val_5' [4,3]"});
}

// Of a tied table one copy was transposed: they are one parameter.
TEST_F(Restore, TransposedCopiesAreTied) {
  NotedModel model({"e.weight"});
  model.input("x", {8, 2});
  model.weight("e.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  model.weight("val_5", {2, 3}, {1, 3, 5, 2, 4, 6});
  model.folded("val_5", "'e.weight'");
  model.node("MatMul", {"x", "val_5"}, "linear", "linear(%x, %p_e_weight)");
  model.node("MatMul", {"linear", "e.weight"}, "matmul",
             "matmul(%linear, %p_e_weight)");
  Imported imported = model.sum("matmul").import(fixture, {}, true);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"e.weight"});
}

TEST_F(Restore, FusedBatchNormIsRefused) {
  NotedModel model({"c.weight", "n.weight", "n.bias"}, {"n.running_mean"});
  model.input("x", {8, 2, 3, 3}).weight("c.weight", {2, 2, 1, 1}, {1, 2, 3});
  model.weight("c.bias", {2}, {1, 2});
  model.node("Conv", {"x", "c.weight", "c.bias"}, "getitem",
             "_native_batch_norm_legit_functional(%conv2d, %p_n_weight, "
             "%p_n_bias, %b_mean, %b_var, True, 0.1, 1e-05)",
             "FuseBatchNormIntoConv");
  model.sum("getitem");
  Imported imported = model.import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("expected parameter 'n.weight' of the exported "
                            "program, found that the exporter fused its batch "
                            "norm into the convolution before"))
      << imported.allErrors();
  ImportOptions options;
  options.freeze = {"n.*"};
  EXPECT_TRUE(model.import(fixture, options).ok());
}

// alpha was 1, so that the product with it is gone.
TEST_F(Restore, RemovedCallsAreSuspicious) {
  NotedModel model({"alpha", "w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2});
  model.node("Add", {"x", "w"}, "add", "add(%mul, %p_w)", "SomeRule");
  model.sum("add");
  Imported imported = model.import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("mul: expected to find all parameters of the "
                            "exported program, found nothing that holds "
                            "'alpha'"))
      << imported.allErrors();
  ImportOptions options;
  options.freeze = {"alpha"};
  EXPECT_TRUE(model.import(fixture, options).ok());
}

// What computes with integers used no parameter.
TEST_F(Restore, RemovedCallsOfIntegers) {
  NotedModel model({"alpha", "w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2});
  auto &cast = model.node("Cast", {"x"}, "ids", "_to_copy(%x)");
  auto &to = *cast.add_attribute();
  to.set_name("to");
  to.set_type(onnx::AttributeProto::INT);
  to.set_i(onnx::TensorProto::INT64);
  model.node("Mul", {"ids", "ids"}, "mul", "mul(%ids, %add)", "SomeRule");
  auto &back = model.node("Cast", {"mul"}, "real", "_to_copy(%mul)");
  *back.add_attribute() = to;
  back.mutable_attribute(0)->set_i(onnx::TensorProto::FLOAT);
  model.node("Mul", {"real", "w"}, "mul_1", "mul(%real, %p_w)");
  Imported imported = model.sum("mul_1").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.report.lost, Names{"alpha"});
}

// A part of `both` is equal to `w` and was merged with it: its view has no name
// that tells.
TEST_F(Restore, MergedViewsAreSuspicious) {
  NotedModel model({"both", "w"});
  model.input("x", {8, 4}).weight("w", {4}, {0});
  model.node("Add", {"x", "w"}, "add", "add(%x, %p_w)");
  model.node("Add", {"add", "w"}, "add_1", "add(%add, %getitem_1)");
  model.folded("w", "'split'");
  model.sum("add_1");
  Imported imported = model.import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("node_add_1: expected to find all parameters"))
      << imported.allErrors();
}

// Unused parameters are in no file.
TEST_F(Restore, UnusedParametersAreSaid) {
  NotedModel model({"unused", "w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2});
  model.node("Add", {"x", "w"}, "add", "add(%x, %p_w)");
  Imported imported = model.sum("add").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(imported.report.lost, Names{"unused"});
}

TEST_F(Restore, DetachStopsTheGradient) {
  NotedModel model({"v", "w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2}).weight("v", {4}, {3});
  model.node("Mul", {"x", "w"}, "mul", "mul(%x, %p_w)");
  model.node("Identity", {"mul"}, "detach", "detach(%mul)");
  model.node("Mul", {"detach", "v"}, "mul_1", "mul(%detach, %p_v)");
  Imported imported = model.sum("mul_1").import(fixture, {}, true);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"v"});
  EXPECT_EQ(imported.histogram()["train.stop_gradient"], 1);
}

TEST_F(Restore, RemovedDetachIsRefused) {
  NotedModel model({"w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2});
  model.node("Add", {"x", "w"}, "add", "add(%detach, %p_w)", "SomeRule");
  Imported imported = model.sum("add").import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("stops the gradient (detach)"));
}

TEST_F(Restore, TrainableNamesOfTheModel) {
  NotedModel model({"v", "w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2}).weight("v", {4}, {3});
  model.node("Mul", {"x", "w"}, "mul", "mul(%x, %p_w)");
  model.node("Mul", {"mul", "v"}, "mul_1", "mul(%mul, %p_v)");
  model.sum("mul_1");
  auto *property = model.model.add_metadata_props();
  property->set_key("org.merak.trainable");
  property->set_value("[\"v\"]");
  Imported imported = model.import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"v"});
  EXPECT_FALSE(imported.report.allTrained);
  property->set_value("[\"absent\"]");
  EXPECT_TRUE(model.import(fixture).says("names no initializer of the model: "
                                         "'absent'"));
  property->set_value("v");
  EXPECT_TRUE(model.import(fixture).says("expected a JSON list"));
}

TEST_F(Restore, FactsOfNodes) {
  NotedModel model({"w"});
  model.input("x", {8, 4}).weight("w", {4}, {1, 2});
  auto &node = model.node("Mul", {"x", "w"}, "mul", "mul(%x, %p_w)");
  note(node, 9, "org.merak.stop_gradient", "yes");
  EXPECT_TRUE(model.sum("mul").import(fixture).says(
      "node_mul: metadata org.merak.stop_gradient: expected 0 or 1, found "
      "'yes'"));
}

} // namespace
