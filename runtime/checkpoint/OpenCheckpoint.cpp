// Reading checkpoints and checking them against the plan.
#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/Generations.h"
#include "runtime/checkpoint/HostCopy.h"
#include "runtime/checkpoint/Shards.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

namespace merak::runtime {
namespace {

bool isFolder(const std::string &path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// A tensor of a checkpoint before it is matched with the plan.
struct Found {
  StoredTensor tensor;
  std::string role = "parameter";
};
using FoundTensors = std::map<std::string, Found>;

// A file of parameters is as long as it says; nothing more is known of it.
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

// What of a tensor the ranks hold; of none given, all.
using Needed = std::map<std::string, std::vector<layout::Box>>;

Needed neededBy(std::span<const RankMemory> ranks) {
  Needed needed;
  for (const RankMemory &rank : ranks)
    for (const planpb::Buffer &buffer : rank.program->proto().buffers())
      if (holdsTensor(buffer))
        for (layout::Box &box :
             layout::boxes(fromProto(buffer.layout()), rank.program->mesh(),
                           rank.program->coords()))
          needed[buffer.tensor()].push_back(std::move(box));
  return needed;
}

bool touches(const ManifestPiece &piece,
             const std::vector<layout::Box> &boxes) {
  const std::vector<int64_t> zero(piece.origin.size(), 0);
  const layout::Box whole{piece.origin, zero, piece.extent};
  for (const layout::Box &box : boxes)
    if (box.extent.size() == piece.extent.size() &&
        !layout::overlaps({whole}, {box}).empty())
      return true;
  return false;
}

// The generation that a folder is, or holds as its newest: what finding it has
// to note stands in the state.
struct Generation {
  std::string dir;
  Manifest manifest;
};

Result<Generation> openGeneration(const std::string &path) {
  std::string note;
  auto dir = findGeneration(path, note);
  if (!dir)
    return dir.status();
  auto manifest = readManifest(joinPath(*dir, kManifestName));
  if (!manifest)
    return manifest.status();
  manifest->state.note = note;
  return Generation{*dir, std::move(*manifest)};
}

Status openFolder(const std::string &path, std::span<const RankMemory> ranks,
                  FoundTensors &found, CheckpointState &state) {
  auto generation = openGeneration(path);
  if (!generation)
    return generation.status();
  const Manifest &manifest = generation->manifest;
  state = manifest.state;
  const Needed needed = neededBy(ranks);
  Shards shards(generation->dir, manifest);
  Status problems;
  for (const auto &[name, tensor] : manifest.tensors) {
    Found entry;
    entry.role = tensor.role;
    entry.tensor.dtype = tensor.dtype;
    entry.tensor.shape = tensor.shape;
    const auto boxes = needed.find(name);
    for (const ManifestPiece &piece : tensor.pieces) {
      if (!ranks.empty() &&
          (boxes == needed.end() || !touches(piece, boxes->second)))
        continue;
      auto stored = shards.piece(piece, tensor.dtype);
      if (stored)
        entry.tensor.pieces.push_back(std::move(*stored));
      else if (!stored.status().messages().front().empty())
        problems.merge(Status(stored.status())
                           .withContext(fmt::format("tensor \"{}\"", name)));
    }
    found[name] = std::move(entry);
  }
  problems.merge(shards.problems());
  return problems;
}

bool isPlanned(const LoadedPlan &plan, const std::string &name) {
  return std::any_of(
      plan.file.tensors().begin(), plan.file.tensors().end(),
      [&](const planpb::Tensor &tensor) { return tensor.name() == name; });
}

} // namespace

Status openCheckpoint(const LoadedPlan &plan, const std::string &path,
                      TensorStore &store, CheckpointState &state,
                      std::span<const RankMemory> ranks) {
  FoundTensors found;
  MERAK_RETURN_IF_ERROR(isFolder(path) ? openFolder(path, ranks, found, state)
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

std::set<std::string> shardsNeeded(const std::string &generation,
                                   std::span<const RankMemory> ranks) {
  std::set<std::string> names;
  auto manifest = readManifest(joinPath(generation, kManifestName));
  if (!manifest)
    return names;
  const Needed needed = neededBy(ranks);
  for (const auto &[name, tensor] : manifest->tensors)
    if (const auto boxes = needed.find(name); boxes != needed.end())
      for (const ManifestPiece &piece : tensor.pieces)
        if (touches(piece, boxes->second))
          names.insert(piece.file);
  return names;
}

Result<CheckpointState> readCheckpointState(const std::string &path) {
  if (!isFolder(path))
    return CheckpointState();
  auto generation = openGeneration(path);
  if (!generation)
    return generation.status();
  return generation->manifest.state;
}

} // namespace merak::runtime
