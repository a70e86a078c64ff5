// One vector of floats for the instruction set this file is compiled for.
//
// Everything is in an unnamed namespace: each instruction set has its own copy,
// and the linker can never keep a copy that an older machine cannot run. For
// the same reason files that include this one use no inline function of the
// standard library.
#pragma once

#include <cstdint>
#include <immintrin.h>

namespace {

#define MERAK_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)

using Vec = __m512;
constexpr int64_t kLanes = 16;
MERAK_INLINE Vec vload(const float *p) { return _mm512_loadu_ps(p); }
MERAK_INLINE void vstore(float *p, Vec v) { _mm512_storeu_ps(p, v); }
MERAK_INLINE __mmask16 lanes(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
// The first n lanes, 0 < n < kLanes; the others are zero.
MERAK_INLINE Vec vloadFirst(const float *p, int64_t n) {
  return _mm512_maskz_loadu_ps(lanes(n), p);
}
MERAK_INLINE void vstoreFirst(float *p, Vec v, int64_t n) {
  _mm512_mask_storeu_ps(p, lanes(n), v);
}
MERAK_INLINE Vec vset(float x) { return _mm512_set1_ps(x); }
MERAK_INLINE Vec vfma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
MERAK_INLINE Vec vmax(Vec a, Vec b) { return _mm512_max_ps(a, b); }
MERAK_INLINE Vec vmin(Vec a, Vec b) { return _mm512_min_ps(a, b); }
MERAK_INLINE Vec vsqrt(Vec a) { return _mm512_sqrt_ps(a); }
MERAK_INLINE Vec vround(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT);
}
// v where x >= bound (or x is no number), else zero.
MERAK_INLINE Vec vzeroBelow(Vec v, Vec x, Vec bound) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), v);
}
// v * 2^n for whole n with a normal result.
MERAK_INLINE Vec vscalePow2(Vec v, Vec n) {
  __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), shift));
}
MERAK_INLINE float vsum(Vec v) { return _mm512_reduce_add_ps(v); }
MERAK_INLINE float vmaxOf(Vec v) { return _mm512_reduce_max_ps(v); }
using VecD = __m512d; // half as many lanes
MERAK_INLINE VecD vlow(Vec v) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}
MERAK_INLINE VecD vhigh(Vec v) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
}
MERAK_INLINE VecD vzeroD() { return _mm512_setzero_pd(); }
MERAK_INLINE double vsumD(VecD v) { return _mm512_reduce_add_pd(v); }

#elif defined(__AVX2__)

using Vec = __m256;
constexpr int64_t kLanes = 8;
MERAK_INLINE Vec vload(const float *p) { return _mm256_loadu_ps(p); }
MERAK_INLINE void vstore(float *p, Vec v) { _mm256_storeu_ps(p, v); }
MERAK_INLINE __m256i lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MERAK_INLINE Vec vloadFirst(const float *p, int64_t n) {
  return _mm256_maskload_ps(p, lanes(n));
}
MERAK_INLINE void vstoreFirst(float *p, Vec v, int64_t n) {
  _mm256_maskstore_ps(p, lanes(n), v);
}
MERAK_INLINE Vec vset(float x) { return _mm256_set1_ps(x); }
MERAK_INLINE Vec vfma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
MERAK_INLINE Vec vmax(Vec a, Vec b) { return _mm256_max_ps(a, b); }
MERAK_INLINE Vec vmin(Vec a, Vec b) { return _mm256_min_ps(a, b); }
MERAK_INLINE Vec vsqrt(Vec a) { return _mm256_sqrt_ps(a); }
MERAK_INLINE Vec vround(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MERAK_INLINE Vec vzeroBelow(Vec v, Vec x, Vec bound) {
  return _mm256_and_ps(v, _mm256_cmp_ps(x, bound, _CMP_NLT_UQ));
}
MERAK_INLINE Vec vscalePow2(Vec v, Vec n) {
  __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), shift));
}
MERAK_INLINE float vsum(Vec v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
MERAK_INLINE float vmaxOf(Vec v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
using VecD = __m256d;
MERAK_INLINE VecD vlow(Vec v) {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}
MERAK_INLINE VecD vhigh(Vec v) {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}
MERAK_INLINE VecD vzeroD() { return _mm256_setzero_pd(); }
MERAK_INLINE double vsumD(VecD v) {
  __m128d t =
      _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

#else // SSE2, which every x86-64 has

using Vec = __m128;
constexpr int64_t kLanes = 4;
MERAK_INLINE Vec vload(const float *p) { return _mm_loadu_ps(p); }
MERAK_INLINE void vstore(float *p, Vec v) { _mm_storeu_ps(p, v); }
MERAK_INLINE Vec vloadFirst(const float *p, int64_t n) {
  return _mm_setr_ps(p[0], n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, 0);
}
MERAK_INLINE void vstoreFirst(float *p, Vec v, int64_t n) {
  float lane[4];
  _mm_storeu_ps(lane, v);
  for (int64_t i = 0; i < n; ++i)
    p[i] = lane[i];
}
MERAK_INLINE Vec vset(float x) { return _mm_set1_ps(x); }
// No fused instruction here: two roundings.
MERAK_INLINE Vec vfma(Vec a, Vec b, Vec c) {
  return _mm_add_ps(_mm_mul_ps(a, b), c);
}
MERAK_INLINE Vec vmax(Vec a, Vec b) { return _mm_max_ps(a, b); }
MERAK_INLINE Vec vmin(Vec a, Vec b) { return _mm_min_ps(a, b); }
MERAK_INLINE Vec vsqrt(Vec a) { return _mm_sqrt_ps(a); }
// For |a| < 2^31.
MERAK_INLINE Vec vround(Vec a) { return _mm_cvtepi32_ps(_mm_cvtps_epi32(a)); }
MERAK_INLINE Vec vzeroBelow(Vec v, Vec x, Vec bound) {
  return _mm_and_ps(v, _mm_cmpnlt_ps(x, bound));
}
MERAK_INLINE Vec vscalePow2(Vec v, Vec n) {
  __m128i shift = _mm_slli_epi32(_mm_cvtps_epi32(n), 23);
  return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(v), shift));
}
MERAK_INLINE float vsum(Vec v) {
  Vec s = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
MERAK_INLINE float vmaxOf(Vec v) {
  Vec s = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
using VecD = __m128d;
MERAK_INLINE VecD vlow(Vec v) { return _mm_cvtps_pd(v); }
MERAK_INLINE VecD vhigh(Vec v) { return _mm_cvtps_pd(_mm_movehl_ps(v, v)); }
MERAK_INLINE VecD vzeroD() { return _mm_setzero_pd(); }
MERAK_INLINE double vsumD(VecD v) {
  return _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v)));
}

#endif

// Calls body(i, load, store) for each vector of [0, n): `load(p)` reads the
// elements p[i..], `store(p, v)` writes them; the last one may be partial.
struct Whole {
  int64_t i;
  MERAK_INLINE Vec operator()(const float *p) const { return vload(p + i); }
  MERAK_INLINE void operator()(float *p, Vec v) const { vstore(p + i, v); }
};
struct Partial {
  int64_t i, n;
  MERAK_INLINE Vec operator()(const float *p) const {
    return vloadFirst(p + i, n);
  }
  MERAK_INLINE void operator()(float *p, Vec v) const {
    vstoreFirst(p + i, v, n);
  }
};
template <typename Body> MERAK_INLINE void forVectors(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body(Whole{i});
  if (i < n)
    body(Partial{i, n - i});
}

} // namespace
