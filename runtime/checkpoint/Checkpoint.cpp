#include "runtime/checkpoint/Checkpoint.h"

#include "runtime/checkpoint/HostCopy.h"
#include "runtime/checkpoint/Safetensors.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <set>

namespace merak::runtime {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

constexpr int kFormat = 1;

const char *roleName(planpb::Tensor::Role role) {
  switch (role) {
  case planpb::Tensor::PARAMETER:
    return "parameter";
  case planpb::Tensor::FROZEN:
    return "frozen";
  case planpb::Tensor::OPTIMIZER:
    return "optimizer";
  case planpb::Tensor::STATISTIC:
    return "statistic";
  default:
    return "constant";
  }
}

// A box of a tensor and the buffer it is written from.
struct Piece {
  int buffer = 0;
  layout::Box box;
  std::string key; // in the shard
};
struct TensorPieces {
  const planpb::Tensor *tensor = nullptr;
  std::vector<std::pair<int, Piece>> pieces; // rank, piece
};

// Whether the pieces so far hold the whole box: a replica, or a stage that
// splits the tensor differently. Earlier pieces are disjoint or equal.
bool isWritten(const TensorPieces &tensor, const layout::Box &box) {
  int64_t covered = 0;
  for (const auto &[rank, piece] : tensor.pieces)
    for (const layout::Overlap &overlap : layout::overlaps({piece.box}, {box}))
      covered += layout::Box{{}, {}, overlap.extent}.elements();
  return covered >= box.elements();
}

// Decides, from the plan alone, which rank writes which box: every process of
// a run comes to the same answer.
std::vector<TensorPieces> assignPieces(const LoadedPlan &plan) {
  std::vector<TensorPieces> result;
  std::map<std::string, size_t> index;
  for (const planpb::Tensor &tensor : plan.file.tensors())
    if (tensor.role() != planpb::Tensor::CONSTANT) {
      index[tensor.name()] = result.size();
      result.emplace_back().tensor = &tensor;
    }
  const layout::AxisMap mesh = layoutMesh(plan.file);
  for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
    const planpb::Program &program = plan.programOf(rank);
    const layout::AxisMap coords = coordsOf(plan.file, rank);
    for (int b = 0; b < program.buffers_size(); ++b) {
      const planpb::Buffer &buffer = program.buffers(b);
      const auto found = index.find(buffer.tensor());
      // A rounded copy of a parameter is not what is saved.
      if (found == index.end() || !holdsTensor(buffer) ||
          buffer.dtype() != result[found->second].tensor->dtype())
        continue;
      TensorPieces &target = result[found->second];
      for (const layout::Box &box :
           layout::boxes(fromProto(buffer.layout()), mesh, coords)) {
        if (isWritten(target, box))
          continue;
        const std::vector<int64_t> whole(target.tensor->shape().begin(),
                                         target.tensor->shape().end());
        Piece piece{b, box, buffer.tensor()};
        if (box.extent != whole)
          piece.key += fmt::format("@{}", fmt::join(box.globalOrigin, ","));
        target.pieces.push_back({rank, std::move(piece)});
      }
    }
  }
  return result;
}

std::string shardName(int rank) {
  return fmt::format("rank-{}.safetensors", rank);
}

Json indexOf(const LoadedPlan &plan, const std::vector<TensorPieces> &tensors,
             const CheckpointState &state) {
  Json index = {{"format", "merak-checkpoint"}, {"version", kFormat},
                {"model", plan.file.model()},   {"step", state.step},
                {"samples", state.samples},     {"tensors", Json::object()}};
  for (const TensorPieces &entry : tensors) {
    Json pieces = Json::array();
    for (const auto &[rank, piece] : entry.pieces)
      pieces.push_back({{"file", shardName(rank)},
                        {"key", piece.key},
                        {"origin", piece.box.globalOrigin},
                        {"extent", piece.box.extent}});
    index["tensors"][entry.tensor->name()] = {
        {"dtype", safetensorsName(entry.tensor->dtype())},
        {"shape", std::vector<int64_t>(entry.tensor->shape().begin(),
                                       entry.tensor->shape().end())},
        {"role", roleName(entry.tensor->role())},
        {"pieces", pieces}};
  }
  return index;
}

