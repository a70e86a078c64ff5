// GELU in its tanh form, for kernels of the host and of devices.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define MERAK_GELU __host__ __device__ inline
#else
#define MERAK_GELU inline
#endif

namespace merak::runtime {

// sqrt(2 / pi) (x + 0.044715 x^3)
MERAK_GELU float geluInner(float x) {
  return 0.797884560802865356f * (x + 0.044715f * x * x * x);
}

// x/2 (1 + tanh(inner(x)))
MERAK_GELU float gelu(float x) { return 0.5f * x * (1 + tanhf(geluInner(x))); }

// The derivative of gelu at x.
MERAK_GELU float geluSlope(float x) {
  const float t = tanhf(geluInner(x));
  const float slope = 0.797884560802865356f * (1 + 3 * 0.044715f * x * x);
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * slope;
}

} // namespace merak::runtime

#undef MERAK_GELU
