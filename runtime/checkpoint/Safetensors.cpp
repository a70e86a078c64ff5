#include "runtime/checkpoint/Safetensors.h"

#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unistd.h>

namespace merak::runtime {

using Json = nlohmann::ordered_json;

namespace {

int64_t byteSize(planpb::DType dtype, const std::vector<int64_t> &shape) {
  int64_t bytes = dtypeSize(dtype);
  for (int64_t size : shape)
    bytes *= size;
  return bytes;
}

// One header entry; false with a reason if it is malformed.
bool parseEntry(const Json &json, uint64_t dataBytes, const char *data,
                SafetensorsEntry &entry, std::string &why) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets") || !json["dtype"].is_string() ||
      !json["shape"].is_array() || !json["data_offsets"].is_array() ||
      json["data_offsets"].size() != 2) {
    why = "has no dtype, shape and data_offsets";
    return false;
  }
  entry.dtype = parseSafetensorsName(json["dtype"].get<std::string>());
  if (entry.dtype == planpb::DTYPE_INVALID) {
    why = fmt::format("has the unsupported type \"{}\"",
                      json["dtype"].get<std::string>());
    return false;
  }
  uint64_t expected = dtypeSize(entry.dtype);
  for (const Json &size : json["shape"]) {
    if (!size.is_number_unsigned() ||
        __builtin_mul_overflow(expected, size.get<uint64_t>(), &expected)) {
      why = "has no valid shape";
      return false;
    }
    entry.shape.push_back(size.get<int64_t>());
  }
  const Json &offsets = json["data_offsets"];
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    why = "has no valid data_offsets";
    return false;
  }
  const uint64_t begin = offsets[0], end = offsets[1];
  if (begin > end || end > dataBytes || end - begin != expected) {
    why = fmt::format("lies at bytes {}..{} of {}, expected {} bytes", begin,
                      end, dataBytes, expected);
    return false;
  }
  entry.data = data + begin;
  return true;
}

} // namespace

Result<SafetensorsFile> openSafetensors(const std::string &path) {
  auto mapped = MappedFile::open(path);
  if (!mapped)
    return mapped.status();
  SafetensorsFile result;
  result.file = *mapped;
  const uint64_t size = result.file->size();
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format("\"{}\": {}", path, what));
  };
  uint64_t length = 0;
  if (size >= 8)
    std::memcpy(&length, result.file->data(), 8);
  if (size < 8 || length > size - 8)
    return fail("not a safetensors file, or cut off in its header");
  const char *header = result.file->data() + 8;
  const Json json = Json::parse(header, header + length, nullptr, false);
  if (!json.is_object())
    return fail("the header is not JSON");
  Status problems;
  for (const auto &[name, value] : json.items()) {
    if (name == "__metadata__")
      continue;
    SafetensorsEntry entry;
    std::string why;
    if (parseEntry(value, size - 8 - length, header + length, entry, why))
      result.tensors.emplace(name, std::move(entry));
    else
      problems.merge(fail(fmt::format("tensor \"{}\" {}", name, why)));
  }
  if (!problems.ok())
    return problems;
  return result;
}

Status writeSafetensors(const std::string &path,
                        const std::vector<SafetensorsOutput> &tensors) {
  Json json = Json::object();
  uint64_t offset = 0;
  for (const SafetensorsOutput &tensor : tensors) {
    const uint64_t bytes = byteSize(tensor.dtype, tensor.shape);
    json[tensor.name] = {{"dtype", safetensorsName(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string header = json.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t length = header.size();
  const std::string temporary = path + ".tmp";
  std::FILE *file = std::fopen(temporary.c_str(), "wb");
  if (!file)
    return Status::error(fmt::format("cannot write \"{}\": {}", temporary,
                                     std::strerror(errno)));
  Status status;
  bool good = std::fwrite(&length, 1, 8, file) == 8 &&
              std::fwrite(header.data(), 1, length, file) == length;
  std::vector<char> data;
  for (size_t i = 0; i < tensors.size() && good && status.ok(); ++i) {
    data.resize(byteSize(tensors[i].dtype, tensors[i].shape));
    status = tensors[i].fill(data.data());
    good = std::fwrite(data.data(), 1, data.size(), file) == data.size();
  }
  good = good && std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  good = std::fclose(file) == 0 && good;
  if (status.ok() && good && std::rename(temporary.c_str(), path.c_str()) == 0)
    return {};
  if (status.ok())
    status = Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  std::remove(temporary.c_str());
  return status;
}

} // namespace merak::runtime
