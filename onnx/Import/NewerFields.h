// Fields of ONNX messages that are newer than the installed headers (IR 10 and
// 11): properties that exporters attach, and multi-device configurations. They
// survive as unknown fields; here they are read by number.
#pragma once

#include "onnx/Import/OnnxFile.h"

#include <functional>
#include <map>

namespace merak {

// metadata_props of a node (field 9), a graph (16), a value (4) or a model.
std::map<std::string, std::string> propertiesOf(const onnx::NodeProto &node);
std::map<std::string, std::string> propertiesOf(const onnx::GraphProto &graph);
std::map<std::string, std::string>
propertiesOf(const onnx::ValueInfoProto &value);
std::map<std::string, std::string> propertiesOf(const onnx::ModelProto &model);

// Calls `visit` with the bytes of each message held in a field, whether the
// headers know the field or not.
void eachMessage(const google::protobuf::Message &message, int field,
                 const std::function<void(const std::string &)> &visit);

// One step of reading a message of which no header is there: its fields.
struct WireField {
  int number = 0;
  bool isBytes = false;
  uint64_t value = 0; // of a number
  std::string bytes;  // of a string or message
};
// Empty for what is no message. Packed lists of numbers are bytes.
std::vector<WireField> readFields(const std::string &bytes);

} // namespace merak
