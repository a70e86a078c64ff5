// Initializers that the exporter computed from others, from states of zeros or
// by adding a number: they are trained as the program trains them, or refused.
#include "NotedModel.h"

#include "gtest/gtest.h"

#include <cmath>

using namespace merak;

namespace {

using Names = std::vector<std::string>;

struct RelatedFolds : testing::Test {
  ImportFixture fixture;

  static Names trained(const Imported &imported) {
    Names names;
    for (const auto &decision : imported.report.trained)
      names.push_back(decision.name);
    std::sort(names.begin(), names.end());
    return names;
  }
  static const ImportReport::FoldedUse *useOf(const Imported &imported,
                                              const std::string &name) {
    for (const auto &use : imported.report.foldedUses)
      if (use.initializer == name)
        return &use;
    return nullptr;
  }
};

// gate * x + (1 - gate) * x, of which both factors were folded.
NotedModel gated(const std::vector<float> &gate,
                 const std::vector<float> &rest) {
  NotedModel model({"gate"});
  const auto size = static_cast<int64_t>(gate.size());
  model.input("x", {8, size}).weight("sigmoid", {size}, gate);
  model.weight("sub", {size}, rest);
  model.folded("sigmoid", "'gate'");
  model.folded("sub", "'gate', 'scalar_tensor_default', 'sigmoid', 'val_0'");
  model.node("Mul", {"sigmoid", "x"}, "mul", "mul(%sigmoid, %x)");
  model.node("Mul", {"sub", "x"}, "mul_1", "mul(%sub, %x)");
  model.node("Add", {"mul", "mul_1"}, "add", "add(%mul, %mul_1)");
  model.sum("add");
  return model;
}

TEST_F(RelatedFolds, OneFoldOfAnother) {
  Imported imported =
      gated({0.25, 0.7}, {0.75, 1 - 0.7f}).import(fixture, {}, true);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"gate"});
  EXPECT_EQ(imported.histogram()["train.sigmoid"], 1);
  ASSERT_TRUE(useOf(imported, "sub"));
  EXPECT_EQ(useOf(imported, "sub")->parameter, "gate");
  EXPECT_EQ(useOf(imported, "sub")->functions,
            (Names{"Sigmoid", "Neg", "Add:1"}));
}

// 1 - 0.3 is short, 0.3 - (-0.4) is not; of 1 - 0.5 and 0.5 - 0 nobody knows.
TEST_F(RelatedFolds, ASingleNumberMustTell) {
  const float gate = 0.57444252f;
  Imported imported = gated({gate}, {1 - gate}).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_FALSE(gated({0.5}, {0.5}).import(fixture).ok());
}

TEST_F(RelatedFolds, ValuesMustFit) {
  Imported imported = gated({0.25, 0.7}, {0.75, 0.31}).import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("(export with optimize=False)"));
}

// exp(-w) * x + w
NotedModel uncertain(const std::vector<float> &w,
                     const std::vector<float> &factor) {
  NotedModel model({"w"});
  model.input("x", {8, 2}).weight("w", {2}, w).weight("exp", {2}, factor);
  model.folded("exp", "'neg', 'w'");
  model.node("Mul", {"exp", "x"}, "mul", "mul(%exp, %x)");
  model.node("Add", {"mul", "w"}, "add", "add(%mul, %p_w)");
  model.sum("add");
  return model;
}

TEST_F(RelatedFolds, FunctionsOfWhatIsThere) {
  Imported imported =
      uncertain({1, -2}, {std::exp(-1.0f), std::exp(2.0f)}).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"w"});
  EXPECT_EQ(useOf(imported, "exp")->functions, (Names{"Neg", "Exp"}));
  EXPECT_FALSE(uncertain({1, -2}, {1, 2}).import(fixture).ok());
}

// Latents expanded to the batch, and the same transposed.
NotedModel latents(const std::vector<float> &values,
                   const std::vector<float> &moved) {
  NotedModel model({"latents"});
  model.input("x", {8, 2, 3}).input("y", {8, 3, 2});
  model.weight("expand", {8, 2, 3}, values).weight("t", {8, 3, 2}, moved);
  model.folded("expand", "'latents', 'val_1'");
  model.folded("t", "'expand', 'latents', 'val_1'");
  model.node("Mul", {"x", "expand"}, "mul", "mul(%x, %expand)");
  model.node("Mul", {"y", "t"}, "mul_1", "mul(%y, %t)");
  model.node("MatMul", {"mul", "mul_1"}, "mm", "matmul(%mul, %mul_1)");
  model.sum("mm");
  return model;
}

TEST_F(RelatedFolds, TheSameElementsTransposed) {
  Imported imported =
      latents({1, 2, 3, 4, 5, 6}, {1, 4, 2, 5, 3, 6}).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"latents"});
  EXPECT_EQ(imported.parameter("latents").getType().getShape(),
            (llvm::ArrayRef<int64_t>{1, 2, 3}));
  EXPECT_EQ(useOf(imported, "t")->permutation, (std::vector<int64_t>{0, 2, 1}));
  imported = latents({1, 2, 3, 4, 5, 6}, {1, 4, 2, 5, 6, 3}).import(fixture);
  EXPECT_FALSE(imported.ok());
}

