#include "onnx/Import/OnnxFile.h"

#include "onnx/Import/InlineFunctions.h"
#include "onnx/Import/Names.h"
#include "onnx/Import/TrainingInfo.h"
#include "onnx/Import/WireScan.h"

#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cstring>

using namespace merak;
using llvm::StringRef;

namespace sys = llvm::sys;

size_t merak::onnxElementSize(int dataType) {
  switch (dataType) {
  case onnx::TensorProto::UINT8:
  case onnx::TensorProto::INT8:
  case onnx::TensorProto::BOOL:
    return 1;
  case onnx::TensorProto::UINT16:
  case onnx::TensorProto::INT16:
  case onnx::TensorProto::FLOAT16:
  case onnx::TensorProto::BFLOAT16:
    return 2;
  case onnx::TensorProto::FLOAT:
  case onnx::TensorProto::INT32:
  case onnx::TensorProto::UINT32:
    return 4;
  case onnx::TensorProto::DOUBLE:
  case onnx::TensorProto::INT64:
  case onnx::TensorProto::UINT64:
    return 8;
  default:
    return 0;
  }
}

std::string merak::onnxElementName(int dataType) {
  static const char *const kNames[] = {
      "undefined", "f32", "ui8", "i8",   "ui16", "i16", "i32",  "i64", "string",
      "bool",      "f16", "f64", "ui32", "ui64", "c64", "c128", "bf16"};
  if (dataType >= 0 && dataType < static_cast<int>(std::size(kNames)))
    return kNames[dataType];
  return "type code " + std::to_string(dataType);
}

int64_t OnnxTensor::elements() const {
  int64_t count = 1;
  for (int64_t dim : dims)
    count *= dim;
  return count;
}

// Dimensions of a tensor, checked so that products stay inside 64 bits.
static bool checkDims(const onnx::TensorProto &proto, OnnxTensor &tensor,
                      std::string &error) {
  int64_t count = 1;
  for (int64_t dim : proto.dims()) {
    if (dim < 0 || (dim && count > (int64_t(1) << 48) / dim)) {
      error = "expected sizes of dimensions, found " + std::to_string(dim);
      return false;
    }
    count *= dim;
    tensor.dims.push_back(dim);
  }
  tensor.name = proto.name();
  tensor.dataType = proto.data_type();
  if (!onnxElementSize(tensor.dataType)) {
    error = "unsupported element type " + onnxElementName(tensor.dataType);
    return false;
  }
  return true;
}

static std::string wrongSize(const OnnxTensor &tensor, uint64_t found) {
  std::string shape;
  for (int64_t dim : tensor.dims)
    shape.append(shape.empty() ? "" : ",").append(std::to_string(dim));
  return "expected " +
         std::to_string(tensor.elements() * onnxElementSize(tensor.dataType)) +
         " bytes for " + onnxElementName(tensor.dataType) + "[" + shape +
         "], found " + std::to_string(found);
}

template <typename To, typename Field>
static void append(std::string &out, const Field &values) {
  for (auto value : values) {
    To narrow = static_cast<To>(value);
    out.append(reinterpret_cast<const char *>(&narrow), sizeof(To));
  }
}

// Decodes what protobuf holds in a typed field.
static void decodeTyped(const onnx::TensorProto &proto, OnnxTensor &tensor) {
  switch (onnxElementSize(tensor.dataType)) {
  case 1:
    return append<uint8_t>(tensor.owned, proto.int32_data());
  case 2:
    return append<uint16_t>(tensor.owned, proto.int32_data());
  case 4:
    if (tensor.dataType == onnx::TensorProto::FLOAT)
      return append<float>(tensor.owned, proto.float_data());
    if (tensor.dataType == onnx::TensorProto::UINT32)
      return append<uint32_t>(tensor.owned, proto.uint64_data());
    return append<int32_t>(tensor.owned, proto.int32_data());
  default:
    if (tensor.dataType == onnx::TensorProto::DOUBLE)
      return append<double>(tensor.owned, proto.double_data());
    if (tensor.dataType == onnx::TensorProto::UINT64)
      return append<uint64_t>(tensor.owned, proto.uint64_data());
    return append<int64_t>(tensor.owned, proto.int64_data());
  }
}

// Encodings that are not the bytes themselves are decoded, up to this size.
static constexpr uint64_t kMaxDecoded = uint64_t(64) << 20;

