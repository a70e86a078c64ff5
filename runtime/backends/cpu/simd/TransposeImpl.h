// Transposes of 4-byte elements through registers.
#pragma once

#include "runtime/backends/cpu/simd/Vec.h"

namespace {

#if defined(__AVX512F__)
constexpr int64_t kBlock = 16;

// Each step doubles the run of elements that already stand in their final
// order: pairs of rows at distance 1, 2 (inside 128-bit lanes), then lanes.
// Reads `rows` rows of `cols` elements, writes `cols` rows of 16 elements, zero
// where there is no source row. rows, cols <= 16.
MERAK_INLINE void transposeBlock(float *dst, int64_t dstPitch, const float *src,
                                 int64_t srcPitch, int64_t rows, int64_t cols) {
  __m512 r[16], t[16];
  const __mmask16 mask = static_cast<__mmask16>((1u << cols) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    r[i] = i < rows ? _mm512_maskz_loadu_ps(mask, src + i * srcPitch)
                    : _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  // r[4g + c] holds, in lane l, rows 4g..4g+3 of column 4l + c.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
    __m512 b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
    __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    __m512 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
    t[8 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
    t[4 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c)
    if (c < cols)
      _mm512_storeu_ps(dst + c * dstPitch, t[c]);
}

#else
constexpr int64_t kBlock = 4;

MERAK_INLINE void transposeBlock(float *dst, int64_t dstPitch, const float *src,
                                 int64_t srcPitch, int64_t rows, int64_t cols) {
  if (rows == 4 && cols == 4) {
    __m128 a = _mm_loadu_ps(src), b = _mm_loadu_ps(src + srcPitch);
    __m128 c = _mm_loadu_ps(src + 2 * srcPitch);
    __m128 d = _mm_loadu_ps(src + 3 * srcPitch);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(dst, a);
    _mm_storeu_ps(dst + dstPitch, b);
    _mm_storeu_ps(dst + 2 * dstPitch, c);
    _mm_storeu_ps(dst + 3 * dstPitch, d);
    return;
  }
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t i = 0; i < 4; ++i)
      dst[j * dstPitch + i] = i < rows ? src[i * srcPitch + j] : 0;
}

#endif

// dst[j * dstPitch + i] = src[i * srcPitch + j], i < rows, j < cols, and zero
// up to the next multiple of kBlock in i.
MERAK_INLINE void transposePadded(float *dst, int64_t dstPitch,
                                  const float *src, int64_t srcPitch,
                                  int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i += kBlock) {
    int64_t r = rows - i < kBlock ? rows - i : kBlock;
    int64_t j = 0;
    for (; j + kBlock <= cols; j += kBlock)
      transposeBlock(dst + j * dstPitch + i, dstPitch, src + i * srcPitch + j,
                     srcPitch, r, kBlock);
    if (j < cols)
      transposeBlock(dst + j * dstPitch + i, dstPitch, src + i * srcPitch + j,
                     srcPitch, r, cols - j);
  }
}

void transpose32(void *dst, int64_t dstPitch, const void *src, int64_t srcPitch,
                 int64_t rows, int64_t cols) {
  float *to = static_cast<float *>(dst);
  const float *from = static_cast<const float *>(src);
  int64_t whole = rows / kBlock * kBlock;
  transposePadded(to, dstPitch, from, srcPitch, whole, cols);
  for (int64_t i = whole; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j)
      to[j * dstPitch + i] = from[i * srcPitch + j];
}

} // namespace