Status writeShard(const RankMemory &rank,
                  const std::vector<TensorPieces> &tensors,
                  const fs::path &dir) {
  std::vector<SafetensorsOutput> outputs;
  for (const TensorPieces &entry : tensors)
    for (const auto &[owner, piece] : entry.pieces) {
      if (owner != rank.program->rank())
        continue;
      outputs.push_back(
          {piece.key, entry.tensor->dtype(), piece.box.extent,
           [&rank, &piece = piece, dtype = entry.tensor->dtype()](char *data) {
             auto copy = HostCopy::of(rank, piece.buffer);
             if (!copy)
               return copy.status();
             layout::copyBox(copy->data(), copy->shape(), piece.box.localOrigin,
                             data, piece.box.extent,
                             std::vector<int64_t>(piece.box.extent.size(), 0),
                             piece.box.extent, dtypeSize(dtype));
             return Status();
           }});
    }
  if (outputs.empty())
    return {};
  return writeSafetensors((dir / shardName(rank.program->rank())).string(),
                          outputs);
}

// Puts the finished folder in the place of `dir`.
Status replaceFolder(const fs::path &from, const fs::path &dir) {
  std::error_code error;
  const fs::path old = dir.string() + ".old";
  if (fs::exists(dir)) {
    fs::remove_all(old, error);
    fs::rename(dir, old, error);
    if (error)
      return Status::error(fmt::format("cannot replace \"{}\": {}",
                                       dir.string(), error.message()));
  }
  fs::rename(from, dir, error);
  if (error)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", dir.string(), error.message()));
  fs::remove_all(old, error);
  return {};
}

// Shards that some process wrote and this one does not find.
Status checkShared(const std::vector<TensorPieces> &tensors,
                   const fs::path &dir) {
  std::set<int> absent;
  for (const TensorPieces &entry : tensors)
    for (const auto &[rank, piece] : entry.pieces)
      if (std::error_code error; !fs::exists(dir / shardName(rank), error))
        absent.insert(rank);
  if (absent.empty())
    return {};
  return Status::error(fmt::format(
      "what rank{} {} wrote is not in \"{}\" here: checkpoints of several "
      "hosts need a folder that all of them share",
      absent.size() == 1 ? "" : "s", fmt::join(absent, ","), dir.string()));
}

// The empty folder beside `dir`.
Status makeTemporary(const fs::path &dir, const fs::path &temporary,
                     const std::string &path) {
  std::error_code error;
  if (fs::exists(dir, error) && !fs::exists(dir / "index.json", error) &&
      !(fs::is_directory(dir, error) && fs::is_empty(dir, error)))
    return Status::error(fmt::format(
        "\"{}\" is there and is not a checkpoint; it is not replaced", path));
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error)
    return Status::error(fmt::format("cannot write \"{}\": {}",
                                     temporary.string(), error.message()));
  return {};
}

// Completes what all ranks have written, and puts it in its place.
Status finish(const LoadedPlan &plan, const std::vector<TensorPieces> &tensors,
              const CheckpointState &state, const fs::path &temporary,
              const fs::path &dir) {
  MERAK_RETURN_IF_ERROR(checkShared(tensors, temporary));
  std::ofstream file(temporary / "index.json");
  file << indexOf(plan, tensors, state).dump(1) << "\n";
  file.close();
  if (!file)
    return Status::error(
        fmt::format("cannot write \"{}/index.json\"", temporary.string()));
  return replaceFolder(temporary, dir);
}

} // namespace

Status saveCheckpoint(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                      const std::string &path, const CheckpointState &state,
                      Store *store) {
  fs::path dir(path);
  if (!dir.has_filename()) // "out/"
    dir = dir.parent_path();
  const fs::path temporary = dir.string() + ".tmp";
  const bool leads = !store || store->rank() == 0;
  MERAK_RETURN_IF_ERROR(
      agree(store, "checkpoint begun",
            leads ? makeTemporary(dir, temporary, path) : Status()));
  const std::vector<TensorPieces> tensors = assignPieces(plan);
  Status status;
  for (const RankMemory &rank : ranks)
    status.merge(writeShard(rank, tensors, temporary));
  status = agree(store, "checkpoint written", status);
  if (status.ok())
    status =
        agree(store, "checkpoint finished",
              leads ? finish(plan, tensors, state, temporary, dir) : Status());
  if (!status.ok() && leads) {
    std::error_code error;
    fs::remove_all(temporary, error);
  }
  return status;
}

} // namespace merak::runtime
