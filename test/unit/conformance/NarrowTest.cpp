// Floats as 16 bits, a vector at a time: the bits of HalfFloat.h.
#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/core/HalfFloat.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace merak::cpu {
namespace {

// What every value of 16 bits lies between, ties, and what is near them;
// infinities, the smallest and largest numbers, and values that are none.
std::vector<float> values() {
  std::vector<float> list;
  for (uint32_t high = 0; high < 1u << 16; ++high)
    for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu,
                         0x8000u, 0x8001u, 0xffffu})
      list.push_back(runtime::bitsToFloat(high << 16 | low));
  return list;
}

void expectNarrow(const Simd &set, const std::vector<float> &x, bool isF16) {
  std::vector<uint16_t> y(x.size());
  // From a place that no vector begins at, and not a whole number of them.
  set.narrow(y.data() + 1, x.data() + 1, int64_t(x.size()) - 1, isF16);
  for (size_t i = 1; i < x.size(); ++i)
    ASSERT_EQ(y[i],
              isF16 ? runtime::floatToF16(x[i]) : runtime::floatToBf16(x[i]))
        << set.name << " " << std::hex << runtime::floatToBits(x[i])
        << (isF16 ? " f16" : " bf16");
}

TEST(Narrow, HasTheBitsOfOneByOne) {
  const std::vector<float> x = values();
  for (const char *name : {"avx512", "avx2", "baseline"})
    if (const Simd *set = findSimd(name))
      for (bool isF16 : {false, true})
        expectNarrow(*set, x, isF16);
}
} // namespace
} // namespace merak::cpu
