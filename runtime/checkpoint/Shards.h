// The shards of a generation, each opened and checked when it is first needed.
#pragma once

#include "runtime/checkpoint/Manifest.h"
#include "runtime/checkpoint/TensorStore.h"

namespace merak::runtime {

class Shards {
public:
  // Both must outlive the shards.
  Shards(std::string dir, const Manifest &manifest)
      : dir_(std::move(dir)), manifest_(manifest) {}

  // Checks that the piece is there as the manifest says.
  Result<StoredPiece> piece(const ManifestPiece &piece, planpb::DType dtype);
  // Of files; each is told once.
  const Status &problems() const { return problems_; }

private:
  Result<SafetensorsFile> open(const std::string &name) const;

  std::string dir_;
  const Manifest &manifest_;
  std::map<std::string, Result<SafetensorsFile>> files_;
  Status problems_;
};

// Whether a file's bytes are those that were written.
Status checkFile(const MappedFile &file, const FileCheck &check);

} // namespace merak::runtime
