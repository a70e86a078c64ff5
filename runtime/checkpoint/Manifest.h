// `index.json` of one generation of a checkpoint: what the run was, what each
// shard must be, and of which boxes in which shards each tensor is made.
//
//   {"format": "merak-checkpoint", "version": 2, "checksum": of all the rest,
//    "run", "model", "step", "samples", "state": {...},
//    "shards": {"rank-0.safetensors": {"bytes", "checksum"}},
//    "tensors": {name: {"dtype", "shape", "role",
//                       "pieces": [{"file", "key", "origin", "extent"}]}}}
//
// Version 1 has neither checksums, run, state nor shards.
#pragma once

#include "runtime/checkpoint/CheckpointState.h"
#include "runtime/checkpoint/Safetensors.h"

#include <string_view>

namespace merak::runtime {

struct ManifestPiece {
  std::string file, key;
  std::vector<int64_t> origin, extent;
};

struct ManifestTensor {
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  std::string role = "parameter";
  std::vector<ManifestPiece> pieces;
};

struct Manifest {
  bool checked = true; // false: version 1
  std::string model;
  CheckpointState state;
  std::map<std::string, FileCheck> shards;
  std::vector<std::pair<std::string, ManifestTensor>> tensors;
};

constexpr const char *kManifestName = "index.json";
std::string shardName(int rank);
// What a rank wrote, or a part of copies (CopyFolder.h).
bool isShardName(const std::string &name);

std::string manifestText(const Manifest &manifest);
// Checks all that can be checked without the shards: the manifest's own
// checksum, types and ranges, and that the pieces of each tensor hold each of
// its elements exactly once. Names the tensors of all problems.
Result<Manifest> readManifest(const std::string &path);
// The same of its text; `path`: where it is from.
Result<Manifest> parseManifest(std::string_view text, const std::string &path);

// Whether the boxes hold every index of `shape` exactly once.
bool tileOnce(const std::vector<int64_t> &shape,
              const std::vector<ManifestPiece> &pieces);

} // namespace merak::runtime
