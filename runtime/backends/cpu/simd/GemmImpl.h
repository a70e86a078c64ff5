// The tile of the matrix product: up to kTileRows x (2 vectors) elements of C
// stay in registers while one column of A and one row of B after the other are
// multiplied into them.
#pragma once

#include "runtime/backends/cpu/simd/TransposeImpl.h"

namespace {

// Accumulators, two vectors of B and one broadcast fill the register file.
#if defined(__AVX512F__)
constexpr int64_t kTileRows = 14, kPanelRows = 16;
#elif defined(__AVX2__)
constexpr int64_t kTileRows = 6, kPanelRows = 8;
#else
constexpr int64_t kTileRows = 4, kPanelRows = 4;
#endif
constexpr int64_t kTileCols = 2 * kLanes;

template <int kRows, int kVecs>
void tile(int64_t k, const float *__restrict a, int64_t lda,
          const float *__restrict b, int64_t ldb, float *__restrict c,
          int64_t ldc, int64_t lastCols, const float *alpha, bool add) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVecs; ++j)
      acc[i][j] = vset(0);
    __builtin_prefetch(c + i * ldc, 1);
    if (kVecs > 1)
      __builtin_prefetch(c + i * ldc + kLanes, 1);
  }
  for (int64_t p = 0; p < k; ++p) {
    Vec row[kVecs];
#pragma GCC unroll 2
    for (int j = 0; j < kVecs; ++j)
      row[j] = vload(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      Vec x = vset(a[i]);
#pragma GCC unroll 2
      for (int j = 0; j < kVecs; ++j)
        acc[i][j] = vfma(x, row[j], acc[i][j]);
    }
    a += lda;
    b += ldb;
  }
  const Vec factor = vset(*alpha); // not before: it would take a register
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVecs; ++j) {
      float *out = c + i * ldc + j * kLanes;
      Vec value = acc[i][j] * factor;
      if (j + 1 < kVecs || lastCols == kLanes)
        vstore(out, add ? vload(out) + value : value);
      else
        vstoreFirst(out, add ? vloadFirst(out, lastCols) + value : value,
                    lastCols);
    }
  }
}

using TileFunction = void (*)(int64_t, const float *, int64_t, const float *,
                              int64_t, float *, int64_t, int64_t, const float *,
                              bool);

template <int kVecs> TileFunction tileFor(int64_t rows) {
  static constexpr TileFunction table[] = {
    tile<1, kVecs>,
    tile<2, kVecs>,
    tile<3, kVecs>,
    tile<4, kVecs>,
#if defined(__AVX2__)
    tile<5, kVecs>,
    tile<6, kVecs>,
#endif
#if defined(__AVX512F__)
    tile<7, kVecs>,
    tile<8, kVecs>,
    tile<9, kVecs>,
    tile<10, kVecs>,
    tile<11, kVecs>,
    tile<12, kVecs>,
    tile<13, kVecs>,
    tile<14, kVecs>,
#endif
  };
  return table[rows - 1];
}

void multiply(int64_t rows, int64_t n, int64_t k, const float *a, int64_t lda,
              const float *b, int64_t ldb, int64_t panelStride, float *c,
              int64_t ldc, float alpha, bool add) {
  TileFunction wide = tileFor<2>(rows);
  int64_t j = 0;
  for (; j + kTileCols <= n; j += kTileCols, b += panelStride)
    wide(k, a, lda, b, ldb, c + j, ldc, kLanes, &alpha, add);
  int64_t rest = n - j;
  if (rest > kLanes)
    wide(k, a, lda, b, ldb, c + j, ldc, rest - kLanes, &alpha, add);
  else if (rest > 0)
    tileFor<1>(rows)(k, a, lda, b, ldb, c + j, ldc, rest, &alpha, add);
}

void pack(float *dst, int64_t pitch, int64_t width, const float *src,
          int64_t inner, int64_t outer, int64_t count, int64_t k) {
  if (inner == 1) {
    for (int64_t p = 0; p < k; ++p, dst += pitch, src += outer) {
      // Rows lie far apart; the hardware does not foresee the next one.
      for (int64_t i = 0; i < count; i += 16)
        __builtin_prefetch(src + 12 * outer + i);
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes)
        vstore(dst + i, vload(src + i));
      if (i < count) // whole vectors: the pitch has room
        vstore(dst + i, vloadFirst(src + i, count - i)), i += kLanes;
      for (; i < width; i += kLanes)
        vstore(dst + i, vset(0));
    }
    return;
  }
  if (outer == 1) {
    transposePadded(dst, pitch, src, inner, count, k);
    count = (count + kBlock - 1) / kBlock * kBlock;
  } else {
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = 0; i < count; ++i)
        dst[p * pitch + i] = src[i * inner + p * outer];
  }
  if (count < width)
    for (int64_t p = 0; p < k; ++p)
      for (int64_t i = count; i < width; ++i)
        dst[p * pitch + i] = 0;
}

} // namespace
