#include "runtime/checkpoint/Generations.h"

#include "runtime/checkpoint/Manifest.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/file.h>
#include <thread>
#include <unistd.h>

namespace merak::runtime {
namespace {

constexpr const char *kLatest = "latest";
constexpr const char *kLock = ".lock";
constexpr const char *kOwner = "merak-run "; // how a lock's text begins
constexpr const char *kPrefixes[] = {".saving-", ".removing-", ".latest-"};

std::string latestText(const std::string &name) {
  return fmt::format("{} {}\n", name,
                     checksumText(Checksum::of(name.data(), name.size())));
}

// Whether the name is one that a run gives to what is not whole.
bool isLeftover(const std::string &name) {
  for (const std::string prefix : kPrefixes) {
    if (!name.starts_with(prefix))
      continue;
    const std::string rest = name.substr(prefix.size());
    if (rest.size() < 16 || rest.substr(0, 16).find_first_not_of(
                                "0123456789abcdef") != std::string::npos)
      return false;
    return prefix == ".latest-" ? rest.size() == 16
                                : rest.size() > 17 && rest[16] == '-' &&
                                      stepOfName(rest.substr(17)).has_value();
  }
  return false;
}

bool isOurs(const std::string &name) {
  return name == kManifestName || isShardName(name);
}

// One that is read may lie behind a link; one that is replaced may not.
bool isReadable(const std::string &folder) {
  return entryAt(joinPath(folder, kManifestName)) == Entry::file;
}
bool isGeneration(const std::string &folder) {
  return entryAt(folder) == Entry::folder && isReadable(folder);
}

// Whole generations in the folder, oldest first.
Result<std::vector<int64_t>>
stepsIn(const std::string &dir, bool (*accept)(const std::string &folder)) {
  auto names = namesIn(dir);
  if (!names)
    return names.status();
  std::vector<int64_t> steps;
  for (const std::string &name : *names)
    if (const auto step = stepOfName(name); step && accept(joinPath(dir, name)))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<std::string> textOf(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  return std::string((*file)->data() ? (*file)->data() : "", (*file)->size());
}

// Which generation `latest` names; empty: there is no such file.
Result<std::string> readLatest(const std::string &dir) {
  const std::string path = joinPath(dir, kLatest);
  if (entryAt(path) == Entry::none)
    return std::string();
  auto text = textOf(path);
  if (!text)
    return text.status();
  const std::string name = text->substr(0, text->find(' '));
  if (!stepOfName(name) || *text != latestText(name))
    return Status::error(fmt::format(
        "\"{}\" is damaged or not ours: give one generation, \"{}/step-N\"",
        path, dir));
  return name;
}

} // namespace

std::optional<int64_t> stepOfName(const std::string &name) {
  const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
  if (digits.empty() || digits.size() > 18 ||
      (digits.size() > 1 && digits[0] == '0') ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
}

std::string generationName(int64_t step) {
  return fmt::format("step-{}", step);
}

Result<std::string> findGeneration(const std::string &path, std::string &note) {
  auto latest = readLatest(path);
  if (!latest)
    return latest.status();
  if (!latest->empty() && isReadable(joinPath(path, *latest)))
    return joinPath(path, *latest);
  if (entryAt(joinPath(path, kManifestName)) != Entry::none)
    return path;
  auto steps = stepsIn(path, isReadable);
  if (!steps)
    return steps.status();
  if (steps->empty())
    return Status::error(fmt::format(
        "\"{}\" is not a checkpoint: no index.json, and no folder step-N",
        path));
  const std::string newest = generationName(steps->back());
  if (!latest->empty())
    note = fmt::format("\"{}/{}\" names {}, which is not there: taking {}",
                       path, kLatest, *latest, newest);
  return joinPath(path, newest);
}

Result<std::vector<std::string>> generationsIn(const std::string &path) {
  if (isReadable(path))
    return std::vector<std::string>{path};
  auto steps = stepsIn(path, isReadable);
  if (!steps)
    return steps.status();
  std::vector<std::string> folders;
  for (int64_t step : *steps)
    folders.push_back(joinPath(path, generationName(step)));
  return folders;
}

std::string newRun() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string thisProcess() {
  char host[256] = "?";
  (void)gethostname(host, sizeof(host) - 1);
  return fmt::format("(process {} on host {})", getpid(), host);
}

Generations::~Generations() {
  if (lock_ >= 0)
    ::close(lock_); // and with it the lock
}

std::string Generations::temporaryOf(int64_t step) const {
  return at(fmt::format(".saving-{}-{}", run_, generationName(step)));
}

Status Generations::take() {
  std::string parent = dir_;
  while (parent.size() > 1 && parent.ends_with('/'))
    parent.pop_back();
  const bool made = entryAt(parent) == Entry::none;
  MERAK_RETURN_IF_ERROR(files_.makeFolder(dir_));
  if (made) {
    const size_t slash = parent.rfind('/');
    parent = slash == std::string::npos ? "." : parent.substr(0, slash + 1);
    MERAK_RETURN_IF_ERROR(files_.syncFolder(parent));
  }
  return lock();
}

// The lock is the kernel's: it ends with its process, however that ends. The
// text only says whose it is.
Status Generations::lock() {
  const std::string path = at(kLock);
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (lock_ < 0)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  const bool taken = flock(lock_, LOCK_EX | LOCK_NB) == 0;
  const bool refused = !taken && errno == EWOULDBLOCK;
  auto text = textOf(path);
  if (!text)
    return text.status();
  if (!text->empty() && !text->starts_with(kOwner))
    return Status::error(
        fmt::format("\"{}\" is there and is no lock of ours", path));
  const std::string begin = fmt::format("{}{} ", kOwner, run_);
  // Whoever has just taken it is about to say who it is.
  for (int tries = 0; refused && tries < 50 && !text->starts_with(begin);
       ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    text = textOf(path);
    if (!text)
      return text.status();
  }
  if (!taken && text->starts_with(begin))
    return {};
  if (refused)
    return Status::error(
        fmt::format("\"{}\" is being written by {}: two runs need two folders",
                    dir_, text->substr(0, text->find('\n'))));
  if (!taken)
    note_ = fmt::format("\"{}\" lies on a file system without locks: nothing "
                        "keeps a second run from writing there",
                        dir_);
  const std::string mine = fmt::format("{}{}\n", begin, owner_);
  leads_ = true;
  if (ftruncate(lock_, 0) != 0 ||
      pwrite(lock_, mine.data(), mine.size(), 0) != ssize_t(mine.size()))
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  return {};
}

// Files of a generation, and the folder if nothing else is in it.
Status Generations::removeOurs(const std::string &folder) {
  auto names = namesIn(folder);
  if (!names)
    return names.status();
  for (const std::string &name : *names)
    if (isOurs(name))
      MERAK_RETURN_IF_ERROR(files_.remove(joinPath(folder, name)));
  const bool strangers = !std::all_of(names->begin(), names->end(), isOurs);
  return strangers ? Status() : files_.removeFolder(folder);
}

Status Generations::removeLeftovers() {
  auto names = namesIn(dir_);
  if (!names)
    return names.status();
  Status problems;
  for (const std::string &name : *names) {
    if (!isLeftover(name))
      continue;
    if (entryAt(at(name)) == Entry::folder)
      problems.merge(removeOurs(at(name)));
    else if (entryAt(at(name)) == Entry::file)
      problems.merge(files_.remove(at(name)));
  }
  return problems;
}

// What is in the way of a generation and of `latest`, and is not ours.
Status Generations::checkNames(int64_t step) const {
  const std::string target = at(generationName(step));
  if (entryAt(target) != Entry::none && !isGeneration(target))
    return Status::error(fmt::format(
        "\"{}\" is there and is not a checkpoint; it is not replaced", target));
  const Entry latest = entryAt(at(kLatest));
  if (latest == Entry::none)
    return {};
  if (latest == Entry::file && readLatest(dir_).ok())
    return {};
  return Status::error(fmt::format("\"{}\" is there and is not ours; it is not "
                                   "replaced",
                                   at(kLatest)));
}

Status Generations::begin(int64_t step) {
  MERAK_RETURN_IF_ERROR(checkNames(step));
  if (entryAt(temporaryOf(step)) == Entry::folder) // an attempt that failed
    MERAK_RETURN_IF_ERROR(removeOurs(temporaryOf(step)));
  return files_.makeFolder(temporaryOf(step));
}

Status Generations::commit(int64_t step) {
  const std::string name = generationName(step), temporary = temporaryOf(step);
  MERAK_RETURN_IF_ERROR(files_.syncFolder(temporary));
  if (entryAt(at(name)) == Entry::none) {
    MERAK_RETURN_IF_ERROR(files_.rename(temporary, at(name)));
  } else { // an earlier run went the same way
    auto exchanged = files_.exchange(temporary, at(name));
    if (!exchanged)
      return exchanged.status();
    if (!*exchanged) {
      MERAK_RETURN_IF_ERROR(removeGeneration(name));
      MERAK_RETURN_IF_ERROR(files_.rename(temporary, at(name)));
    }
  }
  MERAK_RETURN_IF_ERROR(files_.syncFolder(dir_));
  MERAK_RETURN_IF_ERROR(
      replaceText(files_, dir_, kLatest, ".latest-" + run_, latestText(name)));
  // After an exchange: what was replaced.
  return entryAt(temporary) == Entry::folder ? removeOurs(temporary) : Status();
}

// Under another name first, so that half of it is never taken for a generation.
Status Generations::removeGeneration(const std::string &name) {
  const std::string going = at(fmt::format(".removing-{}-{}", run_, name));
  MERAK_RETURN_IF_ERROR(files_.rename(at(name), going));
  MERAK_RETURN_IF_ERROR(files_.syncFolder(dir_));
  return removeOurs(going);
}

Status Generations::prune(int64_t step, int keep) {
  auto steps = stepsIn(dir_, isGeneration);
  if (!steps)
    return steps.status();
  // Later ones are of a run that began again before them.
  std::erase_if(*steps, [&](int64_t other) { return other > step; });
  Status problems;
  for (size_t i = 0; i + size_t(keep) < steps->size(); ++i) {
    const std::string name = generationName((*steps)[i]);
    auto names = namesIn(at(name));
    if (!names)
      return names.status();
    if (std::all_of(names->begin(), names->end(), isOurs))
      problems.merge(removeGeneration(name));
  }
  return problems;
}

void Generations::discard(int64_t step) {
  (void)removeOurs(temporaryOf(step));
  if (entryAt(at(".latest-" + run_)) == Entry::file)
    (void)files_.remove(at(".latest-" + run_));
}

} // namespace merak::runtime
