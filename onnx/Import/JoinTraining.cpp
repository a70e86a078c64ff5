// One graph of the model's and the training algorithm's, and the initial values
// that the initialization graph computes: constants, fills and random numbers.
#include "onnx/Conversion/OnnxNode.h"
#include "onnx/Import/OnnxFile.h"
#include "onnx/Import/TrainingInfo.h"

#include <cmath>
#include <cstring>
#include <map>
#include <random>

using namespace merak;

namespace {

// Bytes that an initialization may make in all.
constexpr int64_t kMaxMade = int64_t(64) << 20;

class Initialization {
public:
  Initialization(const onnx::GraphProto &graph, onnx::GraphProto &target,
                 std::vector<std::string> &errors)
      : graph(graph), target(target), errors(errors) {
    for (const onnx::TensorProto &tensor : graph.initializer())
      values[tensor.name()] = tensor;
  }

  void run(const onnx::TrainingInfoProto &info, std::vector<int> &changed) {
    for (int i = 0; i < graph.node_size(); ++i)
      if (std::string reason = evaluate(graph.node(i), i); !reason.empty())
        for (const std::string &output : graph.node(i).output())
          reasons[output] = graph.node(i).op_type() + ": " + reason;
    for (const onnx::StringStringEntryProto &entry :
         info.initialization_binding())
      bind(entry.key(), entry.value(), changed);
  }

private:
  void bind(const std::string &key, const std::string &name,
            std::vector<int> &changed) {
    auto fail = [&](const std::string &message) {
      errors.push_back("initialization of '" + key + "': " + message);
    };
    int index = 0;
    while (index < target.initializer_size() &&
           target.initializer(index).name() != key)
      ++index;
    if (index == target.initializer_size())
      return fail("expected the name of an initializer");
    auto value = values.find(name);
    if (value == values.end()) {
      auto reason = reasons.find(name);
      return fail(reason != reasons.end()
                      ? reason->second
                      : "expected a result of the initialization graph, found "
                        "'" +
                            name + "'");
    }
    const onnx::TensorProto &old = target.initializer(index);
    if (value->second.data_type() != old.data_type() ||
        !std::equal(old.dims().begin(), old.dims().end(),
                    value->second.dims().begin(), value->second.dims().end()))
      return fail("expected a value of the initializer's type and shape");
    *target.mutable_initializer(index) = value->second;
    target.mutable_initializer(index)->set_name(key);
    changed.push_back(index);
  }

  // Fills `values`; a sentence if it cannot.
  std::string evaluate(const onnx::NodeProto &node, int number) {
    const std::string &type = node.op_type();
    if (node.output_size() != 1)
      return "expected one output";
    onnx::TensorProto &made = values[node.output(0)];
    std::string reason = "unsupported op in an initialization graph, expected "
                         "Constant, ConstantOfShape, Identity, RandomNormal or "
                         "RandomUniform";
    if (type == "Constant")
      reason = constant(node, made);
    else if (type == "Identity" && node.input_size() == 1)
      reason = copy(node.input(0), made);
    else if (type == "ConstantOfShape" && node.input_size() == 1)
      reason = fill(node, made);
    else if (type == "RandomNormal" || type == "RandomUniform")
      reason = draw(node, number, made);
    if (!reason.empty())
      values.erase(node.output(0));
    return reason;
  }

  std::string copy(const std::string &from, onnx::TensorProto &made) {
    auto it = values.find(from);
    if (it == values.end())
      return "expected an operand that is known";
    made = it->second;
    return "";
  }

  std::string constant(const onnx::NodeProto &node, onnx::TensorProto &made) {
    for (const onnx::AttributeProto &attribute : node.attribute()) {
      if (attribute.name() == "value" && attribute.has_t()) {
        made = attribute.t();
        return "";
      }
      if (attribute.name() == "value_float" ||
          attribute.name() == "value_int") {
        bool isInt = attribute.name() == "value_int";
        made.set_data_type(isInt ? onnx::TensorProto::INT64
                                 : onnx::TensorProto::FLOAT);
        if (isInt)
          made.add_int64_data(attribute.i());
        else
          made.add_float_data(attribute.f());
        return "";
      }
    }
    return "expected a tensor or a number as its value";
  }

  // Sets type and shape; the number of elements, -1 if they are too many.
  int64_t shapeTo(int type, const std::vector<int64_t> &dims,
                  onnx::TensorProto &made) {
    made.set_data_type(type);
    int64_t count = 1, size = static_cast<int64_t>(onnxElementSize(type));
    for (int64_t dim : dims) {
      if (dim < 0 || (dim && count > kMaxMade / dim))
        return -1;
      count *= dim;
      made.add_dims(dim);
    }
    total += count * size;
    return size && total <= kMaxMade ? count : -1;
  }

