// Bytes of files that processes of a run send each other beside the steps, over
// the communication of host memory that the run has, and the files in memory
// that they lie in.
#pragma once

#include "runtime/comm/World.h"

#include <span>

namespace merak::runtime {

// A file of a length that is set at once, written where it is mapped. Its pages
// are there from the beginning: later nothing can be missing.
class CopyFile {
public:
  // The file must not be there.
  static Result<CopyFile> make(const std::string &path, uint64_t bytes);
  CopyFile() = default;
  CopyFile(CopyFile &&other) noexcept { *this = std::move(other); }
  CopyFile &operator=(CopyFile &&other) noexcept;
  ~CopyFile();
  char *data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

private:
  char *data_ = nullptr;
  uint64_t bytes_ = 0;
};

// What this process sends to a rank, or receives from it.
struct CopyLeg {
  bool send = false;
  int peer = 0;
  char *data = nullptr;
  uint64_t bytes = 0;
};

// Sends and receives at the same time, each in order, in pieces of a MiB.
// Both ends go through what they share in the same order; then none waits for
// one that waits for it. `channel` must be used by one such call at a time.
// Errors: those of the world, which may communicate memory of devices alone.
Status carry(World &world, const std::string &channel,
             std::span<const CopyLeg> legs);

} // namespace merak::runtime
