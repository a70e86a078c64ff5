#include "runtime/checkpoint/Gather.h"

#include "runtime/checkpoint/Generations.h"
#include "runtime/checkpoint/Shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace merak::runtime {
namespace {

// What all hosts wrote of one generation: their manifests are the same text.
struct Candidate {
  std::string text;
  Manifest manifest;
  std::vector<std::string> folders;
  std::map<std::string, std::shared_ptr<MappedFile>> shards; // those found
};

Status addFolder(const std::string &folder, std::vector<Candidate> &found) {
  const std::string path = joinPath(folder, kManifestName);
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  auto manifest = readManifest(path);
  if (!manifest)
    return manifest.status();
  if (!manifest->checked)
    return Status::error(fmt::format(
        "\"{}\" is of an older version, which wrote whole ones only", path));
  const std::string text((*file)->data(), (*file)->size());
  for (Candidate &candidate : found)
    if (candidate.text == text) {
      candidate.folders.push_back(folder);
      return {};
    }
  found.push_back({text, std::move(*manifest), {folder}, {}});
  return {};
}

// Opens all shards; `problems` says why one cannot be taken.
bool openShards(Candidate &candidate, Status &problems) {
  for (const auto &[name, check] : candidate.manifest.shards) {
    Status status = Status::error(fmt::format("{} is in no folder", name));
    for (const std::string &folder : candidate.folders) {
      if (entryAt(joinPath(folder, name)) == Entry::none)
        continue;
      auto file = MappedFile::open(joinPath(folder, name));
      status = file.ok() ? checkFile(**file, check) : file.status();
      if (!status.ok())
        continue;
      candidate.shards[name] = *file;
      break;
    }
    problems.merge(std::move(status).withContext(fmt::format(
        "{} of run {}", generationName(candidate.manifest.state.step),
        candidate.manifest.state.run)));
  }
  return candidate.shards.size() == candidate.manifest.shards.size();
}

Status copyBytes(Files &files, const std::string &path, const char *data,
                 uint64_t bytes) {
  auto file = files.create(path);
  if (!file)
    return file.status();
  constexpr uint64_t kPart = 16 << 20;
  for (uint64_t done = 0; done < bytes; done += kPart)
    MERAK_RETURN_IF_ERROR(
        (*file)->write(data + done, std::min(kPart, bytes - done)));
  return (*file)->close();
}

Result<Gathered> writeWhole(const Candidate &candidate,
                            const std::string &output, Files &files) {
  const int64_t step = candidate.manifest.state.step;
  Generations generations(output, files, newRun(), thisProcess());
  MERAK_RETURN_IF_ERROR(generations.take());
  Gathered result{joinPath(output, generationName(step)), step,
                  candidate.shards.size(), candidate.text.size()};
  auto write = [&]() -> Status {
    MERAK_RETURN_IF_ERROR(generations.begin(step));
    const std::string folder = generations.temporaryOf(step);
    for (const auto &[name, file] : candidate.shards) {
      MERAK_RETURN_IF_ERROR(
          copyBytes(files, joinPath(folder, name), file->data(), file->size()));
      result.bytes += file->size();
    }
    MERAK_RETURN_IF_ERROR(copyBytes(files, joinPath(folder, kManifestName),
                                    candidate.text.data(),
                                    candidate.text.size()));
    return generations.commit(step);
  };
  if (Status status = write(); !status.ok()) {
    generations.discard(step);
    return status;
  }
  return result;
}

} // namespace

Result<Gathered> gatherCheckpoint(const std::vector<std::string> &parts,
                                  const std::string &output, Files &files) {
  std::vector<Candidate> found;
  Status problems;
  for (const std::string &part : parts) {
    auto folders = generationsIn(part);
    if (!folders) {
      problems.merge(folders.status());
      continue;
    }
    if (folders->empty())
      problems.merge(Status::error(
          fmt::format("\"{}\" holds no generation step-N", part)));
    for (const std::string &folder : *folders)
      problems.merge(addFolder(folder, found));
  }
  if (!problems.ok())
    return problems;
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate &a, const Candidate &b) {
                     return a.manifest.state.step > b.manifest.state.step;
                   });
  for (Candidate &candidate : found) {
    Status lacks;
    if (openShards(candidate, lacks))
      return writeWhole(candidate, output, files);
    problems.merge(lacks);
  }
  return problems;
}

} // namespace merak::runtime