bool merak::decodeTensor(const onnx::TensorProto &proto, OnnxTensor &tensor,
                         std::string &error) {
  if (!checkDims(proto, tensor, error))
    return false;
  uint64_t expected = tensor.elements() * onnxElementSize(tensor.dataType);
  if (proto.has_raw_data()) {
    tensor.owned = proto.raw_data();
  } else {
    if (expected > kMaxDecoded) {
      error = "expected raw_data for a tensor of this size, found a typed "
              "field";
      return false;
    }
    decodeTyped(proto, tensor);
  }
  if (tensor.owned.size() != expected) {
    error = wrongSize(tensor, tensor.owned.size());
    return false;
  }
  tensor.length = expected;
  return true;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

// Text has no control bytes; a binary model starts with field 1 (0x08).
static bool looksLikeText(StringRef path, StringRef data) {
  for (const char *suffix : {".textproto", ".pbtxt", ".onnxtxt", ".prototxt"})
    if (path.ends_with(suffix))
      return true;
  StringRef head = data.take_front(256).ltrim();
  if (head.empty() || !(llvm::isAlpha(head[0]) || head[0] == '#'))
    return false;
  for (char c : data.take_front(256))
    if (!llvm::isPrint(c) && !llvm::isSpace(c))
      return false;
  return head[0] == '#' || head.contains(':') || head.contains('{');
}

std::unique_ptr<OnnxFile> OnnxFile::open(const std::string &path,
                                         std::vector<std::string> &errors,
                                         bool training) {
  auto file = std::make_unique<OnnxFile>();
  file->path = path;
  file->folder = sys::path::parent_path(path).str();
  file->name = sys::path::filename(path).str();
  sys::fs::file_status status;
  if (!sys::fs::status(path, status) && !sys::fs::is_regular_file(status)) {
    errors.push_back("cannot read the model: expected a file, found something "
                     "else");
    return nullptr;
  }
  auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/false,
                                            /*RequiresNullTerminator=*/false);
  if (!buffer) {
    errors.push_back("cannot read the model: " + buffer.getError().message());
    return nullptr;
  }
  file->buffer = std::move(*buffer);
  bool isText = looksLikeText(path, file->buffer->getBuffer());
  if (!(isText ? file->readText(errors) : file->readBinary(errors)))
    return nullptr;
  if (!file->proto.has_graph()) {
    errors.push_back("expected an ONNX model, found no graph");
    return nullptr;
  }
  const onnx::GraphProto &graph = file->proto.graph();
  if (graph.sparse_initializer_size())
    errors.push_back("unsupported sparse initializer '" +
                     graph.sparse_initializer(0).values().name() + "'");
  const size_t before = errors.size();
  checkNames(file->proto, errors);
  if (errors.size() > before)
    return nullptr; // what follows takes them as they are
  file->bulk.resize(graph.initializer_size());
  if (training)
    for (int index : joinTraining(file->proto, errors))
      if (static_cast<size_t>(index) < file->bulk.size())
        file->bulk[index] = {}; // its bytes are in the protobuf now
  nameGradientOperands(*file->proto.mutable_graph());
  file->bulk.resize(graph.initializer_size());
  file->tensors.resize(graph.initializer_size());
  inlineFunctions(file->proto, errors);
  for (int i = 0; i < graph.initializer_size(); ++i)
    file->resolve(i, errors);
  return errors.size() == before && !graph.sparse_initializer_size()
             ? std::move(file)
             : nullptr;
}

bool OnnxFile::readBinary(std::vector<std::string> &errors) {
  StringRef data = buffer->getBuffer();
  std::string stripped;
  std::vector<WireBulk> found;
  WireScan scan(data);
  if (!scan.stripModel(stripped, found)) {
    errors.push_back("expected an ONNX model, found damaged or foreign data at "
                     "byte " +
                     std::to_string(scan.errorOffset()) + " of " +
                     std::to_string(data.size()));
    return false;
  }
  for (const WireBulk &entry : found)
    bulk.push_back({entry.field, entry.offset, entry.length});
  if (stripped.size() > size_t(INT32_MAX) ||
      !proto.ParsePartialFromArray(stripped.data(),
                                   static_cast<int>(stripped.size()))) {
    errors.push_back("expected an ONNX model, found data that is not one");
    return false;
  }
  return true;
}

namespace {
struct TextErrors : google::protobuf::io::ErrorCollector {
  std::string first;
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string &message) override {
    if (first.empty())
      first = "line " + std::to_string(line + 1) + ", column " +
              std::to_string(column + 1) + ": " + message;
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber,
                  const std::string &) override {}
};
} // namespace

