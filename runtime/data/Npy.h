// NumPy's .npy files, versions 1 to 3, little endian, row major.
#pragma once

#include "runtime/core/MappedFile.h"
#include "runtime/plan/plan.pb.h"

#include <vector>

namespace merak::runtime {

struct NpyArray {
  std::shared_ptr<MappedFile> file;
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  const char *data = nullptr; // not aligned
};

// Checks that the header is whole and the data as long as it says.
Result<NpyArray> openNpy(const std::string &path);

// Writes version 1. BF16 has no NumPy type and is refused.
Status writeNpy(const std::string &path, planpb::DType dtype,
                const std::vector<int64_t> &shape, const void *data);

} // namespace merak::runtime
