// 16-bit floating point formats, converted with round to nearest even. All of
// it is constexpr, so that device code can call it.
#pragma once

#include <bit>
#include <cstdint>

namespace merak::runtime {

constexpr float bitsToFloat(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
constexpr uint32_t floatToBits(float value) {
  return std::bit_cast<uint32_t>(value);
}

constexpr float bf16ToFloat(uint16_t x) {
  return bitsToFloat(uint32_t{x} << 16);
}

constexpr uint16_t floatToBf16(float value) {
  const uint32_t bits = floatToBits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) // keep a NaN quiet
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float f16ToFloat(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = (x >> 10) & 31, mantissa = x & 1023;
  if (exponent == 31)
    return bitsToFloat(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) { // subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return bitsToFloat(sign | (exponent + 112) << 23 | mantissa << 13);
}

constexpr uint16_t floatToF16(float value) {
  const uint32_t bits = floatToBits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return sign | 0x7e00;
  if (magnitude >= 0x477ff000) // rounds to 65536 or more
    return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // Below 2^-14 the spacing is 2^-24: adding 0.5 leaves it in the low bits.
    const float shifted = bitsToFloat(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (floatToBits(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

} // namespace merak::runtime
