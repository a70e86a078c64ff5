#include "runtime/backends/cpu/simd/TableImpl.h"

namespace merak::cpu {
extern const Simd kAvx512;
const Simd kAvx512 = makeTable("avx512");
} // namespace merak::cpu
