#include "onnx/Import/NodeFacts.h"

#include "onnx/Conversion/OnnxNode.h"
#include "onnx/Import/NewerFields.h"

#include <nlohmann/json.hpp>

using namespace merak;
using llvm::StringRef;

namespace {

class FactReader {
public:
  explicit FactReader(onnx::NodeProto &node)
      : node(node), properties(propertiesOf(node)), call(exportedCall(node)) {}

  // Empty: fine.
  std::string read() {
    const StringRef type = node.op_type();
    if (type == "SoftmaxCrossEntropyLoss")
      number(kLabelSmoothing, argument("cross_entropy_loss", 5), 0, 1);
    if (type == "Gather")
      integer(kPaddingIndex, argument("embedding", 2));
    if (type == "BatchNormalization")
      trainingMode();
    if (type == "Dropout")
      flag(kTrainingMode, "");
    flag(kStopGradient, call.name == "detach" && type == "Identity" ? "1" : "");
    return problem;
  }

private:
  // An argument of the noted call, as it was written.
  std::string argument(StringRef function, size_t index) const {
    return call.name == function && call.arguments.size() > index
               ? call.arguments[index]
               : "";
  }

  // Metadata go before the call.
  std::string textOf(StringRef key, const std::string &noted) const {
    auto found = properties.find(key.str());
    return found == properties.end() ? noted : found->second;
  }

  onnx::AttributeProto &attribute(StringRef key) {
    for (onnx::AttributeProto &old : *node.mutable_attribute())
      if (old.name() == key)
        return old;
    onnx::AttributeProto &made = *node.add_attribute();
    made.set_name(key.str());
    return made;
  }

  void fail(StringRef key, StringRef expected, StringRef found) {
    problem = ("metadata " + key + ": expected " + expected + ", found '" +
               found + "'")
                  .str();
  }

  void number(StringRef key, const std::string &noted, double low,
              double high) {
    const std::string text = textOf(key, noted);
    double value = 0;
    if (text.empty())
      return;
    if (StringRef(text).getAsDouble(value) || !(value >= low && value <= high))
      return fail(key, "a number from 0 to 1", text);
    if (value == 0)
      return;
    onnx::AttributeProto &made = attribute(key);
    made.set_type(onnx::AttributeProto::FLOAT);
    made.set_f(static_cast<float>(value));
  }

  void setInteger(StringRef key, int64_t value) {
    onnx::AttributeProto &made = attribute(key);
    made.set_type(onnx::AttributeProto::INT);
    made.set_i(value);
  }

  // A row; a negative one in a call means none.
  void integer(StringRef key, const std::string &noted) {
    const std::string text = textOf(key, noted);
    int64_t value = 0;
    if (text.empty())
      return;
    if (StringRef(text).getAsInteger(10, value))
      return fail(key, "an integer", text);
    if (value >= 0)
      setInteger(key, value);
  }

  void flag(StringRef key, const std::string &noted) {
    const std::string text = textOf(key, noted);
    if (text.empty())
      return;
    if (text != "0" && text != "1")
      return fail(key, "0 or 1", text);
    setInteger(key, text == "1");
  }

  // PyTorch's dynamo exporter writes 0 in any case.
  void trainingMode() {
    std::string noted;
    for (StringRef function :
         {"_native_batch_norm_legit_functional", "_native_batch_norm_legit",
          "native_batch_norm", "batch_norm", "cudnn_batch_norm"})
      if (argument(function, 5) == "True")
        noted = "1";
    const std::string text = textOf(kTrainingMode, noted);
    if (text.empty())
      return;
    if (text != "0" && text != "1")
      return fail(kTrainingMode, "0 or 1", text);
    setInteger("training_mode", text == "1");
  }

  onnx::NodeProto &node;
  const std::map<std::string, std::string> properties;
  const ExportedCall call;
  std::string problem;
};

} // namespace

std::vector<std::pair<std::string, std::string>>
merak::readNodeFacts(onnx::GraphProto &graph) {
  std::vector<std::pair<std::string, std::string>> problems;
  for (onnx::NodeProto &node : *graph.mutable_node())
    if (std::string problem = FactReader(node).read(); !problem.empty())
      problems.emplace_back(node.name().empty() && node.output_size()
                                ? node.output(0)
                                : node.name(),
                            problem);
  return problems;
}

std::optional<std::vector<std::string>>
merak::readTrainableNames(const onnx::ModelProto &model,
                          std::vector<std::string> &problems) {
  const auto properties = propertiesOf(model);
  const auto found = properties.find("org.merak.trainable");
  if (found == properties.end())
    return std::nullopt;
  const auto json = nlohmann::json::parse(found->second, nullptr, false);
  std::vector<std::string> names;
  bool good = json.is_array();
  for (const auto &name : good ? json : nlohmann::json::array()) {
    good &= name.is_string();
    if (name.is_string())
      names.push_back(name);
  }
  if (good)
    return names;
  problems.push_back("metadata org.merak.trainable: expected a JSON list of "
                     "names of initializers");
  return std::nullopt;
}
