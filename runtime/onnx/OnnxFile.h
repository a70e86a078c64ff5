// An ONNX model as it lies in its file: fields of the graph, what is known of
// its initializers, names of its values. Nothing is copied but names.
#pragma once

#include "runtime/core/MappedFile.h"
#include "runtime/core/Status.h"
#include "support/WireFormat.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace merak::runtime {

// Field numbers of onnx.proto.
inline constexpr uint32_t kModelGraph = 7;
inline constexpr uint32_t kGraphNode = 1, kGraphInitializer = 5;
inline constexpr uint32_t kNodeInput = 1, kNodeOutput = 2, kNodeType = 4;
inline constexpr uint32_t kDims = 1, kType = 2, kName = 8, kRaw = 9;
inline constexpr uint32_t kExternal = 13, kLocation = 14;

// Codes of TensorProto.DataType.
enum OnnxType { kFloat = 1, kFloat16 = 10, kDouble = 11, kBfloat16 = 16 };

// Bytes of an element; 0: no float type.
uint64_t sizeOf(int64_t type);

struct Initializer {
  std::string name;
  int64_t type = 0;
  std::vector<int64_t> dims;
  std::vector<wire::Field> fields;
  std::string head; // in place of fields, of a new one
  bool external = false;
  std::string location;
  uint64_t offset = 0, length = 0;
};

// Fields of an initializer that the file does not have.
Initializer newInitializer(int64_t type, const std::vector<int64_t> &dims);

struct OnnxFile {
  std::string path;
  std::shared_ptr<MappedFile> file;
  std::vector<wire::Field> fields, graph; // of the model, of its graph
  std::vector<Initializer> initializers;  // in the order of the graph
  std::set<std::string> names;            // of initializers
  std::set<std::string> values;           // what nodes make

  Status fail(const std::string &what) const;
  // Finds the rest in `file`.
  Status read();

private:
  Status readInitializer(const wire::Field &field, Initializer &out) const;
};

} // namespace merak::runtime
