#include "runtime/checkpoint/Manifest.h"

#include "runtime/core/DType.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace merak::runtime {

using Json = nlohmann::ordered_json;

namespace {

constexpr int64_t kVersion = 2;
constexpr int64_t kMost = int64_t(1) << 53; // what JSON's readers agree on
constexpr size_t kMostDimensions = 16;

// Of everything but itself, however it is spelled.
std::string checksumOf(Json json) {
  json.erase("checksum");
  const std::string text = json.dump();
  return checksumText(Checksum::of(text.data(), text.size()));
}

Json stateJson(const CheckpointState &state) {
  Json json = {{"skipped", state.skipped},
               {"data", state.data},
               {"schedule", state.schedule},
               {"lr", state.lr},
               {"loss_scale", state.lossScale}};
  if (state.lossScaleSteps)
    json["loss_scale_steps"] = *state.lossScaleSteps;
  if (state.seed)
    json["seed"] = *state.seed;
  return json;
}

Json tensorJson(const ManifestTensor &tensor) {
  Json pieces = Json::array();
  for (const ManifestPiece &piece : tensor.pieces)
    pieces.push_back({{"file", piece.file},
                      {"key", piece.key},
                      {"origin", piece.origin},
                      {"extent", piece.extent}});
  return {{"dtype", safetensorsName(tensor.dtype)},
          {"shape", tensor.shape},
          {"role", tensor.role},
          {"pieces", std::move(pieces)}};
}

// -------------------------------------------------------------- reading

bool readSizes(const Json &json, const char *key, std::vector<int64_t> &out) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array() ||
      found->size() > kMostDimensions)
    return false;
  int64_t volume = 8; // bytes of the largest type
  for (const Json &size : *found) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t(kMost) ||
        __builtin_mul_overflow(volume, std::max<int64_t>(1, size), &volume))
      return false;
    out.push_back(size.get<int64_t>());
  }
  return true;
}

bool readText(const Json &json, const char *key, std::string &out) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string())
    return false;
  out = found->get<std::string>();
  return true;
}

bool readCount(const Json &json, const char *key, int64_t &out) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned() ||
      found->get<uint64_t>() > uint64_t(kMost))
    return false;
  out = found->get<int64_t>();
  return true;
}

bool readNumber(const Json &json, const char *key, double &out) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number())
    return false;
  out = found->get<double>();
  return true;
}

