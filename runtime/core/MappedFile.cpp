#include "runtime/core/MappedFile.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace merak::runtime {

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string &path) {
  auto fail = [&](const char *what) {
    return Status::error(
        fmt::format("\"{}\": {}: {}", path, what, std::strerror(errno)));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return fail("cannot open");
  struct stat info;
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  Status status;
  if (fstat(fd, &info) != 0) {
    status = fail("cannot read its size");
  } else if (!S_ISREG(info.st_mode)) {
    status = Status::error(fmt::format("\"{}\" is not a file", path));
  } else if (info.st_size > 0) {
    file->size_ = static_cast<uint64_t>(info.st_size);
    void *data = mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
      status = fail("cannot map");
    else
      file->data_ = static_cast<const char *>(data);
  }
  close(fd);
  if (!status.ok())
    return status;
  return file;
}

MappedFile::~MappedFile() {
  if (data_)
    munmap(const_cast<char *>(data_), size_);
}

} // namespace merak::runtime
