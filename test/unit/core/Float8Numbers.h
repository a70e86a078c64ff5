// The numbers of 8 bits by the OCP's tables, and the nearest of them by looking
// at all: what tests compare rounding with.
#pragma once

#include "runtime/core/Float8.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace merak::runtime {

// What the bits of a magnitude mean; NAN where they mean no number.
inline double meaningOf(const Float8 &type, int bits) {
  const bool isE4M3 = type == kE4M3;
  const int digits = isE4M3 ? 3 : 2, bias = isE4M3 ? 7 : 15;
  const int exponent = bits >> digits, mantissa = bits & ((1 << digits) - 1);
  if (isE4M3 ? bits == 0x7f : exponent == 31)
    return NAN;
  return exponent == 0
             ? std::ldexp(mantissa, 1 - bias - digits)
             : std::ldexp((1 << digits) + mantissa, exponent - bias - digits);
}

// From 0 on: even places have even bits.
inline std::vector<double> numbersOf(const Float8 &type) {
  std::vector<double> numbers;
  for (int bits = 0; bits < 0x80; ++bits)
    if (const double value = meaningOf(type, bits); !std::isnan(value))
      numbers.push_back(value);
  return numbers;
}

// Of two that are as near the even one; NAN of what is not finite.
inline double nearest(double value, const std::vector<double> &numbers) {
  if (!std::isfinite(value))
    return NAN;
  const double size = std::min(std::fabs(value), numbers.back());
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double here = std::fabs(numbers[i] - size);
    const double there = std::fabs(numbers[best] - size);
    if (here < there || (here == there && i % 2 == 0))
      best = i;
  }
  return std::copysign(numbers[best], value);
}

} // namespace merak::runtime
