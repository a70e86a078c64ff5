// ExportProblems that only the notes of the dynamo exporter tell: fields that
// the installed ONNX headers do not know.
#include "onnx/Import/ExportProblems.h"
#include "onnx/Import/ExportedProgram.h"

#include "NotedModel.h"
#include "gtest/gtest.h"

#include <filesystem>
#include <fstream>

using namespace merak;

namespace {

struct ExportProblemsTest : testing::Test {
  onnx::ModelProto model;
  std::string path;

  ExportProblemsTest() {
    path = (std::filesystem::path(testing::TempDir()) / "traps.onnx").string();
    auto *opset = model.add_opset_import();
    opset->set_version(18);
    model.mutable_graph()->set_name("g");
  }

  onnx::NodeProto &node(const std::string &type, const std::string &call) {
    onnx::NodeProto *made = model.mutable_graph()->add_node();
    made->set_op_type(type);
    made->set_name("node_" + std::to_string(model.graph().node_size()));
    note(*made, 9, "pkg.torch.onnx.fx_node", call);
    return *made;
  }

  // A node of a module of an exported program.
  onnx::NodeProto &nodeIn(const std::string &module, const std::string &type,
                          const std::vector<std::string> &inputs) {
    onnx::NodeProto &made = node(type, "");
    note(made, 9, "pkg.torch.onnx.name_scopes",
         "['', '" + module + "', 'call']");
    for (const std::string &input : inputs)
      made.add_input(input);
    made.add_output(made.name() + "_out");
    return made;
  }

  void weight(const std::string &name, const std::vector<int64_t> &dims) {
    auto *made = model.mutable_graph()->add_initializer();
    made->set_name(name);
    made->set_data_type(onnx::TensorProto::FLOAT);
    int64_t count = 1;
    for (int64_t dim : dims) {
      made->add_dims(dim);
      count *= dim;
    }
    for (int64_t i = 0; i < count; ++i)
      made->add_float_data(static_cast<float>(i + name.size()));
  }

  void signature(const std::vector<std::string> &parameters,
                 const std::vector<std::string> &buffers) {
    std::string text = "\n# inputs\n";
    for (const std::string &name : parameters)
      text += "p: PARAMETER target='" + name + "'\n";
    for (const std::string &name : buffers)
      text += "b: BUFFER target='" + name + "' persistent=True\n";
    note(*model.mutable_graph(), 16,
         "pkg.torch.export.ExportedProgram.graph_signature", text);
  }

  std::vector<Finding> find(bool train = true) {
    std::ofstream(path, std::ios::binary) << model.SerializeAsString();
    std::vector<std::string> errors;
    auto file = OnnxFile::open(path, errors);
    EXPECT_TRUE(file) << (errors.empty() ? "" : errors[0]);
    return file ? findExportProblems(*file, {}, train) : std::vector<Finding>();
  }
};

TEST_F(ExportProblemsTest, callsAreReadFromNotes) {
  ExportedCall call = exportedCall(node(
      "Reshape", "%v : [num_users=1] = call_function[target=torch.ops.aten."
                 "view.default](args = (%x, [2, -1], f(1, 2)), kwargs = {})"));
  EXPECT_EQ(call.name, "view");
  EXPECT_EQ(call.arguments,
            (std::vector<std::string>{"%x", "[2, -1]", "f(1, 2)"}));
  EXPECT_EQ(exportedCall(onnx::NodeProto()).name, "");
}

// A call that moves elements may be missing: whoever read it reads its operand.
// One that computes may not.
TEST_F(ExportProblemsTest, removedCallsAreNoViews) {
  signature({"w"}, {});
  for (const char *operand :
       {"view_3", "permute", "movedim", "swapaxes_1", "swapdims", "mT",
        "numpy_T", "narrow", "unbind", "broadcast_to", "mul_2", "cat"})
    node("Relu", "%v : [num_users=1] = call_function[target=torch.ops.aten."
                 "relu.default](args = (%" +
                     std::string(operand) + ",), kwargs = {})");
  ExportedProgram program(model.graph());
  EXPECT_EQ(program.removedCalls(model.graph()),
            (std::vector<std::string>{"mul_2", "cat"}));
}

TEST_F(ExportProblemsTest, fusedBatchNorm) {
  signature({"norm.weight", "norm.bias", "conv.weight"}, {"norm.running_mean"});
  weight("conv.weight", {2, 2, 1, 1});
  nodeIn("norm", "Conv", {"y", "conv.weight"});
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what.rfind("batch norm of the exported program", 0), 0u);
  EXPECT_EQ(found[0].places, std::vector<std::string>{"norm"});
}

// With the norm in the file nothing was fused.
TEST_F(ExportProblemsTest, batchNormThatWasKept) {
  signature({"norm.weight", "norm.bias", "conv.weight"}, {"norm.running_mean"});
  for (const char *name : {"norm.weight", "norm.bias"})
    weight(name, {2});
  weight("conv.weight", {2, 2, 1, 1});
  nodeIn("conv", "Conv", {"x", "conv.weight"});
  nodeIn("norm", "BatchNormalization", {"y", "norm.weight", "norm.bias"});
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what.rfind("batch norm with training_mode=0", 0), 0u);
}

TEST_F(ExportProblemsTest, lostTies) {
  auto add = [&](const char *name, int rows, int columns, bool transposed) {
    auto *weight = model.mutable_graph()->add_initializer();
    weight->set_name(name);
    weight->set_data_type(onnx::TensorProto::FLOAT);
    weight->add_dims(rows);
    weight->add_dims(columns);
    for (int i = 0; i < rows * columns; ++i)
      weight->add_float_data(
          transposed ? static_cast<float>(i % columns * rows + i / columns)
                     : static_cast<float>(i));
  };
  add("table", 40, 30, false);
  add("head", 30, 40, true);
  add("other", 30, 40, false);
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].places, std::vector<std::string>{"table = head"});
}

TEST_F(ExportProblemsTest, statisticsThatDangle) {
  onnx::NodeProto &norm = node("BatchNormalization", "");
  for (const char *name : {"x", "scale", "bias", "mean", "var"})
    norm.add_input(name);
  for (const char *name : {"y", "new_mean", "new_var"})
    norm.add_output(name);
  auto *mode = norm.add_attribute();
  mode->set_name("training_mode");
  mode->set_type(onnx::AttributeProto::INT);
  mode->set_i(1);
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].places, (std::vector<std::string>{"new_mean", "new_var"}));
}

} // namespace
