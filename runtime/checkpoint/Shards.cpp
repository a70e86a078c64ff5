#include "runtime/checkpoint/Shards.h"

#include "runtime/checkpoint/Files.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>

namespace merak::runtime {

Status checkFile(const MappedFile &file, const FileCheck &check) {
  if (file.size() != check.bytes)
    return Status::error(
        fmt::format("\"{}\": {}: {} bytes, expected {}", file.path(),
                    file.size() < check.bytes ? "truncated" : "too long",
                    file.size(), check.bytes));
  const uint64_t found = Checksum::of(file.data(), file.size());
  if (found != check.checksum)
    return Status::error(fmt::format(
        "\"{}\": corrupted, or of another checkpoint: checksum {}, expected {}",
        file.path(), checksumText(found), checksumText(check.checksum)));
  return {};
}

Result<SafetensorsFile> Shards::open(const std::string &name) const {
  const std::string path = joinPath(dir_, name);
  if (manifest_.checked && entryAt(path) == Entry::none)
    return Status::error(fmt::format(
        "\"{}\" is missing: if hosts wrote their parts into folders of their "
        "own, merak-plan gather makes a whole",
        path));
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  if (manifest_.checked)
    MERAK_RETURN_IF_ERROR(checkFile(**file, manifest_.shards.at(name)));
  return readSafetensors(std::move(*file));
}

Result<StoredPiece> Shards::piece(const ManifestPiece &piece,
                                  planpb::DType dtype) {
  auto shard = files_.find(piece.file);
  if (shard == files_.end()) {
    shard = files_.emplace(piece.file, open(piece.file)).first;
    problems_.merge(shard->second.status());
  }
  if (!shard->second.ok())
    return Status::error("");
  const auto entry = shard->second->tensors.find(piece.key);
  if (entry == shard->second->tensors.end() ||
      entry->second.shape != piece.extent || entry->second.dtype != dtype)
    return Status::error(fmt::format("its piece \"{}\" is not in \"{}\"",
                                     piece.key, piece.file));
  return StoredPiece{shard->second->file, entry->second.data, piece.origin,
                     piece.extent};
}

} // namespace merak::runtime
