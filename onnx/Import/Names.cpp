#include "onnx/Import/Names.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/JSON.h"

using namespace merak;
using llvm::StringRef;

namespace {

// So many are listed; a hostile model may have a million.
constexpr size_t kMostListed = 8;

class NameChecker {
public:
  explicit NameChecker(std::vector<std::string> &errors) : errors(errors) {}

  void check(const onnx::ModelProto &model) {
    checkGraph(model.graph(), 0);
    for (const onnx::FunctionProto &function : model.functions()) {
      checkName("function", function.name());
      for (const onnx::NodeProto &node : function.node())
        checkNode(node, 0);
    }
    checkTwice(model.graph());
    if (bad > kMostListed)
      errors.push_back("and " + std::to_string(bad - kMostListed) +
                       " more such names");
  }

private:
  static bool isFine(StringRef name) {
    return llvm::none_of(
               name, [](unsigned char c) { return c < 0x20 || c == 0x7f; }) &&
           (llvm::isASCII(name) || llvm::json::isUTF8(name));
  }

  static std::string shown(StringRef name) {
    std::string text;
    for (unsigned char c : name.take_front(80))
      text += c >= 0x20 && c < 0x7f
                  ? std::string(1, static_cast<char>(c))
                  : "\\x" + llvm::utohexstr(c, /*LowerCase=*/true, 2);
    return text;
  }

  void checkName(const char *what, StringRef name) {
    if (isFine(name) || ++bad > kMostListed)
      return;
    errors.push_back(std::string(what) + " '" + shown(name) +
                     "': expected a name of printable UTF-8");
  }

  void checkNode(const onnx::NodeProto &node, int depth) {
    checkName("node", node.name());
    for (const std::string &output : node.output())
      checkName("value", output);
    if (depth >= kMostDepth)
      return;
    for (const onnx::AttributeProto &attribute : node.attribute()) {
      if (attribute.has_g())
        checkGraph(attribute.g(), depth + 1);
      for (const onnx::GraphProto &graph : attribute.graphs())
        checkGraph(graph, depth + 1);
    }
  }

  void checkGraph(const onnx::GraphProto &graph, int depth) {
    for (const onnx::ValueInfoProto &input : graph.input())
      checkName("input", input.name());
    for (const onnx::ValueInfoProto &output : graph.output())
      checkName("output", output.name());
    for (const onnx::TensorProto &tensor : graph.initializer()) {
      checkName("initializer", tensor.name());
      for (const auto &entry : tensor.external_data())
        checkName("external data", entry.value());
    }
    for (const onnx::NodeProto &node : graph.node())
      checkNode(node, depth);
  }

  void checkTwice(const onnx::GraphProto &graph) {
    llvm::StringSet<> outputs, made;
    for (const onnx::ValueInfoProto &output : graph.output())
      if (!outputs.insert(output.name()).second)
        errors.push_back("output '" + output.name() + "' is listed twice");
    for (const onnx::NodeProto &node : graph.node())
      for (const std::string &output : node.output())
        if (!output.empty() && !made.insert(output).second)
          errors.push_back("value '" + output + "' is made by two nodes");
  }

  static constexpr int kMostDepth = 64;
  std::vector<std::string> &errors;
  size_t bad = 0;
};

} // namespace

void merak::checkNames(const onnx::ModelProto &model,
                       std::vector<std::string> &errors) {
  NameChecker(errors).check(model);
}
