#include "runtime/checkpoint/CopyFolder.h"

#include "runtime/checkpoint/Shards.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <thread>
#include <unistd.h>

namespace merak::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char *kFolder = "merak-", *kBase = "base";
constexpr size_t kIdDigits = 16;
// A process that was told to end may take so long to give its memory back.
constexpr double kTakeSeconds = 20;
// A run that is started again is so soon.
constexpr auto kForgotten = std::chrono::hours(1);

bool isHex(const std::string &text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Ours, and for nobody else.
Status checkFolder(const std::string &path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0)
    return Status::error(
        fmt::format("cannot read \"{}\": {}", path, std::strerror(errno)));
  if (!S_ISDIR(info.st_mode))
    return Status::error(
        fmt::format("\"{}\" is there and is no folder of copies", path));
  if (info.st_uid != geteuid() || (info.st_mode & 0077) != 0)
    return Status::error(
        fmt::format("\"{}\" is not this user's alone (expected owner {} and "
                    "mode 700, found {} and {:o}): no copies are kept there",
                    path, geteuid(), info.st_uid, info.st_mode & 07777));
  return {};
}

// Bytes are read on as many threads as this machine can feed.
FoundGeneration findParts(const std::string &folder, const Manifest &manifest) {
  FoundGeneration found;
  found.parts = int64_t(manifest.shards.size());
  std::vector<int> state(manifest.shards.size(), 0); // 1: good, 2: damaged
  std::atomic<size_t> next{0};
  auto look = [&] {
    for (size_t i; (i = next++) < state.size();) {
      const auto shard = manifest.shards.find(partName(int(i)));
      const std::string path = joinPath(folder, partName(int(i)));
      if (shard == manifest.shards.end() || entryAt(path) == Entry::none)
        continue;
      auto file = MappedFile::open(path);
      const bool good = file.ok() && checkFile(**file, shard->second).ok() &&
                        (*file)->intact().ok();
      state[i] = good ? 1 : 2;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1;
       i < std::min(8u, std::max(1u, std::thread::hardware_concurrency())); ++i)
    threads.emplace_back(look);
  look();
  for (std::thread &thread : threads)
    thread.join();
  for (size_t i = 0; i < state.size(); ++i)
    if (state[i] > 0)
      (state[i] == 1 ? found.good : found.damaged).push_back(int(i));
  return found;
}

bool isLocked(const std::string &folder) {
  const int file = ::open(joinPath(folder, ".lock").c_str(),
                          O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return false;
  const bool locked = flock(file, LOCK_EX | LOCK_NB) != 0;
  ::close(file);
  return locked;
}

} // namespace

std::string CopyRun::name() const {
  return fmt::format("{}{:08x}", id.substr(0, 8), start);
}

std::optional<int64_t> startOf(const CopyRun &run, const std::string &name) {
  if (!isHex(name, kIdDigits) || name.substr(0, 8) != run.id.substr(0, 8))
    return std::nullopt;
  return std::stoll(name.substr(8), nullptr, 16);
}

std::string copiesBase() {
  const char *base = std::getenv("MERAK_COPIES");
  return base && *base ? base : "/dev/shm";
}

std::string copiesPath(const std::string &id, const std::string &base) {
  return joinPath(base, kFolder + id);
}

std::string partName(int part) {
  return fmt::format("part-{}.safetensors", part);
}

Status checkCopiesBase(const std::string &base) {
  struct stat info;
  if (::stat(base.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return Status::error(fmt::format(
        "--copies: \"{}\" is no folder (MERAK_COPIES names another)", base));
  if (access(base.c_str(), W_OK | X_OK) != 0)
    return Status::error(
        fmt::format("--copies: cannot write \"{}\": {} (MERAK_COPIES names "
                    "another folder)",
                    base, std::strerror(errno)));
  return {};
}

CopyFolder::CopyFolder(CopyRun run, std::string base)
    : run_(std::move(run)), base_(std::move(base)),
      path_(copiesPath(run_.id, base_)),
      generations_(std::make_unique<Generations>(path_, Files::system(),
                                                 run_.name(), thisProcess())) {}

Result<std::unique_ptr<CopyFolder>> CopyFolder::open(const CopyRun &run,
                                                     const std::string &base) {
  MERAK_RETURN_IF_ERROR(checkCopiesBase(base));
  const std::string path = copiesPath(run.id, base);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Status::error(fmt::format("cannot make the folder \"{}\": {}", path,
                                     std::strerror(errno)));
  MERAK_RETURN_IF_ERROR(checkFolder(path));
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    std::unique_ptr<CopyFolder> folder(new CopyFolder(run, base));
    Status taken = folder->generations_->take();
    if (taken.ok())
      return folder;
    const std::chrono::duration<double> waited =
        std::chrono::steady_clock::now() - begin;
    if (!isLocked(path) || waited.count() > kTakeSeconds)
      return taken;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Result<std::string> CopyFolder::identity() const {
  struct stat info;
  if (::stat(path_.c_str(), &info) != 0)
    return Status::error(
        fmt::format("cannot read \"{}\": {}", path_, std::strerror(errno)));
  std::string machine = textOrNone("/proc/sys/kernel/random/boot_id");
  return fmt::format("{} {} {}", machine.substr(0, machine.find('\n')),
                     info.st_dev, info.st_ino);
}

Status CopyFolder::removeLeftovers() {
  MERAK_RETURN_IF_ERROR(generations_->removeLeftovers());
  auto names = namesIn(base_);
  if (!names)
    return names.status();
  for (const std::string &name : *names) {
    const std::string other = joinPath(base_, name);
    if (!name.starts_with(kFolder) ||
        !isHex(name.substr(std::strlen(kFolder)), kIdDigits) ||
        other == path_ || !checkFolder(other).ok() || isLocked(other))
      continue;
    std::error_code error;
    const auto changed = fs::last_write_time(other, error);
    if (!error && fs::file_time_type::clock::now() - changed > kForgotten)
      fs::remove_all(other, error);
  }
  return {};
}

Result<FoundCopies> CopyFolder::find() const {
  FoundCopies found;
  std::istringstream words(textOrNone(at(kBase)));
  CopyBase base;
  if (words >> base.start >> base.from >> base.step)
    found.base = base;
  auto folders = generationsIn(path_);
  if (!folders)
    return folders.status();
  for (const std::string &folder : *folders) {
    const std::string path = joinPath(folder, kManifestName);
    auto manifest = readManifest(path);
    if (!manifest)
      continue; // damaged: as if it were not there
    const auto start = startOf(run_, manifest->state.run);
    if (!start)
      continue;
    const std::string text = textOrNone(path);
    FoundGeneration generation = findParts(folder, *manifest);
    generation.start = *start;
    generation.step = manifest->state.step;
    generation.manifest = checksumText(Checksum::of(text.data(), text.size()));
    found.generations.push_back(std::move(generation));
  }
  return found;
}

Status CopyFolder::writeBase(const CopyBase &base) {
  return replaceText(
      Files::system(), path_, kBase, ".latest-" + run_.name(),
      fmt::format("{} {} {}\n", base.start, base.from, base.step));
}

// The manifest first: half of it is never taken for a generation.
Status CopyFolder::removeGeneration(int64_t step) {
  const std::string folder = generation(step);
  std::error_code error;
  fs::remove(joinPath(folder, kManifestName), error);
  fs::remove_all(folder, error);
  return error ? Status::error(fmt::format("cannot remove \"{}\": {}", folder,
                                           error.message()))
               : Status();
}

Status CopyFolder::removeOthers(int64_t step) {
  auto names = namesIn(path_);
  if (!names)
    return names.status();
  Status problems;
  for (const std::string &name : *names)
    if (const auto found = stepOfName(name); found && *found != step)
      problems.merge(removeGeneration(*found));
  return problems;
}

uint64_t CopyFolder::bytesOfGenerations() const {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(path_, error), end;
       !error && at != end; at.increment(error))
    if (at->is_regular_file(error))
      bytes += at->file_size(error);
  return bytes;
}

Result<uint64_t> CopyFolder::freeBytes() const {
  struct statvfs info;
  if (::statvfs(path_.c_str(), &info) != 0)
    return Status::error(
        fmt::format("cannot read \"{}\": {}", path_, std::strerror(errno)));
  return uint64_t(info.f_bavail) * info.f_frsize;
}

Status removeCopies(const std::string &id) {
  const std::string path = copiesPath(id);
  if (entryAt(path) == Entry::none)
    return {};
  MERAK_RETURN_IF_ERROR(checkFolder(path));
  std::error_code error;
  for (int tries = 0; tries < 10 && entryAt(path) != Entry::none; ++tries)
    fs::remove_all(path, error);
  return entryAt(path) == Entry::none
             ? Status()
             : Status::error(fmt::format("cannot remove \"{}\": {}", path,
                                         error.message()));
}

std::optional<int64_t> newestCopy(const std::string &id) {
  auto folders = generationsIn(copiesPath(id));
  if (!folders || folders->empty())
    return std::nullopt;
  const std::string &last = folders->back();
  return stepOfName(last.substr(last.rfind('/') + 1));
}

} // namespace merak::runtime