// x + w . 0 + b beside a later step, which reads the weight.
NotedModel recurrent(const std::vector<float> &first, bool bias = true) {
  Names parameters{"cell.weight_hh"};
  if (bias)
    parameters.push_back("cell.bias_hh");
  NotedModel model(parameters);
  model.input("x", {8, 2});
  model.weight("cell.weight_hh", {2, 2}, {1, 2, 3, 4});
  if (bias)
    model.weight("cell.bias_hh", {2}, {5, 6});
  model.weight("linear", {8, 2}, first);
  model.folded("linear", std::string(bias ? "'cell.bias_hh', " : "") +
                             "'cell.weight_hh', 'val_0', 'zeros'");
  model.node("Add", {"x", "linear"}, "add", "add(%x, %linear)");
  const std::string call = std::string("linear(%add, %p_cell_weight_hh") +
                           (bias ? ", %p_cell_bias_hh)" : ")");
  if (bias)
    model.node("Gemm", {"add", "cell.weight_hh", "cell.bias_hh"}, "linear_1",
               call);
  else
    model.node("MatMul", {"add", "cell.weight_hh"}, "linear_1", call);
  model.sum("linear_1");
  return model;
}

TEST_F(RelatedFolds, FirstStepsOfZeroStates) {
  Imported imported = recurrent({5, 6}).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"cell.bias_hh", "cell.weight_hh"}));
  EXPECT_EQ(useOf(imported, "linear")->parameter, "cell.bias_hh");
  EXPECT_FALSE(recurrent({5, 7}).import(fixture).ok());
  imported = recurrent({0}, false).import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"cell.weight_hh"});
  EXPECT_FALSE(recurrent({1}, false).import(fixture).ok());
}

NotedModel shifted(const std::string &from) {
  NotedModel model({"norm.weight"});
  model.input("x", {8, 2}).weight("add", {2}, {1.5, 0.5});
  model.folded("add", from);
  model.node("Mul", {"x", "add"}, "mul", "mul(%x, %add)");
  model.sum("mul");
  return model;
}

// 1 + w: what the number was is not in the file, nor is it needed but for
// decay.
TEST_F(RelatedFolds, AParameterPlusANumber) {
  NotedModel model = shifted("'norm.weight', 'val_3'");
  Imported imported = model.import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), Names{"add"});
  ASSERT_FALSE(imported.report.warnings.empty());
  EXPECT_EQ(imported.report.warnings[0],
            "trained is 'norm.weight' plus a number as 'add', as the exporter "
            "wrote it: the same but for weight decay, of which there must be "
            "none (optimize=False allows it)");
  ImportOptions options;
  options.decays = true;
  imported = model.import(fixture, options);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("weight decay would pull it elsewhere (export with "
                            "optimize=False, or --optimizer with "
                            "weight_decay=0)"));
  // w + w, and w + f(w): no number.
  EXPECT_FALSE(shifted("'norm.weight'").import(fixture).ok());
  EXPECT_FALSE(
      shifted("'norm.weight', 'unsqueeze', 'val_3'").import(fixture).ok());
}

NotedModel twins(const std::string &second) {
  NotedModel model({"m.0.decay", "m.1.decay"});
  model.input("x", {8, 2}).weight("neg", {2}, {-1, -2});
  model.folded("neg", "'m.0.decay'");
  note(model.node("Mul", {"x", "neg"}, "mul", "mul(%x, %neg)"), 9,
       "pkg.torch.onnx.name_scopes", "['', 'm', 'm.0', 'mul']");
  note(model.node("Mul", {"mul", "neg"}, "mul_1", "mul(%mul, %neg_1)"), 9,
       "pkg.torch.onnx.name_scopes", "['', 'm', '" + second + "', 'mul_1']");
  model.sum("mul_1");
  return model;
}

TEST_F(RelatedFolds, MergedFoldsOfTwoModules) {
  Imported imported = twins("m.1").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"m.0.decay", "m.1.decay"}));
  ASSERT_EQ(imported.report.splitUses.size(), 1u);
  EXPECT_EQ(imported.report.splitUses[0].parameter, "m.1.decay");
  EXPECT_EQ(imported.report.splitUses[0].copy, "m.1.neg");
  EXPECT_EQ(imported.report.splitUses[0].functions, Names{"Neg"});
  // A node of another module does not tell whose it is.
  EXPECT_FALSE(twins("m.2").import(fixture).ok());
}

