#include "runtime/plan/FileIdentity.h"
#include "runtime/plan/Plan.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace merak {
namespace {

constexpr uint64_t kSamples = 1024, kSampleBytes = 4096;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0)
      ::close(fd);
  }
};

Status failed(const std::string &path, const char *what) {
  return Status::error(
      fmt::format("\"{}\": {}: {}", path, what, std::strerror(errno)));
}

int64_t modifiedOf(const struct stat &info) {
  return int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec;
}

Status readAt(int fd, const std::string &path, uint64_t offset,
              std::vector<char> &bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pread(fd, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return failed(path, "cannot be read");
    if (n == 0)
      return Status::error(
          fmt::format("\"{}\" became shorter while it was read", path));
    done += static_cast<size_t>(n);
  }
  return {};
}

// One sample in each of as many equal parts, at a place of its own there: files
// are full of patterns.
uint64_t samplePlace(uint64_t sample, uint64_t bytes) {
  if (sample == 0)
    return 0;
  if (sample + 1 == kSamples)
    return bytes - kSampleBytes;
  const uint64_t part = bytes / kSamples;
  const uint64_t mixed = (sample + 1) * 0x9e3779b97f4a7c15u;
  return sample * part + (mixed >> 32) % (part - kSampleBytes + 1);
}

// The checksum of checksums of pieces.
Result<uint64_t> hashPieces(int fd, const std::string &path, uint64_t bytes,
                            bool sampled) {
  const uint64_t count =
      sampled ? kSamples : (bytes + kChunkBytes - 1) / kChunkBytes;
  std::vector<uint64_t> sums;
  std::vector<char> piece;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = sampled ? samplePlace(i, bytes) : i * kChunkBytes;
    piece.resize(sampled ? kSampleBytes : std::min(kChunkBytes, bytes - at));
    MERAK_RETURN_IF_ERROR(readAt(fd, path, at, piece));
    sums.push_back(planChecksum(piece.data(), piece.size()));
  }
  sums.push_back(bytes);
  return planChecksum(sums.data(), sums.size() * sizeof(uint64_t));
}

} // namespace

Result<FileIdentity> identifyFile(const std::string &path, uint64_t whole) {
  // A pipe would wait for its writer.
  Descriptor file{
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  struct stat before, after;
  if (file.fd < 0)
    return failed(path, "cannot open");
  if (fstat(file.fd, &before) != 0)
    return failed(path, "cannot read its size");
  if (!S_ISREG(before.st_mode))
    return Status::error(fmt::format("\"{}\" is not a file", path));
  FileIdentity identity;
  identity.bytes = static_cast<uint64_t>(before.st_size);
  identity.modified = modifiedOf(before);
  identity.sampled = identity.bytes > std::max(whole, kSamples * kSampleBytes);
  auto hash = hashPieces(file.fd, path, identity.bytes, identity.sampled);
  if (!hash)
    return hash.status();
  identity.hash = *hash;
  if (fstat(file.fd, &after) != 0 || after.st_size != before.st_size ||
      modifiedOf(after) != identity.modified)
    return Status::error(
        fmt::format("\"{}\" was written while it was read", path));
  return identity;
}

const planpb::SourceFile *findSourceFile(const planpb::PlanFile &file,
                                         const std::string &path) {
  for (const planpb::SourceFile &record : file.source_files())
    if (record.path() == path)
      return &record;
  return nullptr;
}

Status checkSourceFile(const planpb::SourceFile &record,
                       const std::string &path, SourceCheck check,
                       std::string *note) {
  if (check == SourceCheck::Off)
    return {};
  const bool full = check == SourceCheck::Full;
  if (full && record.sampled())
    return Status::error(fmt::format(
        "\"{}\": the plan knows a hash of samples only, --verify=full needs "
        "one of the whole file: compile with --hash=full",
        path));
  auto found = identifyFile(path, record.sampled() ? 0 : UINT64_MAX);
  if (!found)
    return found.status();
  const char *const kAdvice = "(compile it again, or take it as it is with "
                              "merak-run --verify=off)";
  if (found->bytes != record.bytes())
    return Status::error(fmt::format(
        "\"{}\" has changed since the plan was made: expected {} bytes, found "
        "{} {}",
        path, record.bytes(), found->bytes, kAdvice));
  if (found->hash != record.hash())
    return Status::error(fmt::format(
        "\"{}\" has changed since the plan was made: expected contents of hash "
        "{:016x}, found {:016x} {}",
        path, record.hash(), found->hash, kAdvice));
  if (note && record.sampled() && found->modified != record.modified())
    *note = fmt::format("\"{}\" was written since the plan was made; 4 MiB of "
                        "it were compared and are the same (--hash=full and "
                        "--verify=full compare all)",
                        path);
  return {};
}

} // namespace merak
