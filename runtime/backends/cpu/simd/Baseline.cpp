#include "runtime/backends/cpu/simd/TableImpl.h"

namespace merak::cpu {
extern const Simd kBaseline;
const Simd kBaseline = makeTable("baseline");
} // namespace merak::cpu
