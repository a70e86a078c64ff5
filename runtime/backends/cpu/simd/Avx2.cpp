#include "runtime/backends/cpu/simd/TableImpl.h"

namespace merak::cpu {
extern const Simd kAvx2;
const Simd kAvx2 = makeTable("avx2");
} // namespace merak::cpu
