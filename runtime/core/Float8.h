// The 8-bit floating point formats of products (OCP: E4M3 without infinities,
// E5M2), and how a tensor is brought into their range. All of it is constexpr,
// so that device code can call it.
//
// A tensor is multiplied by the power of two that brings its largest magnitude
// to the last binade that a format holds all of. Such a scale adds no rounding:
// but for the smallest values a number has the same digits with any of them.
#pragma once

#include "runtime/core/HalfFloat.h"

namespace merak::runtime {

struct Float8 {
  int mantissa;      // bits
  int leastExponent; // of a normal number; below, spacing stays
  int mostExponent;
  uint32_t mostBits; // of the largest number, as f32

  friend constexpr bool operator==(const Float8 &, const Float8 &) = default;
};

constexpr Float8 kE4M3{3, -6, 8, 0x43e00000};   // 448 = 1.75 * 2^8
constexpr Float8 kE5M2{2, -14, 15, 0x47600000}; // 57344 = 1.75 * 2^15

constexpr float powerOfTwo(int exponent) { // -126 to 127
  return bitsToFloat(static_cast<uint32_t>(exponent + 127) << 23);
}

// Scales that f32 holds together with their reciprocals and what is rounded
// with them; a tensor below 2^-92 keeps fewer digits.
constexpr int kMostScale = 100;

// The exponent of the scale of a tensor whose largest magnitude has these bits
// (an unsigned maximum: that of a tensor with a NaN is one). 0 of zeros and of
// what is not finite.
constexpr int scaleExponent(const Float8 &type, uint32_t largest) {
  if (largest == 0 || largest >= 0x7f800000)
    return 0;
  // 1.75 is the largest mantissa of both types' last binade.
  const int exponent = static_cast<int>(largest >> 23) - 127;
  const int fits = (largest & 0x7fffff) <= 0x600000 ? 0 : 1;
  const int scale = type.mostExponent - exponent - fits;
  return scale < kMostScale ? scale : kMostScale;
}

// A value of that tensor, rounded to nearest even with that scale. What is
// beyond the range becomes the largest number, what is not finite a NaN.
constexpr float roundToFloat8(const Float8 &type, float value, float scale,
                              float inverse) {
  const float scaled = value * scale;
  const float most = bitsToFloat(type.mostBits);
  float x = scaled > most ? most : scaled;
  x = x < -most ? -most : x;
  // The spacing of numbers around x is that of f32 around 1.5 * 2^23 times it.
  const uint32_t binade = floatToBits(x) & 0x7f800000;
  const uint32_t least = static_cast<uint32_t>(type.leastExponent + 127) << 23;
  const float spacing =
      bitsToFloat(binade > least ? binade : least) * powerOfTwo(-type.mantissa);
  const float magic = spacing * 0x1.8p23f;
  const float rounded = (x + magic) - magic;
  const float isFinite = scaled - scaled; // 0, else a NaN
  return rounded * inverse + isFinite;
}
constexpr float roundToFloat8(const Float8 &type, float value, int exponent) {
  return roundToFloat8(type, value, powerOfTwo(exponent),
                       powerOfTwo(-exponent));
}

// The bits of a number that roundToFloat8 gave without a scale.
constexpr uint8_t float8Bits(const Float8 &type, float value) {
  const uint32_t bits = floatToBits(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return sign | 0x7f; // a NaN in both
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < type.leastExponent) // counts the least spacing
    return static_cast<uint8_t>(
        sign |
        static_cast<int>(bitsToFloat(magnitude) *
                         powerOfTwo(type.mantissa - type.leastExponent)));
  const uint32_t biased =
      static_cast<uint32_t>(exponent - type.leastExponent + 1);
  return static_cast<uint8_t>(sign | biased << type.mantissa |
                              (magnitude & 0x7fffff) >> (23 - type.mantissa));
}

constexpr float float8ToFloat(const Float8 &type, uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  const uint32_t biased = (x & 0x7fu) >> type.mantissa;
  const uint32_t mantissa = x & ((1u << type.mantissa) - 1);
  const bool isE5M2 = type.mantissa == 2;
  if (isE5M2 ? biased == 31 : (x & 0x7f) == 0x7f)
    return bitsToFloat(sign | 0x7f800000 | (isE5M2 ? mantissa : 1) << 21);
  if (biased == 0) {
    const float magnitude = static_cast<float>(mantissa) *
                            powerOfTwo(type.leastExponent - type.mantissa);
    return sign ? -magnitude : magnitude;
  }
  const int exponent = static_cast<int>(biased) + type.leastExponent - 1;
  return bitsToFloat(sign | static_cast<uint32_t>(exponent + 127) << 23 |
                     mantissa << (23 - type.mantissa));
}

} // namespace merak::runtime
