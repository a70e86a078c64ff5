#include "runtime/backends/cpu/simd/Simd.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace merak::cpu {

extern const Simd kAvx512, kAvx2, kBaseline;

namespace {

bool runs(const Simd &set) {
  if (&set == &kAvx512)
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
  if (&set == &kAvx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return true;
}

const Simd &choose() {
  if (const char *name = std::getenv("MERAK_SIMD"))
    if (const Simd *set = findSimd(name))
      return *set;
  for (const Simd *set : {&kAvx512, &kAvx2})
    if (runs(*set))
      return *set;
  return kBaseline;
}

} // namespace

const Simd *findSimd(const char *name) {
  for (const Simd *set : {&kAvx512, &kAvx2, &kBaseline})
    if (std::strcmp(set->name, name) == 0 && runs(*set))
      return set;
  return nullptr;
}

const Simd &simd() {
  static const Simd &set = choose();
  return set;
}

} // namespace merak::cpu
