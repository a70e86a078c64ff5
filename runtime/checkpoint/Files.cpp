#include "runtime/checkpoint/Files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

Status failed(const char *what, const std::string &path) {
  return Status::error(
      fmt::format("cannot {} \"{}\": {}", what, path, std::strerror(errno)));
}

} // namespace

Status Files::before(Call, const std::string &) { return {}; }

Files &Files::system() {
  static Files files;
  return files;
}

Files::Output::~Output() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

Status Files::Output::write(const void *data, size_t bytes) {
  MERAK_RETURN_IF_ERROR(files_.before(Call::write, path_));
  const char *at = static_cast<const char *>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, at, bytes);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return failed("write", path_);
    at += done;
    bytes -= size_t(done);
  }
  return {};
}

Status Files::Output::close() {
  MERAK_RETURN_IF_ERROR(files_.before(Call::sync, path_));
  if (fsync(descriptor_) != 0)
    return failed("write", path_);
  MERAK_RETURN_IF_ERROR(files_.before(Call::close, path_));
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return ::close(descriptor) == 0 ? Status() : failed("write", path_);
}

Result<std::unique_ptr<Files::Output>> Files::create(const std::string &path) {
  MERAK_RETURN_IF_ERROR(before(Call::create, path));
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0)
    return failed("write", path);
  return std::make_unique<Output>(*this, path, descriptor);
}

Status Files::makeFolder(const std::string &path) {
  MERAK_RETURN_IF_ERROR(before(Call::makeFolder, path));
  if (::mkdir(path.c_str(), 0777) == 0)
    return {};
  struct stat info;
  if (errno == EEXIST && ::stat(path.c_str(), &info) == 0 &&
      S_ISDIR(info.st_mode))
    return {};
  return failed("make the folder", path);
}

Status Files::syncFolder(const std::string &path) {
  MERAK_RETURN_IF_ERROR(before(Call::syncFolder, path));
  const int descriptor =
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0)
    return failed("write", path);
  // Some file systems of networks have no such call, and need none.
  const bool good =
      fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP;
  Status status = good ? Status() : failed("write", path);
  ::close(descriptor);
  return status;
}

Status Files::rename(const std::string &from, const std::string &to) {
  MERAK_RETURN_IF_ERROR(before(Call::rename, to));
  return ::rename(from.c_str(), to.c_str()) == 0 ? Status()
                                                 : failed("write", to);
}

Result<bool> Files::exchange(const std::string &a, const std::string &b) {
  MERAK_RETURN_IF_ERROR(before(Call::exchange, b));
#ifdef RENAME_EXCHANGE
  if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0)
    return true;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    return failed("replace", b);
#endif
  return false;
}

Status Files::remove(const std::string &path) {
  MERAK_RETURN_IF_ERROR(before(Call::remove, path));
  return ::unlink(path.c_str()) == 0 ? Status() : failed("remove", path);
}

Status Files::removeFolder(const std::string &path) {
  MERAK_RETURN_IF_ERROR(before(Call::removeFolder, path));
  return ::rmdir(path.c_str()) == 0 ? Status() : failed("remove", path);
}

Entry entryAt(const std::string &path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0)
    return Entry::none;
  return S_ISREG(info.st_mode)   ? Entry::file
         : S_ISDIR(info.st_mode) ? Entry::folder
         : S_ISLNK(info.st_mode) ? Entry::link
                                 : Entry::other;
}

std::string joinPath(const std::string &folder, const std::string &name) {
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

std::string textOrNone(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

Status createText(Files &files, const std::string &path,
                  const std::string &text) {
  auto file = files.create(path);
  if (!file)
    return file.status();
  MERAK_RETURN_IF_ERROR((*file)->write(text.data(), text.size()));
  return (*file)->close();
}

Status replaceText(Files &files, const std::string &folder,
                   const std::string &name, const std::string &temporary,
                   const std::string &text) {
  const std::string path = joinPath(folder, temporary);
  auto file = files.create(path);
  if (!file)
    return file.status();
  MERAK_RETURN_IF_ERROR((*file)->write(text.data(), text.size()));
  MERAK_RETURN_IF_ERROR((*file)->close());
  MERAK_RETURN_IF_ERROR(files.rename(path, joinPath(folder, name)));
  return files.syncFolder(folder);
}

Result<std::vector<std::string>> namesIn(const std::string &folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error)
    return Status::error(
        fmt::format("cannot read \"{}\": {}", folder, error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

} // namespace merak::runtime
