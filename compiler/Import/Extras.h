// Fields of ONNX messages that are newer than the installed headers (IR 10 and
// 11): properties that exporters attach, and multi-device configurations. They
// survive as unknown fields; here they are read by number.
#pragma once

#include "compiler/Import/OnnxFile.h"

#include <functional>
#include <map>

namespace merak {

// metadata_props of a node (field 9) or of a graph (field 16).
std::map<std::string, std::string> propertiesOf(const onnx::NodeProto &node);
std::map<std::string, std::string> propertiesOf(const onnx::GraphProto &graph);

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

// Arguments of the call that a dynamo export notes at a node:
// "... call_function[target=torch.ops.aten.embedding.default](args = (%w, %i,
// 0), kwargs = {})" gives "embedding" and {"%w", "%i", "0"}. Empty name: none.
struct ExportedCall {
  std::string name;
  std::vector<std::string> arguments;
};
ExportedCall exportedCall(const onnx::NodeProto &node);

// The module of a dynamo export's node, "model.h.0.ln_1"; empty: none.
std::string moduleOf(const onnx::NodeProto &node);

// Names of all parameters that a dynamo export notes, also of those that it
// merged away. Empty without such a note.
std::vector<std::string> exportedParameters(const onnx::GraphProto &graph);
// Names of the module's buffers that it notes: tables and statistics.
std::vector<std::string> exportedBuffers(const onnx::GraphProto &graph);

} // namespace merak
