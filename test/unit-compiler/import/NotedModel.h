// Small models with the notes of PyTorch's dynamo exporter: fields that the
// installed ONNX headers do not know.
#pragma once

#include "TextModel.h"
#include "google/protobuf/unknown_field_set.h"
#include "onnx/Import/OnnxFile.h"

namespace merak {

// Adds a StringStringEntryProto as field `number`.
inline void note(google::protobuf::Message &message, int number,
                 const std::string &key, const std::string &value) {
  google::protobuf::UnknownFieldSet entry;
  entry.AddLengthDelimited(1, key);
  entry.AddLengthDelimited(2, value);
  std::string bytes;
  entry.SerializeToString(&bytes);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      number, bytes);
}

class NotedModel {
public:
  // `parameters` of the program, which "p_" and their name with underscores
  // stand for in calls.
  explicit NotedModel(const std::vector<std::string> &parameters,
                      const std::vector<std::string> &buffers = {}) {
    model.set_ir_version(8);
    model.set_producer_name("pytorch");
    model.add_opset_import()->set_version(18);
    graph.set_name("g");
    std::string text = "\n# inputs\n";
    for (const std::string &name : parameters)
      text += operand(name) + ": PARAMETER target='" + name + "'\n";
    for (const std::string &name : buffers)
      text += "b: BUFFER target='" + name + "' persistent=True\n";
    note(graph, 16, "pkg.torch.export.ExportedProgram.graph_signature", text);
  }

  static std::string operand(std::string name) {
    for (char &c : name)
      c = c == '.' ? '_' : c;
    return "p_" + name;
  }

  NotedModel &input(const std::string &name, const std::vector<int64_t> &dims) {
    declare(*graph.add_input(), name, dims);
    return *this;
  }
  NotedModel &output(const std::string &name) {
    declare(*graph.add_output(), name, {});
    return *this;
  }

  NotedModel &weight(const std::string &name, const std::vector<int64_t> &dims,
                     const std::vector<float> &values) {
    auto *made = graph.add_initializer();
    made->set_name(name);
    made->set_data_type(onnx::TensorProto::FLOAT);
    int64_t count = 1;
    for (int64_t dim : dims) {
      made->add_dims(dim);
      count *= dim;
    }
    for (int64_t i = 0; i < count; ++i)
      made->add_float_data(values[i % values.size()]);
    return *this;
  }

  // What an initializer was computed from: "'a', 'val_1'".
  NotedModel &folded(const std::string &name, const std::string &from) {
    auto *info = graph.add_value_info();
    info->set_name(name);
    note(*info, 4, "pkg.onnxscript.optimizer.folded_from", "[" + from + "]");
    return *this;
  }

  // `call`: "linear(%x, %p_w)", whose result has the name of the output.
  onnx::NodeProto &node(const std::string &type,
                        const std::vector<std::string> &inputs,
                        const std::string &output, const std::string &call,
                        const std::string &rule = "") {
    auto *made = graph.add_node();
    made->set_op_type(type);
    made->set_name("node_" + output);
    for (const std::string &name : inputs)
      made->add_input(name);
    made->add_output(output);
    const size_t open = call.find('(');
    note(*made, 9, "pkg.torch.onnx.fx_node",
         "%" + output +
             " : [num_users=1] = call_function[target=torch.ops.aten." +
             call.substr(0, open) + ".default](args = " + call.substr(open) +
             ", kwargs = {})");
    if (!rule.empty())
      note(*made, 9, "pkg.onnxscript.rewriter.rule_name", rule);
    return *made;
  }

  // The sum of `value` is the loss.
  NotedModel &sum(const std::string &value) {
    auto &made = node("ReduceSum", {value}, "loss", "sum(%" + value + ")");
    auto *attribute = made.add_attribute();
    attribute->set_name("keepdims");
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(0);
    return output("loss");
  }

  Imported import(ImportFixture &fixture, const ImportOptions &options = {},
                  bool raise = false) {
    return fixture.import(
        fixture.write("noted.onnx", model.SerializeAsString()), options, raise);
  }

  onnx::ModelProto model;
  onnx::GraphProto &graph = *model.mutable_graph();

private:
  static void declare(onnx::ValueInfoProto &info, const std::string &name,
                      const std::vector<int64_t> &dims) {
    info.set_name(name);
    auto *tensor = info.mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(onnx::TensorProto::FLOAT);
    tensor->mutable_shape();
    for (int64_t dim : dims)
      tensor->mutable_shape()->add_dim()->set_dim_value(dim);
  }
};

} // namespace merak
