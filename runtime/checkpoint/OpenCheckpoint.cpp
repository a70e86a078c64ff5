// Reading checkpoints and checking them against the plan.
#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/Safetensors.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace merak::runtime {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

// A tensor of a checkpoint before it is matched with the plan.
struct Found {
  StoredTensor tensor;
  std::string role = "parameter";
};
using FoundTensors = std::map<std::string, Found>;

Status openPlain(const std::string &path, FoundTensors &found) {
  auto file = openSafetensors(path);
  if (!file)
    return file.status();
  for (const auto &[name, entry] : file->tensors)
    found[name].tensor = {
        entry.dtype,
        entry.shape,
        {{file->file, entry.data, std::vector<int64_t>(entry.shape.size(), 0),
          entry.shape}}};
  return {};
}

bool readSizes(const Json &json, const char *key, std::vector<int64_t> &out) {
  if (!json.contains(key) || !json[key].is_array())
    return false;
  for (const Json &size : json[key]) {
    if (!size.is_number_integer() || size.get<int64_t>() < 0)
      return false;
    out.push_back(size.get<int64_t>());
  }
  return true;
}

std::string readString(const Json &json, const char *key) {
  return json.contains(key) && json[key].is_string()
             ? json[key].get<std::string>()
             : std::string();
}

// One piece: its shard, its place there, and that its extent is as promised.
Status readPiece(const Json &json, const std::string &dir,
                 std::map<std::string, SafetensorsFile> &shards,
                 StoredTensor &tensor) {
  StoredPiece piece;
  const std::string name = readString(json, "file");
  if (name.empty() || name.find('/') != std::string::npos ||
      !readSizes(json, "origin", piece.origin) ||
      !readSizes(json, "extent", piece.extent) ||
      piece.origin.size() != tensor.shape.size() ||
      piece.extent.size() != tensor.shape.size())
    return Status::error("a piece is malformed");
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    if (piece.origin[d] + piece.extent[d] > tensor.shape[d])
      return Status::error("a piece lies outside of the tensor");
  auto shard = shards.find(name);
  if (shard == shards.end()) {
    auto opened = openSafetensors(dir + "/" + name);
    if (!opened)
      return opened.status();
    shard = shards.emplace(name, std::move(*opened)).first;
  }
  const auto entry = shard->second.tensors.find(readString(json, "key"));
  if (entry == shard->second.tensors.end() ||
      entry->second.shape != piece.extent ||
      entry->second.dtype != tensor.dtype)
    return Status::error(fmt::format("its piece \"{}\" is not in \"{}\"",
                                     readString(json, "key"), name));
  piece.file = shard->second.file;
  piece.data = entry->second.data;
  tensor.pieces.push_back(std::move(piece));
  return {};
}

Status openFolder(const std::string &dir, FoundTensors &found,
                  CheckpointState &state) {
  const std::string path = dir + "/index.json";
  std::ifstream file(path);
  if (!file)
    return Status::error(
        fmt::format("\"{}\" is not a checkpoint: no index.json", dir));
  const Json index = Json::parse(file, nullptr, false);
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format("\"{}\": {}", path, what));
  };
  if (!index.is_object() || readString(index, "format") != "merak-checkpoint" ||
      !index.contains("tensors") || !index["tensors"].is_object() ||
      !index.contains("version") || !index["version"].is_number_integer())
    return fail("not the index of a checkpoint");
  if (index["version"].get<int64_t>() > 1)
    return fail(fmt::format("version {} is newer than this program",
                            index["version"].get<int64_t>()));
  if (index.contains("step") && index["step"].is_number_integer())
    state.step = index["step"];
  if (index.contains("samples") && index["samples"].is_number_integer())
    state.samples = index["samples"];
  std::map<std::string, SafetensorsFile> shards;
  Status problems;
  for (const auto &[name, json] : index["tensors"].items()) {
    Found entry;
    entry.role = readString(json, "role");
    entry.tensor.dtype = parseSafetensorsName(readString(json, "dtype"));
    if (!readSizes(json, "shape", entry.tensor.shape) ||
        !json.contains("pieces") || !json["pieces"].is_array()) {
      problems.merge(fail(fmt::format("tensor \"{}\" is malformed", name)));
      continue;
    }
    for (const Json &piece : json["pieces"])
      problems.merge(readPiece(piece, dir, shards, entry.tensor)
                         .withContext(fmt::format("tensor \"{}\"", name)));
    found[name] = std::move(entry);
  }
  return problems;
}

// The kind of optimizer state that a name ends with, for the note.
bool isPlanned(const LoadedPlan &plan, const std::string &name) {
  return std::any_of(
      plan.file.tensors().begin(), plan.file.tensors().end(),
      [&](const planpb::Tensor &tensor) { return tensor.name() == name; });
}

} // namespace

Status openCheckpoint(const LoadedPlan &plan, const std::string &path,
                      TensorStore &store, CheckpointState &state) {
  FoundTensors found;
  std::error_code error;
  MERAK_RETURN_IF_ERROR(fs::is_directory(path, error)
                            ? openFolder(path, found, state)
                            : openPlain(path, found));
  Status problems;
  auto fail = [&](const std::string &what) {
    problems.merge(Status::error(fmt::format("\"{}\": {}", path, what)));
  };
  int64_t withoutState = 0;
  for (const planpb::Tensor &tensor : plan.file.tensors()) {
    if (tensor.role() == planpb::Tensor::CONSTANT)
      continue;
    const std::vector<int64_t> shape(tensor.shape().begin(),
                                     tensor.shape().end());
    const auto entry = found.find(tensor.name());
    if (entry == found.end()) {
      if (tensor.role() == planpb::Tensor::PARAMETER)
        fail(fmt::format("parameter \"{}\" is missing", tensor.name()));
      withoutState += tensor.role() == planpb::Tensor::OPTIMIZER;
      continue;
    }
    const StoredTensor &stored = entry->second.tensor;
    // Weights are trained in f32; a model in f64 that only evaluates them takes
    // these, too.
    const bool widens =
        stored.dtype == planpb::F32 && tensor.dtype() == planpb::F64;
    if (stored.shape != shape || (stored.dtype != tensor.dtype() && !widens))
      fail(fmt::format("tensor \"{}\" is {}[{}], the plan has {}[{}]",
                       tensor.name(), dtypeName(stored.dtype),
                       fmt::join(stored.shape, ","), dtypeName(tensor.dtype()),
                       fmt::join(shape, ",")));
    else
      store.add(tensor.name(), stored);
  }
  for (const auto &[name, entry] : found)
    if (entry.role == "parameter" && !isPlanned(plan, name))
      fail(fmt::format("the plan has no parameter \"{}\"", name));
  if (withoutState > 0)
    state.note = fmt::format("{} optimizer tensors are not in \"{}\" and start "
                             "from zero",
                             withoutState, path);
  return problems;
}

} // namespace merak::runtime