bool OnnxFile::readText(std::vector<std::string> &errors) {
  StringRef data = buffer->getBuffer();
  TextErrors collector;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.SetRecursionLimit(64);
  parser.AllowPartialMessage(true);
  if (data.size() > size_t(INT32_MAX) ||
      !parser.ParseFromString(data.str(), &proto)) {
    errors.push_back("expected an ONNX model in text form: " +
                     (collector.first.empty() ? "too large" : collector.first));
    return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Initializers
//===----------------------------------------------------------------------===//

void OnnxFile::resolve(size_t index, std::vector<std::string> &errors) {
  const onnx::TensorProto &proto = this->proto.graph().initializer(index);
  OnnxTensor &tensor = tensors[index];
  auto fail = [&](const std::string &message) {
    errors.push_back("initializer '" + proto.name() + "': " + message);
  };
  std::string error;
  if (proto.name().empty())
    return fail("expected a name");
  if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
    if (!checkDims(proto, tensor, error))
      return fail(error);
    return resolveExternal(proto, tensor, errors);
  }
  const Bulk &where = bulk[index];
  bool isBytes =
      where.field == 9 ||
      (where.field == 4 && proto.data_type() == onnx::TensorProto::FLOAT) ||
      (where.field == 10 && proto.data_type() == onnx::TensorProto::DOUBLE);
  if (!isBytes) {
    if (!decodeTensor(proto, tensor, error))
      fail(error);
    return;
  }
  if (!checkDims(proto, tensor, error))
    return fail(error);
  if (where.length != tensor.elements() * onnxElementSize(tensor.dataType))
    return fail(wrongSize(tensor, where.length));
  tensor.path = name;
  tensor.offset = where.offset;
  tensor.length = where.length;
}

void OnnxFile::resolveExternal(const onnx::TensorProto &proto,
                               OnnxTensor &tensor,
                               std::vector<std::string> &errors) {
  auto fail = [&](const std::string &message) {
    errors.push_back("initializer '" + proto.name() + "': " + message);
  };
  uint64_t expected = tensor.elements() * onnxElementSize(tensor.dataType);
  tensor.length = expected;
  for (const auto &entry : proto.external_data()) {
    bool bad = false;
    if (entry.key() == "location")
      tensor.path = entry.value();
    else if (entry.key() == "offset")
      bad = StringRef(entry.value()).getAsInteger(10, tensor.offset);
    else if (entry.key() == "length")
      bad = StringRef(entry.value()).getAsInteger(10, tensor.length);
    if (bad)
      return fail("expected a number as external " + entry.key() + ", found '" +
                  entry.value() + "'");
  }
  if (tensor.path.empty())
    return fail("expected the location of its external data");
  // A model may only name files below its own folder.
  if (sys::path::is_absolute(tensor.path))
    return fail("expected a relative path of external data, found '" +
                tensor.path + "'");
  llvm::SmallString<128> full(folder);
  for (auto it = sys::path::begin(tensor.path),
            end = sys::path::end(tensor.path);
       it != end; ++it) {
    if (*it == "..")
      return fail("expected external data below the model's folder, found '" +
                  tensor.path + "'");
    sys::path::append(full, *it);
    if (sys::fs::is_symlink_file(full.str()))
      return fail("expected external data that is no link, found '" +
                  tensor.path + "'");
  }
  if (tensor.length != expected)
    return fail(wrongSize(tensor, tensor.length));
  sys::fs::file_status status;
  if (sys::fs::status(full.str(), status)) {
    tensor.absent = true;
    return;
  }
  if (!sys::fs::is_regular_file(status))
    return fail("expected external data in a file, found that '" + tensor.path +
                "' is none");
  const uint64_t size = status.getSize();
  if (tensor.offset > size || tensor.length > size - tensor.offset)
    fail("expected " + std::to_string(tensor.length) + " bytes at " +
         std::to_string(tensor.offset) + " of '" + tensor.path +
         "', found a file of " + std::to_string(size));
}

llvm::MemoryBuffer *OnnxFile::map(const std::string &relative) {
  if (relative == name)
    return buffer.get();
  auto &entry = externals[relative];
  if (!entry) {
    llvm::SmallString<128> full(folder);
    sys::path::append(full, relative);
    auto file = llvm::MemoryBuffer::getFile(full, false, false);
    if (!file)
      return nullptr;
    entry = std::move(*file);
  }
  return entry.get();
}

std::optional<StringRef> OnnxFile::bytes(const OnnxTensor &tensor) {
  if (tensor.path.empty())
    return StringRef(tensor.owned);
  llvm::MemoryBuffer *file = tensor.absent ? nullptr : map(tensor.path);
  if (!file || tensor.offset + tensor.length > file->getBufferSize())
    return std::nullopt;
  return file->getBuffer().substr(tensor.offset, tensor.length);
}

void OnnxFile::addInitializer(OnnxTensor tensor) {
  onnx::TensorProto &shown = *proto.mutable_graph()->add_initializer();
  shown.set_name(tensor.name);
  shown.set_data_type(tensor.dataType);
  for (int64_t dim : tensor.dims)
    shown.add_dims(dim);
  tensors.push_back(std::move(tensor));
}

void OnnxFile::removeInitializer(StringRef name) {
  llvm::erase_if(tensors,
                 [&](const OnnxTensor &tensor) { return tensor.name == name; });
  auto &list = *proto.mutable_graph()->mutable_initializer();
  for (int i = list.size() - 1; i >= 0; --i)
    if (list.Get(i).name() == name)
      list.DeleteSubrange(i, 1);
}
