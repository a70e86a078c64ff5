#include "runtime/backends/cpu/Gemm.h"

#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <utility>

namespace merak::cpu {

namespace {

// Columns of B packed at a time: kDepth * kWidth floats stay in the L2 cache.
constexpr int64_t kWidth = 768;
// Panels of A packed at a time.
constexpr int64_t kPanels = 8;
// Steps of k packed at a time where memory runs across the panels.
constexpr int64_t kChunk = 16;
// With fewer rows of A than this, reading B in place beats packing it.
constexpr int64_t kDirectRows = 28;
// With fewer columns than this, reading an A with adjacent rows does.
constexpr int64_t kDirectColumns = 64;

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Packed panels, or a matrix read in place as such.
struct Panels {
  const float *data;
  int64_t pitch, stride; // between steps of k, between panels
};

// Packs `panels` panels of a matrix with steps `inner` (across) and `outer`
// (along k); panel j holds [first(j), first(j + 1)).
template <typename First>
void packPanels(const Simd &s, const Panels &to, int64_t panels, int64_t width,
                const First &first, const float *source, int64_t inner,
                int64_t outer, int64_t k) {
  float *out = const_cast<float *>(to.data);
  // Where memory runs across the panels, some steps of all panels at a time
  // read it in long pieces.
  const int64_t chunk = inner == 1 ? kChunk : k;
  for (int64_t p = 0; p < k; p += chunk)
    for (int64_t j = 0; j < panels; ++j)
      s.pack(out + j * to.stride + p * to.pitch, to.pitch, width,
             source + first(j) * inner + p * outer, inner, outer,
             first(j + 1) - first(j), std::min(chunk, k - p));
}

Panels packB(const Simd &s, const Gemm &g, int64_t column, int64_t width,
             int64_t depth, int64_t k) {
  const float *source = g.b + depth * g.bRow + column * g.bCol;
  if (g.bCol == 1 && g.m <= kDirectRows && width % s.tileCols == 0)
    return {source, g.bRow, s.tileCols};
  int64_t panels = ceilDiv(width, s.tileCols);
  Panels b{scratch(ScratchSlot::PackB, panels * s.tileCols * k), s.tileCols,
           s.tileCols * k};
  packPanels(
      s, b, panels, s.tileCols,
      [&](int64_t j) { return std::min(j * s.tileCols, width); }, source,
      g.bCol, g.bRow, k);
  return b;
}

// Rows of A against one block of B.
void multiplyRows(const Simd &s, const Gemm &g, const Panels &b, int64_t column,
                  int64_t width, int64_t depth, int64_t k) {
  const bool add = g.accumulate || depth > 0;
  // Equal tiles instead of full ones and a rest: 20 rows in tiles of at most 8
  // are 6, 7 and 7, not 8, 8 and 4.
  const int64_t tiles = ceilDiv(g.m, s.tileRows);
  auto first = [&](int64_t t) { return g.m * t / tiles; };
  const bool direct = g.aRow == 1 && width <= kDirectColumns;
  const float *source = g.a + depth * g.aCol;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t row = first(t), rows = first(t + 1) - row;
    Panels a{source + row * g.aRow, g.aCol, 0};
    if (!direct) {
      const int64_t block = t % kPanels;
      a = {scratch(ScratchSlot::PackA, kPanels * s.panelRows * k), s.panelRows,
           s.panelRows * k};
      if (block == 0)
        packPanels(
            s, a, std::min(kPanels, tiles - t), s.tileRows,
            [&](int64_t j) { return first(t + j) - row; },
            source + row * g.aRow, g.aRow, g.aCol, k);
      a.data += block * a.stride;
    }
    float *c = g.c + row * g.cRow + column * g.cCol;
    if (g.cCol == 1) {
      s.multiply(rows, width, k, a.data, a.pitch, b.data, b.pitch, b.stride, c,
                 g.cRow, g.alpha, add);
      continue;
    }
    float *tile = scratch(ScratchSlot::TileC, rows * width);
    s.multiply(rows, width, k, a.data, a.pitch, b.data, b.pitch, b.stride, tile,
               width, g.alpha, false);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < width; ++j) {
        float &out = c[i * g.cRow + j * g.cCol];
        out = add ? out + tile[i * width + j] : tile[i * width + j];
      }
  }
}

} // namespace

GemmWorkspace gemmWorkspace(int64_t n, int64_t k) {
  const Simd &s = simd();
  const int64_t depth = std::min(kDepth, k);
  const int64_t width = ceilDiv(std::min(kWidth, n), s.tileCols) * s.tileCols;
  return {kPanels * s.panelRows * depth * int64_t(sizeof(float)),
          width * depth * int64_t(sizeof(float))};
}

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
