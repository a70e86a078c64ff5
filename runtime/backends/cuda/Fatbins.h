// The hand-written kernels as the program carries them.
#pragma once

#include <vector>

namespace merak::cuda {

struct Fatbin {
  const char *name;
  const void *data;
};
std::vector<Fatbin> fatbins();

} // namespace merak::cuda
