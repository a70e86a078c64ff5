// The parallel range of a compiled kernel and hints for whoever divides it
// among threads. The result of a kernel does not depend on the division.
#pragma once

#include <cstdint>

namespace merak::codegen {

struct KernelRange {
  int64_t rows = 0;  // the kernel accepts any [begin, end) of [0, rows)
  int64_t grain = 1; // rows worth a task of their own (tens of microseconds)
  double flops = 0;  // of the whole range; an exp counts as 16
  double bytes = 0;  // read and written, each operand once
};

} // namespace merak::codegen
