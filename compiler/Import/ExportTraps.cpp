#include "compiler/Import/ExportTraps.h"

#include "google/protobuf/unknown_field_set.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSet.h"

using namespace merak;
using llvm::StringRef;

namespace {
// What the findings ask the exporter for.
constexpr StringRef kUnfolded = "stored by folding";
constexpr StringRef kTraining = "exported for inference";

// A metadata entry of a node; the field is newer than the protobuf headers.
std::string metadataOf(const onnx::NodeProto &node, StringRef key) {
  constexpr int kMetadata = 9;
  const auto &fields = node.GetReflection()->GetUnknownFields(node);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto &field = fields.field(i);
    onnx::StringStringEntryProto entry;
    if (field.number() == kMetadata &&
        field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED &&
        entry.ParseFromString(field.length_delimited()) && entry.key() == key)
      return entry.value();
  }
  return {};
}

class Finder {
public:
  explicit Finder(const OnnxFile &file)
      : file(file), graph(file.model().graph()) {
    for (const onnx::NodeProto &node : graph.node())
      for (const std::string &input : node.input())
        used.insert(input);
    for (const onnx::ValueInfoProto &output : graph.output())
      used.insert(output.name());
    for (const auto &entry : file.model().opset_import())
      if (entry.domain().empty() || entry.domain() == "ai.onnx")
        opset = entry.version();
  }

  std::vector<std::string> run() {
    weights();
    for (const onnx::NodeProto &node : graph.node()) {
      name = node.name().empty() && node.output_size() ? node.output(0)
                                                       : node.name();
      if (node.op_type() == "Dropout")
        dropout(node);
      else if (node.op_type() == "BatchNormalization")
        batchNorm(node);
      lostArguments(node);
    }
    if (file.model().training_info_size())
      found.push_back("the training_info of the file is not read");
    return std::move(found);
  }

private:
  void add(const std::string &where, const std::string &text) {
    found.push_back("'" + where + "': " + text);
  }

  void weights() {
    for (const OnnxTensor &tensor : file.initializers()) {
      StringRef name = tensor.name;
      if (name.starts_with("onnx::Conv_"))
        add(tensor.name, "a convolution's weight with a batch normalization "
                         "fused into it, " +
                             kTraining.str() + "; it cannot be taken apart");
      else if (name.starts_with("onnx::"))
        add(tensor.name,
            "a weight without its name, transposed and " + kUnfolded.str());
    }
  }

  // From opset 12 the third input says whether a node drops.
  void dropout(const onnx::NodeProto &node) {
    if (opset >= 12 && (node.input_size() < 3 || node.input(2).empty()))
      add(name,
          "a Dropout without training_mode does nothing, " + kTraining.str());
  }

  void batchNorm(const onnx::NodeProto &node) {
    bool trains = false;
    for (const onnx::AttributeProto &attribute : node.attribute())
      trains |= attribute.name() == "training_mode" && attribute.i() != 0;
    if (!trains && opset >= 14)
      add(name,
          "a BatchNormalization with frozen statistics, " + kTraining.str());
    for (int i = 1; trains && i < node.output_size(); ++i)
      if (!node.output(i).empty() && !used.contains(node.output(i))) {
        add(name, "running statistics lead nowhere: training does not change "
                  "them");
        break;
      }
  }

  // "cross_entropy.default(args = (%x, %y, None, 1, -100, 0.1), ...)".
  void lostArguments(const onnx::NodeProto &node) {
    std::string call = metadataOf(node, "pkg.torch.onnx.fx_node");
    if (call.empty())
      return;
    StringRef text(call);
    for (StringRef argument : {"label_smoothing", "padding_idx"}) {
      auto [before, after] = text.split(argument);
      StringRef value = after.ltrim(" :=");
      if (after.empty() || value.starts_with("0.0") ||
          value.starts_with("None") || value.starts_with("-1"))
        continue;
      add(name, "the exporter dropped " + argument.str() + " of the call");
    }
    if (text.contains("cross_entropy") && lastNumber(text) > 0)
      add(name, "the exporter dropped label_smoothing of the call");
  }

  // The last positional argument if it is a number between 0 and 1.
  static double lastNumber(StringRef text) {
    StringRef arguments = text.split("args = (").second.split(')').first;
    double number = 0;
    if (arguments.count(',') < 5 ||
        arguments.rsplit(',').second.trim().getAsDouble(number))
      return 0;
    return number < 1 ? number : 0;
  }

  const OnnxFile &file;
  const onnx::GraphProto &graph;
  llvm::StringSet<> used;
  std::string name;
  int64_t opset = 1;
  std::vector<std::string> found;
};
} // namespace

std::vector<std::string> merak::exportTraps(const OnnxFile &file) {
  return Finder(file).run();
}

std::vector<std::string>
merak::exportAdvice(const std::vector<std::string> &findings) {
  bool folded = false, inference = false;
  for (const std::string &finding : findings) {
    folded |= StringRef(finding).contains(kUnfolded);
    inference |= StringRef(finding).contains(kTraining);
  }
  std::vector<std::string> advice;
  if (inference)
    advice.push_back("export after model.train(), with "
                     "training=TrainingMode.TRAINING (dynamo=False)");
  if (folded || inference)
    advice.push_back("export with do_constant_folding=False (dynamo=False) or "
                     "optimize=False (dynamo=True)");
  return advice;
}