bool isHex(const std::string &text) {
  return text.size() == 16 &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool isDType(planpb::DType dtype) { return dtype != planpb::DTYPE_INVALID; }

bool isRole(const std::string &role) {
  return role == "parameter" || role == "frozen" || role == "optimizer" ||
         role == "statistic" || role == "constant";
}

bool readPiece(const Json &json, ManifestPiece &piece) {
  return json.is_object() && readText(json, "file", piece.file) &&
         isShardName(piece.file) && readText(json, "key", piece.key) &&
         readSizes(json, "origin", piece.origin) &&
         readSizes(json, "extent", piece.extent);
}

bool isInside(const ManifestPiece &piece, const std::vector<int64_t> &shape) {
  if (piece.origin.size() != shape.size() ||
      piece.extent.size() != shape.size())
    return false;
  for (size_t d = 0; d < shape.size(); ++d)
    if (piece.origin[d] + piece.extent[d] > shape[d])
      return false;
  return true;
}

Status readTensor(const Json &json, ManifestTensor &tensor) {
  std::string dtype;
  if (!json.is_object() || !readSizes(json, "shape", tensor.shape) ||
      !readText(json, "role", tensor.role) || !isRole(tensor.role) ||
      !readText(json, "dtype", dtype) || !json.contains("pieces") ||
      !json["pieces"].is_array())
    return Status::error("is malformed");
  tensor.dtype = parseSafetensorsName(dtype);
  if (!isDType(tensor.dtype))
    return Status::error(fmt::format("has the unsupported type \"{}\"", dtype));
  for (const Json &part : json["pieces"]) {
    ManifestPiece piece;
    if (!readPiece(part, piece))
      return Status::error("has a malformed piece");
    if (!isInside(piece, tensor.shape))
      return Status::error("has a piece outside of it");
    tensor.pieces.push_back(std::move(piece));
  }
  if (!tileOnce(tensor.shape, tensor.pieces))
    return Status::error("is not held exactly once by its pieces");
  return {};
}

bool readState(const Json &json, CheckpointState &state) {
  if (!json.is_object() || !readCount(json, "skipped", state.skipped) ||
      !readText(json, "data", state.data) ||
      !readText(json, "schedule", state.schedule) ||
      !readNumber(json, "lr", state.lr) ||
      !readNumber(json, "loss_scale", state.lossScale) ||
      !(state.lossScale > 0))
    return false;
  if (json.contains("loss_scale_steps")) {
    int64_t steps = 0;
    if (!readCount(json, "loss_scale_steps", steps))
      return false;
    state.lossScaleSteps = steps;
  }
  if (!json.contains("seed"))
    return true;
  if (!json["seed"].is_number_unsigned())
    return false;
  state.seed = json["seed"].get<uint64_t>();
  return true;
}

Status readShards(const Json &json, Manifest &manifest) {
  if (!json.is_object())
    return Status::error("its shards are malformed");
  for (const auto &[name, entry] : json.items()) {
    FileCheck check;
    std::string checksum;
    int64_t bytes = 0;
    if (!isShardName(name) || !entry.is_object() ||
        !readCount(entry, "bytes", bytes) ||
        !readText(entry, "checksum", checksum) || !isHex(checksum))
      return Status::error(fmt::format("shard \"{}\" is malformed", name));
    check.bytes = uint64_t(bytes);
    check.checksum = std::stoull(checksum, nullptr, 16);
    manifest.shards[name] = check;
  }
  return {};
}

// What version 2 adds. Its checksum comes first: what follows from damage is
// not told.
Status readChecked(const Json &json, Manifest &manifest) {
  std::string checksum;
  if (!readText(json, "checksum", checksum) || checksum != checksumOf(json))
    return Status::error("corrupted: its checksum is not that of its content");
  if (!readText(json, "run", manifest.state.run) ||
      !isHex(manifest.state.run) || !json.contains("state") ||
      !readState(json["state"], manifest.state))
    return Status::error("its run or state is malformed");
  if (!json.contains("shards"))
    return Status::error("it names no shards");
  return readShards(json["shards"], manifest);
}

// Version 1 has these keys and no more: with others it was a newer one.
bool isOld(const Json &json) {
  static const std::set<std::string> kKeys = {"format", "version", "model",
                                              "step",   "samples", "tensors"};
  for (const auto &[key, value] : json.items())
    if (!kKeys.contains(key))
      return false;
  return true;
}

Status readHead(const Json &json, Manifest &manifest) {
  std::string format;
  if (!json.is_object() || !readText(json, "format", format) ||
      format != "merak-checkpoint" || !json.contains("tensors") ||
      !json["tensors"].is_object() || !json.contains("version") ||
      !json["version"].is_number_unsigned())
    return Status::error("not the index of a checkpoint");
  const uint64_t version = json["version"].get<uint64_t>();
  if (version > uint64_t(kVersion))
    return Status::error(
        fmt::format("version {} is newer than this program", version));
  manifest.checked = version == kVersion;
  if (version == 0 || (!manifest.checked && !isOld(json)))
    return Status::error("not the index of a checkpoint of its version");
  if (manifest.checked)
    MERAK_RETURN_IF_ERROR(readChecked(json, manifest));
  for (const auto &[key, count] :
       {std::pair("step", &manifest.state.step),
        std::pair("samples", &manifest.state.samples)})
    if (!readCount(json, key, *count))
      return Status::error(fmt::format(
          "\"{}\" is no count: expected 0 to {}, found {}", key, kMost,
          json.contains(key) ? json[key].dump() : "nothing"));
  (void)readText(json, "model", manifest.model);
  return {};
}

// A place in a shard belongs to one tensor, and every shard is known.
Status checkPlaces(const Manifest &manifest) {
  std::set<std::pair<std::string, std::string>> seen;
  Status problems;
  for (const auto &[name, tensor] : manifest.tensors)
    for (const ManifestPiece &piece : tensor.pieces) {
      if (manifest.checked && !manifest.shards.contains(piece.file))
        problems.merge(Status::error(fmt::format(
            "tensor \"{}\": nothing is known of \"{}\"", name, piece.file)));
      if (!seen.insert({piece.file, piece.key}).second)
        problems.merge(Status::error(
            fmt::format("tensor \"{}\": \"{}\" in \"{}\" is used twice", name,
                        piece.key, piece.file)));
    }
  return problems;
}

} // namespace

