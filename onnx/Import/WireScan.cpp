#include "onnx/Import/WireScan.h"

#include "support/WireFormat.h"

#include <onnx/onnx_pb.h>

using namespace merak;

// Calls visit(field) until it returns false.
template <typename Visit>
bool WireScan::forEachField(std::string_view message, Visit &&visit) {
  wire::Reader reader(message);
  for (wire::Field field; reader.next(field);)
    if (!visit(field))
      return false;
  if (reader.damaged())
    at = reader.position();
  return !reader.damaged();
}

static bool isMessage(const wire::Field &field, int number) {
  return field.number == static_cast<uint32_t>(number) &&
         field.type == wire::kBytes;
}

bool WireScan::stripModel(std::string &out, std::vector<WireBulk> &found) {
  return forEachField({data.data(), data.size()}, [&](const wire::Field &part) {
    if (!isMessage(part, onnx::ModelProto::kGraphFieldNumber)) {
      out += part.whole;
      return true;
    }
    std::string graph;
    if (!stripGraph(part.bytes, graph, found))
      return false;
    wire::putBytes(out, part.number, graph);
    return true;
  });
}

bool WireScan::stripGraph(std::string_view graph, std::string &out,
                          std::vector<WireBulk> &found) {
  return forEachField(graph, [&](const wire::Field &part) {
    if (!isMessage(part, onnx::GraphProto::kInitializerFieldNumber)) {
      out += part.whole;
      return true;
    }
    std::string tensor;
    found.emplace_back();
    if (!stripTensor(part.bytes, tensor, found.back()))
      return false;
    wire::putBytes(out, part.number, tensor);
    return true;
  });
}

static bool isBulk(const wire::Field &field) {
  return isMessage(field, onnx::TensorProto::kRawDataFieldNumber) ||
         isMessage(field, onnx::TensorProto::kFloatDataFieldNumber) ||
         isMessage(field, onnx::TensorProto::kDoubleDataFieldNumber);
}

bool WireScan::stripTensor(std::string_view tensor, std::string &out,
                           WireBulk &found) {
  std::vector<wire::Field> bulk;
  if (!forEachField(tensor, [&](const wire::Field &part) {
        if (isBulk(part))
          bulk.push_back(part);
        else
          out += part.whole;
        return true;
      }))
    return false;
  // A packed field in several pieces, or beside other data, is left to
  // protobuf.
  if (bulk.size() == 1) {
    found = {static_cast<int>(bulk[0].number),
             static_cast<uint64_t>(bulk[0].bytes.data() - data.data()),
             bulk[0].bytes.size()};
    return true;
  }
  for (const wire::Field &piece : bulk)
    out += piece.whole;
  return true;
}