  std::string fill(const onnx::NodeProto &node, onnx::TensorProto &made) {
    OnnxTensor shape, one;
    std::string error;
    auto given = values.find(node.input(0));
    if (given == values.end() || !decodeTensor(given->second, shape, error) ||
        shape.dataType != onnx::TensorProto::INT64)
      return "expected a constant shape";
    std::vector<int64_t> dims(shape.elements());
    if (!dims.empty())
      std::memcpy(dims.data(), shape.owned.data(), shape.owned.size());
    one.dataType = onnx::TensorProto::FLOAT;
    one.owned.assign(sizeof(float), '\0');
    for (const onnx::AttributeProto &attribute : node.attribute())
      if (attribute.name() == "value" &&
          (!decodeTensor(attribute.t(), one = OnnxTensor(), error) ||
           one.elements() != 1))
        return "expected one element as its value";
    int64_t count = shapeTo(one.dataType, dims, made);
    if (count < 0)
      return tooMuch();
    std::string bytes;
    for (int64_t i = 0; i < count; ++i)
      bytes += one.owned;
    made.set_raw_data(bytes);
    return "";
  }

  // The same numbers whenever the model is compiled: of the node's seed and its
  // place in the graph.
  std::string draw(const onnx::NodeProto &node, int number,
                   onnx::TensorProto &made) {
    double mean = 0, scale = 1, low = 0, high = 1;
    float seed = 0;
    int type = onnx::TensorProto::FLOAT;
    std::vector<int64_t> dims;
    for (const onnx::AttributeProto &a : node.attribute()) {
      if (a.name() == "mean")
        mean = a.f();
      else if (a.name() == "scale")
        scale = a.f();
      else if (a.name() == "low")
        low = a.f();
      else if (a.name() == "high")
        high = a.f();
      else if (a.name() == "seed")
        seed = a.f();
      else if (a.name() == "dtype")
        type = static_cast<int>(a.i());
      else if (a.name() == "shape")
        dims.assign(a.ints().begin(), a.ints().end());
    }
    if (type != onnx::TensorProto::FLOAT)
      return "unsupported element type " + onnxElementName(type) +
             ", expected f32";
    int64_t count = shapeTo(type, dims, made);
    if (count < 0)
      return tooMuch();
    uint32_t bits = 0;
    std::memcpy(&bits, &seed, sizeof(seed));
    std::mt19937_64 engine(uint64_t(bits) << 32 | uint32_t(number));
    bool isNormal = node.op_type() == "RandomNormal";
    // In (0, 1), so that its logarithm is finite.
    auto uniform = [&] {
      return (static_cast<double>(engine() >> 32) + 0.5) / 4294967296.0;
    };
    std::string bytes(static_cast<size_t>(count) * sizeof(float), '\0');
    for (int64_t i = 0; i < count; ++i) {
      const double first = uniform();
      double x = low + (high - low) * first;
      // Box and Muller's transform of two uniform numbers.
      if (isNormal)
        x = mean + scale * std::sqrt(-2 * std::log(first)) *
                       std::cos(2 * M_PI * uniform());
      const float value = static_cast<float>(x);
      std::memcpy(&bytes[static_cast<size_t>(i) * sizeof(float)], &value,
                  sizeof(float));
    }
    made.set_raw_data(bytes);
    return "";
  }

  static std::string tooMuch() {
    return "expected sizes of dimensions, at most " +
           std::to_string(kMaxMade >> 20) + " MiB in all";
  }

  const onnx::GraphProto &graph;
  onnx::GraphProto &target;
  std::vector<std::string> &errors;
  std::map<std::string, onnx::TensorProto> values;
  std::map<std::string, std::string> reasons; // why a value is missing
  int64_t total = 0;
};

} // namespace

void merak::nameGradientOperands(onnx::GraphProto &graph) {
  for (onnx::NodeProto &node : *graph.mutable_node())
    for (const onnx::AttributeProto &attribute : node.attribute())
      if (node.op_type() == "Gradient" && node.domain() == kTrainingDomain &&
          attribute.name() == "y") {
        node.add_input(attribute.s());
        break;
      }
}

std::vector<int> merak::joinTraining(onnx::ModelProto &model,
                                     std::vector<std::string> &errors) {
  onnx::GraphProto &graph = *model.mutable_graph();
  std::vector<int> changed;
  for (const onnx::TrainingInfoProto &info : model.training_info()) {
    const onnx::GraphProto &algorithm = info.algorithm();
    graph.mutable_node()->MergeFrom(algorithm.node());
    graph.mutable_initializer()->MergeFrom(algorithm.initializer());
    graph.mutable_input()->MergeFrom(algorithm.input());
    graph.mutable_value_info()->MergeFrom(algorithm.value_info());
    if (algorithm.sparse_initializer_size())
      errors.push_back("training algorithm: unsupported sparse initializer");
  }
  for (const onnx::TrainingInfoProto &info : model.training_info())
    Initialization(info.initialization(), graph, errors).run(info, changed);
  return changed;
}
