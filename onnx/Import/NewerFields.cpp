#include "onnx/Import/NewerFields.h"

#include "google/protobuf/unknown_field_set.h"

using namespace merak;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

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

std::map<std::string, std::string>
merak::propertiesOf(const onnx::ValueInfoProto &value) {
  return properties(value, 4);
}

std::map<std::string, std::string>
merak::propertiesOf(const onnx::ModelProto &model) {
  return properties(model, 14);
}
