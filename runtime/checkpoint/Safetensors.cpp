#include "runtime/checkpoint/Safetensors.h"

#include "runtime/core/DType.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <tuple>

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
  // Products of sizes beside a zero must not wrap either.
  int64_t volume = dtypeSize(entry.dtype);
  bool empty = false;
  for (const Json &size : json["shape"]) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX ||
        __builtin_mul_overflow(volume, std::max<int64_t>(1, size), &volume)) {
      why = "has no valid shape";
      return false;
    }
    empty |= size == 0;
    entry.shape.push_back(size.get<int64_t>());
  }
  const uint64_t expected = empty ? 0 : uint64_t(volume);
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

// Whether the tensors lie one after the other and fill the file.
Status checkFilled(const SafetensorsFile &file, const char *data,
                   uint64_t bytes) {
  std::vector<std::tuple<const char *, uint64_t, std::string>> parts;
  for (const auto &[name, entry] : file.tensors)
    parts.emplace_back(entry.data, byteSize(entry.dtype, entry.shape), name);
  std::sort(parts.begin(), parts.end());
  const char *at = data;
  for (const auto &[begin, size, name] : parts) {
    if (begin != at)
      return Status::error(
          fmt::format("tensor \"{}\" {} at byte {} of the data", name,
                      begin < at ? "overlaps another one" : "lies behind a gap",
                      begin - data));
    at += size;
  }
  if (uint64_t(at - data) != bytes)
    return Status::error(fmt::format("{} bytes behind the last tensor",
                                     bytes - uint64_t(at - data)));
  return {};
}

} // namespace

std::string safetensorsHead(const std::vector<SafetensorsOutput> &tensors,
                            uint64_t &dataBytes) {
  Json json = Json::object();
  dataBytes = 0;
  for (const SafetensorsOutput &tensor : tensors) {
    const uint64_t bytes = byteSize(tensor.dtype, tensor.shape);
    json[tensor.name] = {{"dtype", safetensorsName(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {dataBytes, dataBytes + bytes}}};
    dataBytes += bytes;
  }
  std::string header = json.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + header;
}

Result<SafetensorsFile> openSafetensors(const std::string &path) {
  auto mapped = MappedFile::open(path);
  if (!mapped)
    return mapped.status();
  return readSafetensors(std::move(*mapped));
}

Result<SafetensorsFile> readSafetensors(std::shared_ptr<MappedFile> mapped) {
  SafetensorsFile result;
  result.file = std::move(mapped);
  const uint64_t size = result.file->size();
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format("\"{}\": {}", result.file->path(), what));
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
  const uint64_t dataBytes = size - 8 - length;
  Status problems;
  for (const auto &[name, value] : json.items()) {
    if (name == "__metadata__")
      continue;
    SafetensorsEntry entry;
    std::string why;
    if (parseEntry(value, dataBytes, header + length, entry, why))
      result.tensors.emplace(name, std::move(entry));
    else
      problems.merge(fail(fmt::format("tensor \"{}\" {}", name, why)));
  }
  if (problems.ok())
    if (Status filled = checkFilled(result, header + length, dataBytes);
        !filled.ok())
      problems = fail(filled.str());
  if (!problems.ok())
    return problems;
  return result;
}

Result<FileCheck>
makeSafetensors(Files &files, const std::string &path,
                const std::vector<SafetensorsOutput> &tensors) {
  uint64_t dataBytes = 0;
  const std::string head = safetensorsHead(tensors, dataBytes);
  auto file = files.create(path);
  if (!file)
    return file.status();
  FileCheck check;
  check.bytes = head.size() + dataBytes;
  Checksum checksum(check.bytes);
  auto put = [&](const void *data, size_t bytes) {
    checksum.add(data, bytes);
    return (*file)->write(data, bytes);
  };
  MERAK_RETURN_IF_ERROR(put(head.data(), head.size()));
  std::vector<char> data;
  for (const SafetensorsOutput &tensor : tensors) {
    data.resize(byteSize(tensor.dtype, tensor.shape));
    MERAK_RETURN_IF_ERROR(tensor.fill(data.data()));
    MERAK_RETURN_IF_ERROR(put(data.data(), data.size()));
  }
  MERAK_RETURN_IF_ERROR((*file)->close());
  check.checksum = checksum.value();
  return check;
}

Status writeSafetensors(const std::string &path,
                        const std::vector<SafetensorsOutput> &tensors) {
  Files &files = Files::system();
  const std::string temporary =
      fmt::format("{}.{:08x}", path, std::random_device()());
  auto made = makeSafetensors(files, temporary, tensors);
  Status status = made.status();
  if (status.ok())
    status = files.rename(temporary, path);
  if (!status.ok())
    std::remove(temporary.c_str());
  return status;
}

} // namespace merak::runtime
