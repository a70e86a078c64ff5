#include "runtime/backends/cpu/Gemm.h"

#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <utility>

namespace merak::cpu {

namespace {

// Columns of B packed at a time: kDepth * kWidth floats stay in the L2 cache.
constexpr int64_t kWidth = 768;
// With fewer rows of A than this, reading B in place beats packing it.
constexpr int64_t kDirectRows = 28;
// With fewer columns than this, reading an A with adjacent rows does.
constexpr int64_t kDirectColumns = 64;

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One block of B as panels of `tileCols` columns.
struct Panels {
  const float *data;
  int64_t pitch, panelStride;
};

Panels packB(const Simd &s, const Gemm &g, int64_t column, int64_t width,
             int64_t depth, int64_t k) {
  const float *source = g.b + depth * g.bRow + column * g.bCol;
  if (g.bCol == 1 && g.m <= kDirectRows && width % s.tileCols == 0)
    return {source, g.bRow, s.tileCols};
  int64_t panels = ceilDiv(width, s.tileCols);
  float *out = scratch(ScratchSlot::PackB, panels * s.tileCols * k);
  for (int64_t p = 0; p < panels; ++p) {
    int64_t first = p * s.tileCols;
    s.pack(out + first * k, s.tileCols, s.tileCols, source + first * g.bCol,
           g.bCol, g.bRow, std::min(s.tileCols, width - first), k);
  }
  return {out, s.tileCols, s.tileCols * k};
}

// Rows of A against one block of B.
void multiplyRows(const Simd &s, const Gemm &g, const Panels &b, int64_t column,
                  int64_t width, int64_t depth, int64_t k) {
  const bool add = g.accumulate || depth > 0;
  // Equal tiles instead of full ones and a rest.
  int64_t tiles = ceilDiv(g.m, s.tileRows);
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t row = g.m * t / tiles, rows = g.m * (t + 1) / tiles - row;
    const float *a = g.a + row * g.aRow + depth * g.aCol;
    int64_t pitch = g.aCol;
    if (g.aRow != 1 || width > kDirectColumns) {
      float *packed = scratch(ScratchSlot::PackA, s.panelRows * k);
      s.pack(packed, s.panelRows, rows, a, g.aRow, g.aCol, rows, k);
      a = packed;
      pitch = s.panelRows;
    }
    float *c = g.c + row * g.cRow + column * g.cCol;
    if (g.cCol == 1) {
      s.multiply(rows, width, k, a, pitch, b.data, b.pitch, b.panelStride, c,
                 g.cRow, g.alpha, add);
      continue;
    }
    float *tile = scratch(ScratchSlot::TileC, rows * width);
    s.multiply(rows, width, k, a, pitch, b.data, b.pitch, b.panelStride, tile,
               width, g.alpha, false);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < width; ++j) {
        float &out = c[i * g.cRow + j * g.cCol];
        out = add ? out + tile[i * width + j] : tile[i * width + j];
      }
  }
}

} // namespace

void gemm(const Gemm &problem) {
  Gemm g = problem;
  if (g.m <= 0 || g.n <= 0)
    return;
  if (g.k <= 0) {
    if (!g.accumulate)
      for (int64_t i = 0; i < g.m; ++i)
        for (int64_t j = 0; j < g.n; ++j)
          g.c[i * g.cRow + j * g.cCol] = 0;
    return;
  }
  // The inner loop writes rows of C: a C with unit row stride is transposed.
  if (g.cCol != 1 && g.cRow == 1) {
    std::swap(g.a, g.b);
    std::swap(g.m, g.n);
    std::swap(g.cRow, g.cCol);
    int64_t aRow = g.aRow, aCol = g.aCol;
    g.aRow = g.bCol, g.aCol = g.bRow;
    g.bRow = aCol, g.bCol = aRow;
  }
  const Simd &s = simd();
  for (int64_t column = 0; column < g.n; column += kWidth) {
    int64_t width = std::min(kWidth, g.n - column);
    for (int64_t depth = 0; depth < g.k; depth += kDepth) {
      int64_t k = std::min(kDepth, g.k - depth);
      Panels b = packB(s, g, column, width, depth, k);
      multiplyRows(s, g, b, column, width, depth, k);
    }
  }
}

} // namespace merak::cpu
