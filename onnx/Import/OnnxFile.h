// A model file: the protobuf without the bytes of its initializers, which stay
// in the mapped file (or in external files) and are found by offset. Memory
// follows the size of the graph, never the size of the weights.
#pragma once

// Debian's ONNX headers want these.
#ifndef ONNX_NAMESPACE
#define ONNX_NAMESPACE onnx
#endif
#ifndef ONNX_ML
#define ONNX_ML 1
#endif
#include "onnx/onnx_pb.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MemoryBuffer.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace merak {

// Bytes of one element of an ONNX element type, 0 if unknown or not whole
// bytes.
size_t onnxElementSize(int dataType);
// "f32", "bool" ...; the code in words for unknown types.
std::string onnxElementName(int dataType);

// One initializer: little endian, row major.
struct OnnxTensor {
  std::string name;
  int dataType = 0;
  llvm::SmallVector<int64_t> dims;
  // Where the bytes lie: a path relative to the model's folder. Without a path
  // they are in `owned` (text form, or an encoding that had to be decoded).
  std::string path;
  uint64_t offset = 0, length = 0;
  std::string owned;
  bool absent = false; // the external file is not there

  int64_t elements() const;
};

class OnnxFile {
public:
  // Null after appending one sentence a problem. `training`: the graph is the
  // model's joined with that of its training algorithm, if it has one.
  static std::unique_ptr<OnnxFile> open(const std::string &path,
                                        std::vector<std::string> &errors,
                                        bool training = false);

  const onnx::ModelProto &model() const { return proto; }
  const std::vector<OnnxTensor> &initializers() const { return tensors; }
  const std::string &fileName() const { return name; }

  // For what puts a graph right before it is imported. Pointers to
  // initializers are invalid after one was added or removed.
  onnx::GraphProto &mutableGraph() { return *proto.mutable_graph(); }
  void addInitializer(OnnxTensor tensor);
  void removeInitializer(llvm::StringRef name);

  // The bytes, or nothing if they are absent; the file stays mapped.
  std::optional<llvm::StringRef> bytes(const OnnxTensor &tensor);

private:
  bool readBinary(std::vector<std::string> &errors);
  bool readText(std::vector<std::string> &errors);
  void resolve(size_t index, std::vector<std::string> &errors);
  void resolveExternal(const onnx::TensorProto &proto, OnnxTensor &tensor,
                       std::vector<std::string> &errors);
  llvm::MemoryBuffer *map(const std::string &path);

  std::string path, folder, name;
  std::unique_ptr<llvm::MemoryBuffer> buffer;
  llvm::StringMap<std::unique_ptr<llvm::MemoryBuffer>> externals;
  onnx::ModelProto proto;
  std::vector<OnnxTensor> tensors;

  // What the scan left out of the protobuf, one entry an initializer.
  struct Bulk {
    int field = 0; // 9 raw_data, 4 float_data, 10 double_data, 0 nothing
    uint64_t offset = 0, length = 0;
  };
  std::vector<Bulk> bulk;
};

// An initializer held by a node (Constant) rather than by the graph.
bool decodeTensor(const onnx::TensorProto &proto, OnnxTensor &tensor,
                  std::string &error);

} // namespace merak
