// Element types of device kernels: a typed address and conversions. Compiled by
// nvcc for devices and by the host compiler for tests, so nothing here may need
// more than the language and math.h.
#pragma once

#include "runtime/core/HalfFloat.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define MERAK_HD __device__ inline
#define MERAK_UNROLL _Pragma("unroll")
#else
#define MERAK_HD inline
#define MERAK_UNROLL
#endif

namespace merak::cuda {

// As planpb::DType, which device code cannot see.
enum class Type : int32_t {
  F32 = 1,
  I64,
  I32,
  Bool,
  BF16,
  F16,
  F64,
  U8,
  I8,
  I16,
  U16,
  U32,
  U64
};

// The first element of an operand.
struct Ref {
  char *data = nullptr;
  Type type = Type::F32;
};

template <typename To> MERAK_HD constexpr To powerOfTwo(int exponent) {
  To value = 1;
  for (int i = 0; i < exponent; ++i)
    value *= 2;
  return value;
}

// To a whole number: toward zero, saturating, NaN is 0.
template <typename To, typename From> MERAK_HD To toWhole(From x) {
  if constexpr (std::is_integral_v<From>) {
    return static_cast<To>(x);
  } else {
    constexpr int kDigits = 8 * sizeof(To) - (To(-1) < To(0) ? 1 : 0);
    constexpr To kMax = static_cast<To>(~uint64_t{0} >> (64 - kDigits));
    constexpr To kMin = To(-1) < To(0) ? static_cast<To>(-kMax - 1) : To(0);
    const From above = powerOfTwo<From>(kDigits);
    if (x != x)
      return 0;
    if (x >= above)
      return kMax;
    if (x < static_cast<From>(kMin))
      return kMin;
    return static_cast<To>(x);
  }
}

// A floating-point value as T.
template <typename T, typename From> MERAK_HD T toWholeOr(From x) {
  if constexpr (std::is_integral_v<T>)
    return toWhole<T>(x);
  else
    return static_cast<T>(x);
}

template <typename T> MERAK_HD T &slot(const Ref &ref, int64_t i) {
  return reinterpret_cast<T *>(ref.data)[i];
}

// T: float, double or int64_t, which hold what the type has (16-bit floats in
// float; f64 in float is rounded).
template <typename T> MERAK_HD T load(const Ref &ref, int64_t i) {
  switch (ref.type) {
  case Type::F32:
    return toWholeOr<T>(slot<float>(ref, i));
  case Type::I64:
    return static_cast<T>(slot<int64_t>(ref, i));
  case Type::I32:
    return static_cast<T>(slot<int32_t>(ref, i));
  case Type::Bool:
    return static_cast<T>(slot<uint8_t>(ref, i) != 0);
  case Type::BF16:
    return toWholeOr<T>(runtime::bf16ToFloat(slot<uint16_t>(ref, i)));
  case Type::F16:
    return toWholeOr<T>(runtime::f16ToFloat(slot<uint16_t>(ref, i)));
  case Type::F64:
    return toWholeOr<T>(slot<double>(ref, i));
  case Type::U8:
    return static_cast<T>(slot<uint8_t>(ref, i));
  case Type::I8:
    return static_cast<T>(slot<int8_t>(ref, i));
  case Type::I16:
    return static_cast<T>(slot<int16_t>(ref, i));
  case Type::U16:
    return static_cast<T>(slot<uint16_t>(ref, i));
  case Type::U32:
    return static_cast<T>(slot<uint32_t>(ref, i));
  case Type::U64:
    return static_cast<T>(slot<uint64_t>(ref, i));
  }
  return T(0);
}

template <typename To, typename T>
MERAK_HD void storeWhole(const Ref &ref, int64_t i, T x, bool add) {
  const To value = toWhole<To>(x);
  slot<To>(ref, i) = add ? static_cast<To>(slot<To>(ref, i) + value) : value;
}

// Overwrites, or adds after rounding to the type; booleans add by "or".
template <typename T>
MERAK_HD void store(const Ref &ref, int64_t i, T x, bool add) {
  switch (ref.type) {
  case Type::F32: {
    const float value = static_cast<float>(x);
    slot<float>(ref, i) = add ? slot<float>(ref, i) + value : value;
    return;
  }
  case Type::F64: {
    const double value = static_cast<double>(x);
    slot<double>(ref, i) = add ? slot<double>(ref, i) + value : value;
    return;
  }
  case Type::BF16: {
    uint16_t &to = slot<uint16_t>(ref, i);
    const uint16_t value = runtime::floatToBf16(static_cast<float>(x));
    to = add ? runtime::floatToBf16(runtime::bf16ToFloat(value) +
                                    runtime::bf16ToFloat(to))
             : value;
    return;
  }
  case Type::F16: {
    uint16_t &to = slot<uint16_t>(ref, i);
    const uint16_t value = runtime::floatToF16(static_cast<float>(x));
    to = add ? runtime::floatToF16(runtime::f16ToFloat(value) +
                                   runtime::f16ToFloat(to))
             : value;
    return;
  }
  case Type::Bool: {
    uint8_t &to = slot<uint8_t>(ref, i);
    to = static_cast<uint8_t>(x != T(0) || (add && to != 0));
    return;
  }
  case Type::I64:
    return storeWhole<int64_t>(ref, i, x, add);
  case Type::I32:
    return storeWhole<int32_t>(ref, i, x, add);
  case Type::U8:
    return storeWhole<uint8_t>(ref, i, x, add);
  case Type::I8:
    return storeWhole<int8_t>(ref, i, x, add);
  case Type::I16:
    return storeWhole<int16_t>(ref, i, x, add);
  case Type::U16:
    return storeWhole<uint16_t>(ref, i, x, add);
  case Type::U32:
    return storeWhole<uint32_t>(ref, i, x, add);
  case Type::U64:
    return storeWhole<uint64_t>(ref, i, x, add);
  }
}

// Real elements of a type that the compiler knows: only then are several loads
// of an unrolled loop under way at once, which bandwidth takes.
struct AsF32 {
  using Word = float;
  static MERAK_HD float widen(float x) { return x; }
  static MERAK_HD float narrow(float x) { return x; }
};
struct AsBf16 {
  using Word = uint16_t;
  static MERAK_HD float widen(uint16_t x) { return runtime::bf16ToFloat(x); }
  static MERAK_HD uint16_t narrow(float x) { return runtime::floatToBf16(x); }
};
struct AsF16 {
  using Word = uint16_t;
  static MERAK_HD float widen(uint16_t x) {
#ifdef __CUDACC__
    float wide; // one instruction
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#else
    return runtime::f16ToFloat(x);
#endif
  }
  static MERAK_HD uint16_t narrow(float x) { return runtime::floatToF16(x); }
};

// body(AsF32{}) or what else the type, f32, bf16 or f16, is.
template <typename Body> MERAK_HD void withReal(Type type, const Body &body) {
  if (type == Type::BF16)
    body(AsBf16{});
  else if (type == Type::F16)
    body(AsF16{});
  else
    body(AsF32{});
}

constexpr int kAtOnce = 8; // loads of a thread that are under way

// use(x[i * stride], i) for i = begin, begin + step, ... below end, in this
// order.
template <typename As, typename Use>
MERAK_HD void forEach(const Ref &ref, int64_t offset, int64_t stride,
                      int64_t begin, int64_t end, int64_t step,
                      const Use &use) {
  using Word = typename As::Word;
  const Word *x = reinterpret_cast<const Word *>(ref.data) + offset;
  int64_t i = begin;
  for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) {
    Word words[kAtOnce];
    MERAK_UNROLL
    for (int u = 0; u < kAtOnce; ++u)
      words[u] = x[(i + u * step) * stride];
    MERAK_UNROLL
    for (int u = 0; u < kAtOnce; ++u)
      use(As::widen(words[u]), i + u * step);
  }
  for (; i < end; i += step)
    use(As::widen(x[i * stride]), i);
}

} // namespace merak::cuda