// Rows and columns repeated, joined and flattened, as positions of patches.
TEST_F(RelatedFolds, RepeatedElementsBetweenOthers) {
  NotedModel model({"columns", "rows"});
  model.input("x", {8, 4, 2});
  model.weight("flatten", {4, 2}, {1, 3, 2, 3, 1, 4, 2, 4});
  model.folded("flatten", "'cat', 'columns', 'repeat', 'repeat_1', 'rows', "
                          "'unsqueeze', 'unsqueeze_1', 'val_0'");
  model.node("Add", {"x", "flatten"}, "add", "add(%x, %flatten)");
  Imported imported = model.sum("add").import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("they would be trained as copies"))
      << imported.allErrors();
}

// Parts of one parameter, equal when exported: each would be trained as both.
TEST_F(RelatedFolds, MergedPartsAreRefused) {
  NotedModel model({"alphas"});
  model.input("x", {8, 2}).weight("getitem", {}, {0});
  model.folded("getitem", "'alphas', 'val_0'");
  model.node("Mul", {"x", "getitem"}, "mul", "mul(%x, %getitem)");
  model.node("Mul", {"mul", "getitem"}, "mul_1", "mul(%mul, %getitem_1)");
  Imported imported = model.sum("mul_1").import(fixture);
  EXPECT_FALSE(imported.ok());
  EXPECT_TRUE(imported.says("'node_mul_1' reads 'getitem' in place of another "
                            "value that was equal to it"))
      << imported.allErrors();
}

// The exporter notes nothing at a Split: its readers say whose bias it is.
TEST_F(RelatedFolds, SplitsBelongToTheirReaders) {
  NotedModel model({"a.bias", "b.bias"});
  model.input("x", {8, 2}).weight("a.bias", {4}, {0});
  model.weight("sizes", {2}, {2, 2});
  auto &sizes = *model.graph.mutable_initializer(1);
  sizes.set_data_type(onnx::TensorProto::INT64);
  sizes.clear_float_data();
  sizes.add_int64_data(2);
  sizes.add_int64_data(2);
  model.node("Concat", {"x", "x"}, "cat", "cat([%x, %x], 1)");
  auto &axis = *model.graph.mutable_node(0)->add_attribute();
  axis.set_name("axis");
  axis.set_type(onnx::AttributeProto::INT);
  axis.set_i(1);
  model.node("Add", {"cat", "a.bias"}, "add", "add(%cat, %p_a_bias)");
  auto &split = *model.graph.add_node();
  split.set_op_type("Split");
  split.add_input("a.bias");
  split.add_input("sizes");
  split.add_output("one");
  split.add_output("two");
  for (auto [part, result] : {std::pair("one", "add_1"), {"two", "add_2"}})
    note(model.node("Add", {"x", part}, result,
                    std::string("add(%x, %getitem_") + part + ")"),
         9, "pkg.torch.onnx.name_scopes", "['', 'top', 'b', 'add']");
  model.node("Mul", {"add_1", "add_2"}, "mul", "mul(%add_1, %add_2)");
  model.node("Concat", {"mul", "mul"}, "cat_1", "cat([%mul, %mul], 1)");
  *model.graph.mutable_node(model.graph.node_size() - 1)->add_attribute() =
      axis;
  model.node("Mul", {"add", "cat_1"}, "mul_1", "mul(%add, %cat_1)");
  Imported imported = model.sum("mul_1").import(fixture);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"a.bias", "b.bias"}));
}

// Weights of a GRU whose first state is a parameter too: the exporter asked for
// its shape.
TEST_F(RelatedFolds, FirstStatesLendTheirShape) {
  NotedModel model({"first", "gru.weight_ih", "gru.weight_hh"});
  model.input("x", {2, 8, 2});
  model.weight("val_2", {1, 6, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  model.weight("val_3", {1, 6, 2}, {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8});
  model.weight("val_1", {1, 8, 2}, {0.5, -0.5});
  model.folded("val_2", "'clone', 'expand', 'first', 'gru.weight_ih'");
  model.folded("val_3", "'clone', 'expand', 'first', 'gru.weight_hh'");
  model.folded("val_1", "'clone', 'expand', 'first'");
  auto &gru = model.node(
      "GRU", {"x", "val_2", "val_3", "", "", "val_1"}, "y",
      "gru(%x, %clone, [%p_gru_weight_ih, %p_gru_weight_hh], False, 1)");
  auto &hidden = *gru.add_attribute();
  hidden.set_name("hidden_size");
  hidden.set_type(onnx::AttributeProto::INT);
  hidden.set_i(2);
  ImportOptions options;
  options.shapes["x"] = {2, 8, 2};
  options.globalBatch = 8;
  Imported imported = model.sum("y").import(fixture, options);
  ASSERT_TRUE(imported.ok()) << imported.allErrors();
  EXPECT_EQ(trained(imported), (Names{"val_1.once", "val_2", "val_3"}));
  EXPECT_EQ(imported.parameter("val_1.once").getType().getShape(),
            (llvm::ArrayRef<int64_t>{1, 1, 2}));
}

} // namespace
