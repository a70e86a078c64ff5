// A buffer of a rank as host memory: the memory itself on a host backend, a
// copy on a device (private to the runtime's libraries).
#pragma once

#include "runtime/checkpoint/Checkpoint.h"

namespace merak::runtime {

class HostCopy {
public:
  static Result<HostCopy> of(const RankMemory &rank, int buffer, int slot = 0);
  const char *data() const { return data_; }
  const std::vector<int64_t> &shape() const { return shape_; }

private:
  char *data_ = nullptr;
  std::vector<char> bytes_;
  std::vector<int64_t> shape_;
};

} // namespace merak::runtime
