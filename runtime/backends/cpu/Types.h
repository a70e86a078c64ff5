// Element types as C++ types, and the dispatch from a plan's type to them.
#pragma once

#include "runtime/core/HalfFloat.h"
#include "runtime/plan/plan.pb.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace merak::cpu {

struct Bool {
  uint8_t bits;
};
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float toFloat(Bf16 x) { return runtime::bf16ToFloat(x.bits); }
inline float toFloat(F16 x) { return runtime::f16ToFloat(x.bits); }
inline Bf16 toBf16(float x) { return {runtime::floatToBf16(x)}; }
inline F16 toF16(float x) { return {runtime::floatToF16(x)}; }

// Value conversion. To a whole number: toward zero, saturating, NaN is 0.
template <typename To, typename From> inline To convert(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, Bool>)
    return convert<To>(static_cast<uint8_t>(x.bits != 0));
  else if constexpr (std::is_same_v<From, Bf16> || std::is_same_v<From, F16>)
    return convert<To>(toFloat(x));
  else if constexpr (std::is_same_v<To, Bool>)
    return {static_cast<uint8_t>(x != From(0))};
  else if constexpr (std::is_same_v<To, Bf16>)
    return toBf16(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, F16>)
    return toF16(static_cast<float>(x));
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    if (x != x)
      return 0;
    // The bound as a power of two is exact in any floating type.
    const From above = std::ldexp(From(1), Limits::digits);
    if (x >= above)
      return Limits::max();
    if (x < static_cast<From>(Limits::min()))
      return Limits::min();
    return static_cast<To>(x);
  } else
    return static_cast<To>(x);
}

// What sums of a type are computed in.
template <typename T> struct Accumulator { using Type = T; };
template <> struct Accumulator<float> { using Type = double; };
template <> struct Accumulator<Bf16> { using Type = double; };
template <> struct Accumulator<F16> { using Type = double; };
template <> struct Accumulator<Bool> { using Type = int64_t; };

// Calls body(T{}) with the type of `dtype`; false if there is none.
template <typename Body> bool withType(planpb::DType dtype, Body &&body) {
  switch (dtype) {
  case planpb::F32:
    return body(float{}), true;
  case planpb::F64:
    return body(double{}), true;
  case planpb::I64:
    return body(int64_t{}), true;
  case planpb::I32:
    return body(int32_t{}), true;
  case planpb::BOOL:
    return body(Bool{}), true;
  case planpb::BF16:
    return body(Bf16{}), true;
  case planpb::F16:
    return body(F16{}), true;
  case planpb::U8:
    return body(uint8_t{}), true;
  case planpb::I8:
    return body(int8_t{}), true;
  case planpb::I16:
    return body(int16_t{}), true;
  case planpb::U16:
    return body(uint16_t{}), true;
  case planpb::U32:
    return body(uint32_t{}), true;
  case planpb::U64:
    return body(uint64_t{}), true;
  default:
    return false;
  }
}

// The same for the types that arithmetic kernels take.
template <typename Body> bool withNumber(planpb::DType dtype, Body &&body) {
  switch (dtype) {
  case planpb::F32:
    return body(float{}), true;
  case planpb::F64:
    return body(double{}), true;
  case planpb::I64:
    return body(int64_t{}), true;
  case planpb::I32:
    return body(int32_t{}), true;
  default:
    return false;
  }
}

inline int64_t indexAt(planpb::DType dtype, const void *data, int64_t offset) {
  return dtype == planpb::I64 ? static_cast<const int64_t *>(data)[offset]
                              : static_cast<const int32_t *>(data)[offset];
}

} // namespace merak::cpu