std::string shardName(int rank) {
  return fmt::format("rank-{}.safetensors", rank);
}

bool isShardName(const std::string &name) {
  const std::string end = ".safetensors";
  for (const std::string begin : {"rank-", "part-"})
    if (name.size() > begin.size() + end.size() && name.starts_with(begin) &&
        name.ends_with(end))
      return std::all_of(name.begin() + int64_t(begin.size()),
                         name.end() - int64_t(end.size()),
                         [](char c) { return c >= '0' && c <= '9'; });
  return false;
}

// The sum of the boxes' indicator functions is determined by its mixed
// difference: at each corner of each box +1 or -1, by the number of upper
// bounds. It is the whole tensor's where all corners are.
bool tileOnce(const std::vector<int64_t> &shape,
              const std::vector<ManifestPiece> &pieces) {
  std::map<std::vector<int64_t>, int64_t> corners;
  const size_t rank = shape.size();
  auto add = [&](const std::vector<int64_t> &origin,
                 const std::vector<int64_t> &extent, int64_t sign) {
    if (std::find(extent.begin(), extent.end(), 0) != extent.end())
      return; // empty
    std::vector<int64_t> corner(rank);
    for (uint32_t upper = 0; upper < (1u << rank); ++upper) {
      for (size_t d = 0; d < rank; ++d)
        corner[d] = origin[d] + (upper >> d & 1 ? extent[d] : 0);
      const int64_t value = __builtin_popcount(upper) % 2 ? -sign : sign;
      const auto at = corners.try_emplace(corner, 0).first;
      if ((at->second += value) == 0)
        corners.erase(at);
    }
  };
  add(std::vector<int64_t>(rank, 0), shape, -1);
  for (const ManifestPiece &piece : pieces)
    add(piece.origin, piece.extent, 1);
  return corners.empty();
}

std::string manifestText(const Manifest &manifest) {
  const CheckpointState &state = manifest.state;
  Json json = {{"format", "merak-checkpoint"},
               {"version", kVersion},
               {"checksum", ""},
               {"run", state.run},
               {"model", manifest.model},
               {"step", state.step},
               {"samples", state.samples},
               {"state", stateJson(state)},
               {"shards", Json::object()},
               {"tensors", Json::object()}};
  for (const auto &[name, check] : manifest.shards)
    json["shards"][name] = {{"bytes", check.bytes},
                            {"checksum", checksumText(check.checksum)}};
  for (const auto &[name, tensor] : manifest.tensors)
    json["tensors"][name] = tensorJson(tensor);
  // Reading it again gives the numbers as they are read later.
  json = Json::parse(json.dump());
  json["checksum"] = checksumOf(json);
  return json.dump(1) + "\n";
}

Result<Manifest> readManifest(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  return parseManifest(
      {(*file)->data() ? (*file)->data() : "", (*file)->size()}, path);
}

Result<Manifest> parseManifest(std::string_view text, const std::string &path) {
  auto fail = [&](const Status &status) {
    return Status(status).withContext(fmt::format("\"{}\"", path));
  };
  const Json json = text.empty()
                        ? Json()
                        : Json::parse(text.begin(), text.end(), nullptr, false);
  Manifest manifest;
  MERAK_RETURN_IF_ERROR(fail(readHead(json, manifest)));
  Status problems;
  for (const auto &[name, value] : json["tensors"].items()) {
    ManifestTensor tensor;
    problems.merge(readTensor(value, tensor)
                       .withContext(fmt::format("tensor \"{}\"", name)));
    manifest.tensors.emplace_back(name, std::move(tensor));
  }
  if (problems.ok())
    problems = checkPlaces(manifest);
  if (!problems.ok())
    return fail(problems);
  return manifest;
}

} // namespace merak::runtime
