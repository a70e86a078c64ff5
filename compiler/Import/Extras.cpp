#include "compiler/Import/Extras.h"

#include "google/protobuf/unknown_field_set.h"
#include "llvm/ADT/StringRef.h"

using namespace merak;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using llvm::StringRef;

void merak::eachMessage(const google::protobuf::Message &message, int field,
                        const std::function<void(const std::string &)> &visit) {
  const auto *reflection = message.GetReflection();
  if (const auto *known = message.GetDescriptor()->FindFieldByNumber(field)) {
    for (int i = 0;
         known->is_repeated() && i < reflection->FieldSize(message, known); ++i)
      visit(reflection->GetRepeatedMessage(message, known, i)
                .SerializePartialAsString());
    return;
  }
  const UnknownFieldSet &unknown = reflection->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i)
    if (unknown.field(i).number() == field &&
        unknown.field(i).type() == UnknownField::TYPE_LENGTH_DELIMITED)
      visit(unknown.field(i).length_delimited());
}

std::vector<WireField> merak::readFields(const std::string &bytes) {
  UnknownFieldSet set;
  std::vector<WireField> fields;
  if (!set.ParseFromString(bytes))
    return fields;
  for (int i = 0; i < set.field_count(); ++i) {
    const UnknownField &field = set.field(i);
    WireField &read = fields.emplace_back();
    read.number = field.number();
    if (field.type() == UnknownField::TYPE_LENGTH_DELIMITED) {
      read.isBytes = true;
      read.bytes = field.length_delimited();
    } else if (field.type() == UnknownField::TYPE_VARINT) {
      read.value = field.varint();
    }
  }
  return fields;
}

static std::map<std::string, std::string>
properties(const google::protobuf::Message &message, int number) {
  std::map<std::string, std::string> found;
  eachMessage(message, number, [&](const std::string &bytes) {
    std::string key, value;
    for (const WireField &field : readFields(bytes))
      if (field.isBytes)
        (field.number == 1 ? key : value) = field.bytes;
    found[key] = value;
  });
  return found;
}

std::map<std::string, std::string>
merak::propertiesOf(const onnx::NodeProto &node) {
  return properties(node, 9);
}

std::map<std::string, std::string>
merak::propertiesOf(const onnx::GraphProto &graph) {
  return properties(graph, 16);
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
  StringRef list = after.split("(args = (").second;
  std::string argument;
  int depth = 0;
  for (char c : list) {
    if (c == '(' || c == '[' || c == '{')
      ++depth;
    if (c == ')' || c == ']' || c == '}')
      --depth;
    if (depth < 0 || (depth == 0 && c == ',')) {
      if (StringRef trimmed = StringRef(argument).trim(); !trimmed.empty())
        call.arguments.push_back(trimmed.str());
      argument.clear();
      if (depth < 0)
        break;
      continue;
    }
    argument += c;
  }
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

// Targets of the inputs of one kind: "p_w: PARAMETER target='w'".
static std::vector<std::string> exportedTargets(const onnx::GraphProto &graph,
                                                StringRef kind) {
  std::vector<std::string> names;
  const auto found = propertiesOf(graph);
  const auto text =
      found.find("pkg.torch.export.ExportedProgram.graph_signature");
  if (text == found.end())
    return names;
  llvm::SmallVector<StringRef> lines;
  StringRef(text->second).split(lines, '\n');
  const std::string mark = (": " + kind + " target='").str();
  for (StringRef line : lines)
    if (auto [before, after] = line.split(mark); !after.empty())
      names.push_back(after.split('\'').first.str());
  return names;
}

std::vector<std::string>
merak::exportedParameters(const onnx::GraphProto &graph) {
  return exportedTargets(graph, "PARAMETER");
}

std::vector<std::string> merak::exportedBuffers(const onnx::GraphProto &graph) {
  return exportedTargets(graph, "BUFFER");
}
