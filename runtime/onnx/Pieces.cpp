#include "runtime/onnx/Pieces.h"

#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/onnx/FoldedValues.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

namespace merak::runtime {
namespace {

namespace fs = std::filesystem;

void convertTo(int64_t type, planpb::DType dtype, uint64_t count,
               std::string &values, std::string &bytes) {
  if ((dtype == planpb::F32 && type == kFloat) ||
      (dtype == planpb::F64 && type == kDouble)) {
    bytes = std::move(values);
    return;
  }
  bytes.resize(count * sizeOf(type));
  for (uint64_t i = 0; i < count; ++i) {
    double value = 0;
    if (dtype == planpb::F64) {
      std::memcpy(&value, values.data() + 8 * i, 8);
    } else if (dtype == planpb::F32) {
      float narrow = 0;
      std::memcpy(&narrow, values.data() + 4 * i, 4);
      value = narrow;
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, values.data() + 2 * i, 2);
      value = dtype == planpb::BF16 ? bf16ToFloat(bits) : f16ToFloat(bits);
    }
    const float single = static_cast<float>(value);
    const uint16_t half =
        type == kBfloat16 ? floatToBf16(single) : floatToF16(single);
    char *to = bytes.data() + i * sizeOf(type);
    if (type == kDouble)
      std::memcpy(to, &value, 8);
    else if (type == kFloat)
      std::memcpy(to, &single, 4);
    else
      std::memcpy(to, &half, 2);
  }
}
// The trained values in the type of the initializer.
Status convert(const Piece &piece, TensorStore &store, std::string &bytes) {
  const StoredTensor *tensor = store.find(piece.parameter);
  const std::vector<int64_t> origin(tensor->shape.size(), 0);
  const layout::Box whole{origin, origin, tensor->shape};
  const uint64_t count = bytesOf(*tensor, kFloat) / sizeOf(kFloat);
  std::string values(count * dtypeSize(tensor->dtype), '\0');
  MERAK_RETURN_IF_ERROR(
      store.read(piece.parameter, whole, values.data(), tensor->shape));
  if (tensor->dtype == planpb::F32)
    applyFunctions(piece.functions, values);
  convertTo(piece.type, tensor->dtype, count, values, bytes);
  if (!piece.foldedTo.empty())
    bytes = moveElements(bytes, tensor->shape, piece.foldedTo,
                         piece.permutation, sizeOf(piece.type));
  return {};
}

} // namespace

uint64_t bytesOf(const StoredTensor &tensor, int64_t type) {
  uint64_t count = sizeOf(type);
  for (int64_t size : tensor.shape)
    count *= static_cast<uint64_t>(size);
  return count;
}

void addText(std::vector<Piece> &pieces, std::string text) {
  Piece piece;
  piece.size = text.size();
  piece.text = std::move(text);
  pieces.push_back(std::move(piece));
}
Status writePiece(std::ofstream &file, const Piece &piece, TensorStore &store) {
  if (!piece.parameter.empty()) {
    std::string bytes;
    MERAK_RETURN_IF_ERROR(convert(piece, store, bytes));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  } else if (!piece.mapped.empty()) {
    file.write(piece.mapped.data(),
               static_cast<std::streamsize>(piece.mapped.size()));
  } else {
    file.write(piece.text.data(),
               static_cast<std::streamsize>(piece.text.size()));
  }
  return {};
}
Status writeFile(const std::string &path,
                 const std::function<Status(std::ofstream &)> &body) {
  const std::string part = path + ".part";
  std::error_code error;
  Status status;
  {
    std::ofstream file(part, std::ios::binary);
    if (file)
      status = body(file);
    file.flush();
    if (status.ok() && !file)
      status = Status::error(fmt::format("{}: cannot be written", path));
  }
  if (status.ok()) {
    fs::rename(part, path, error);
    if (error)
      status = Status::error(
          fmt::format("{}: cannot be written: {}", path, error.message()));
  }
  if (!status.ok())
    fs::remove(part, error);
  return status;
}

} // namespace merak::runtime
