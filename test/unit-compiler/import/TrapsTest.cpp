// Traps that only the notes of the dynamo exporter tell: fields that the
// installed ONNX headers do not know.
#include "compiler/Import/Traps.h"
#include "compiler/Import/Extras.h"

#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"

#include <filesystem>
#include <fstream>

using namespace merak;

namespace {

// Adds a StringStringEntryProto as field `number`.
void note(google::protobuf::Message &message, int number,
          const std::string &key, const std::string &value) {
  google::protobuf::UnknownFieldSet entry;
  entry.AddLengthDelimited(1, key);
  entry.AddLengthDelimited(2, value);
  std::string bytes;
  entry.SerializeToString(&bytes);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      number, bytes);
}

struct TrapsTest : testing::Test {
  onnx::ModelProto model;
  std::string path;

  TrapsTest() {
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

  std::vector<Finding> find(bool train = true) {
    std::ofstream(path, std::ios::binary) << model.SerializeAsString();
    std::vector<std::string> errors;
    auto file = OnnxFile::open(path, errors);
    EXPECT_TRUE(file) << (errors.empty() ? "" : errors[0]);
    return file ? findTraps(*file, {}, train) : std::vector<Finding>();
  }
};

TEST_F(TrapsTest, callsAreReadFromNotes) {
  ExportedCall call = exportedCall(node(
      "Reshape", "%v : [num_users=1] = call_function[target=torch.ops.aten."
                 "view.default](args = (%x, [2, -1], f(1, 2)), kwargs = {})"));
  EXPECT_EQ(call.name, "view");
  EXPECT_EQ(call.arguments,
            (std::vector<std::string>{"%x", "[2, -1]", "f(1, 2)"}));
  EXPECT_EQ(exportedCall(onnx::NodeProto()).name, "");
}

TEST_F(TrapsTest, labelSmoothing) {
  const std::string call = "%l : [num_users=1] = call_function[target=torch.ops"
                           ".aten.cross_entropy_loss.default](args = (%a, %b, "
                           "None, 1, -100";
  node("SoftmaxCrossEntropyLoss", call + ", 0.1), kwargs = {})");
  node("SoftmaxCrossEntropyLoss", call + ", 0.0), kwargs = {})");
  node("SoftmaxCrossEntropyLoss", call + "), kwargs = {})");
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what.rfind("label smoothing was dropped", 0), 0u);
  EXPECT_EQ(found[0].places,
            std::vector<std::string>{"node_1 (label_smoothing=0.1)"});
}

TEST_F(TrapsTest, paddingOfEmbeddings) {
  const std::string call = "%e = call_function[target=torch.ops.aten.embedding."
                           "default](args = (%w, %i";
  node("Gather", call + ", 0), kwargs = {})");
  node("Gather", call + ", -1), kwargs = {})");
  node("Gather", call + "), kwargs = {})");
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].places, std::vector<std::string>{"node_1 (row 0)"});
  EXPECT_TRUE(find(false).empty());
}

TEST_F(TrapsTest, parametersThatWereMergedAway) {
  note(*model.mutable_graph(), 16,
       "pkg.torch.export.ExportedProgram.graph_signature",
       "\n# inputs\np_a: PARAMETER target='a.weight'\np_b: PARAMETER "
       "target='b.weight'\nx: USER_INPUT\n");
  auto *weight = model.mutable_graph()->add_initializer();
  weight->set_name("a.weight");
  weight->set_data_type(onnx::TensorProto::FLOAT);
  weight->add_dims(1);
  weight->add_float_data(1);
  std::vector<Finding> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].places, std::vector<std::string>{"b.weight"});
}

TEST_F(TrapsTest, lostTies) {
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

TEST_F(TrapsTest, statisticsThatDangle) {
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
