#include "onnx/Import/ExportedProgram.h"

#include "onnx/Import/FoldedFunctions.h"
#include "onnx/Import/NewerFields.h"

#include <cctype>

using namespace merak;
using llvm::StringRef;

StringRef merak::functionOf(StringRef value) {
  StringRef stem = value.rtrim("0123456789");
  if (stem.size() < value.size() && stem.ends_with("_") && stem.size() > 1)
    return stem.drop_back();
  return value;
}

static bool isNameChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

std::vector<std::string> merak::valuesIn(StringRef text) {
  std::vector<std::string> names;
  for (size_t at = text.find('%'); at != StringRef::npos;
       at = text.find('%', at + 1)) {
    StringRef name = text.drop_front(at + 1).take_while(isNameChar);
    if (!name.empty())
      names.push_back(name.str());
  }
  return names;
}

// The arguments of "args = (a, [b, c]), ...", split at its own commas.
static std::vector<std::string> splitArguments(StringRef list) {
  std::vector<std::string> arguments;
  std::string argument;
  int depth = 0;
  for (char c : list) {
    if (c == '(' || c == '[' || c == '{')
      ++depth;
    if (c == ')' || c == ']' || c == '}')
      --depth;
    if (depth < 0 || (depth == 0 && c == ',')) {
      if (StringRef trimmed = StringRef(argument).trim(); !trimmed.empty())
        arguments.push_back(trimmed.str());
      argument.clear();
      if (depth < 0)
        break;
      continue;
    }
    argument += c;
  }
  return arguments;
}

ExportedCall merak::exportedCall(const onnx::NodeProto &node) {
  ExportedCall call;
  const auto found = propertiesOf(node);
  const auto text = found.find("pkg.torch.onnx.fx_node");
  if (text == found.end())
    return call;
  auto [before, after] = StringRef(text->second).split("target=");
  StringRef target = after.take_until([](char c) { return c == ']'; });
  // "torch.ops.aten.embedding.default" or "aten.embedding.default".
  if (!target.consume_front("torch.ops.aten.") &&
      !target.consume_front("aten."))
    return call;
  call.name = target.split('.').first.str();
  if (before.consume_front("%"))
    call.result = before.take_while(isNameChar).str();
  StringRef list = after.split("(args = (").second;
  call.arguments = splitArguments(list);
  call.operands = valuesIn(list);
  return call;
}

std::string merak::moduleOf(const onnx::NodeProto &node) {
  const auto found = propertiesOf(node);
  const auto text = found.find("pkg.torch.onnx.name_scopes");
  if (text == found.end())
    return "";
  // "['', 'model', 'model.h.0', 'add']": the last entry is the node itself.
  llvm::SmallVector<StringRef> parts;
  StringRef(text->second).split(parts, '\'');
  return parts.size() >= 5 ? parts[parts.size() - 4].str() : "";
}

// Lines such as "p_w: PARAMETER target='w'".
void ExportedProgram::readSignature(StringRef text) {
  llvm::SmallVector<StringRef> lines;
  text.split(lines, '\n');
  for (StringRef line : lines) {
    auto [operand, rest] = line.split(": ");
    values.insert(operand); // inputs may have other names in the graph
    auto [kind, quoted] = rest.split(" target='");
    StringRef target = quoted.split('\'').first;
    if (target.empty())
      continue;
    if (kind == "PARAMETER") {
      parameterNames.push_back(target.str());
      parameterSet.insert(target);
    } else if (kind == "BUFFER") {
      bufferNames.push_back(target.str());
    } else if (kind != "CONSTANT_TENSOR") {
      continue;
    }
    targets[operand] = target.str();
  }
}

ExportedProgram::ExportedProgram(const onnx::GraphProto &graph) {
  const auto notes = propertiesOf(graph);
  const auto text =
      notes.find("pkg.torch.export.ExportedProgram.graph_signature");
  if (text == notes.end())
    return;
  known = true;
  readSignature(text->second);
  for (const onnx::ValueInfoProto &value : graph.value_info()) {
    const auto properties = propertiesOf(value);
    const auto from = properties.find("pkg.onnxscript.optimizer.folded_from");
    if (from == properties.end())
      continue;
    optimized = true;
    llvm::SmallVector<StringRef> quoted; // "['a', 'b']"
    StringRef(from->second).split(quoted, '\'');
    std::vector<std::string> &names = folded[value.name()];
    for (size_t i = 1; i < quoted.size(); i += 2) {
      names.push_back(quoted[i].str());
      values.insert(quoted[i]);
    }
  }
  for (const onnx::ValueInfoProto &input : graph.input())
    values.insert(input.name());
  llvm::StringSet<> named;
  for (const auto &target : targets)
    named.insert(target.second);
  // Without the optimizer constants are nodes.
  for (const onnx::TensorProto &tensor : graph.initializer()) {
    values.insert(tensor.name());
    optimized |= !named.contains(tensor.name());
  }
  for (const onnx::NodeProto &node : graph.node()) {
    for (const std::string &output : node.output())
      values.insert(output);
    ExportedCall call = exportedCall(node);
    if (!call.result.empty())
      values.insert(call.result);
    optimized |= propertiesOf(node).count("pkg.onnxscript.rewriter.rule_name");
  }
}

ExportedCall ExportedProgram::callOf(const onnx::NodeProto &node) const {
  ExportedCall call = exportedCall(node);
  const std::string module = call.name.empty() ? moduleOf(node) : "";
  return module.empty() ? call : callOfModule(module);
}

ExportedCall ExportedProgram::callOfModule(StringRef module) const {
  ExportedCall call;
  call.name = "module";
  for (const auto &target : targets)
    if (isParameter(target.second) &&
        StringRef(target.second).rsplit('.').first == module)
      call.operands.push_back(target.first().str());
  llvm::sort(call.operands);
  return call;
}

std::vector<std::string>
ExportedProgram::parametersOf(const ExportedCall &call) const {
  std::vector<std::string> names;
  for (const std::string &operand : call.operands)
    if (auto target = targets.find(operand);
        target != targets.end() && isParameter(target->second))
      names.push_back(target->second);
  return names;
}

const std::vector<std::string> *
ExportedProgram::foldedFrom(StringRef name) const {
  auto found = folded.find(name);
  return found == folded.end() ? nullptr : &found->second;
}

bool ExportedProgram::resolves(StringRef operand) const {
  return values.contains(operand) || targets.count(operand);
}

std::vector<std::string> ExportedProgram::unresolved(const ExportedCall &call,
                                                     bool viewsToo) const {
  std::vector<std::string> names;
  for (const std::string &operand : call.operands)
    if (!resolves(operand) && (viewsToo || !isView(functionOf(operand))))
      names.push_back(operand);
  return names;
}

std::vector<std::string>
ExportedProgram::removedCalls(const onnx::GraphProto &graph) const {
  llvm::StringSet<> seen;
  std::vector<std::string> names;
  for (const onnx::NodeProto &node : graph.node())
    for (const std::string &name : unresolved(exportedCall(node)))
      if (seen.insert(name).second)
        names.push_back(name);
  return names;
}
