// A file of the user, mapped for reading: pages are read when touched, so a
// rank reads only what it needs.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <memory>
#include <string>

namespace merak::runtime {

class MappedFile {
public:
  static Result<std::shared_ptr<MappedFile>> open(const std::string &path);
  ~MappedFile();
  MappedFile(const MappedFile &) = delete;
  MappedFile &operator=(const MappedFile &) = delete;

  const char *data() const { return data_; }
  uint64_t size() const { return size_; }
  const std::string &path() const { return path_; }

private:
  MappedFile() = default;
  std::string path_;
  const char *data_ = nullptr;
  uint64_t size_ = 0;
};

} // namespace merak::runtime
