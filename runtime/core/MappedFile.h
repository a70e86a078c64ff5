// A file of the user, mapped for reading: pages are read when touched, so a
// rank reads only what it needs.
//
// A file that becomes shorter while it is mapped has no bytes to read any more,
// and the kernel would end the process. Here its pages read as zeros from then
// on, and `intact` says what happened: whoever used bytes of the file asks it
// afterwards.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <memory>
#include <string>

namespace merak::runtime {

class MappedFile {
public:
  // Regular files only.
  static Result<std::shared_ptr<MappedFile>> open(const std::string &path);
  ~MappedFile();
  MappedFile(const MappedFile &) = delete;
  MappedFile &operator=(const MappedFile &) = delete;

  const char *data() const { return data_; }
  uint64_t size() const { return size_; }
  const std::string &path() const { return path_; }
  // An error if bytes that were read since the file was opened were not there.
  Status intact() const;

private:
  MappedFile() = default;
  Status map(int fd);
  std::string path_;
  const char *data_ = nullptr;
  uint64_t size_ = 0;
  int slot_ = -1; // among the guarded mappings
};

} // namespace merak::runtime
