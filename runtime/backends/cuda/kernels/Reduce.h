// Sums and maxima in two stages: pieces of each result into a workspace
// [pieces, results], then the pieces in order. Small products of any type.
#pragma once

#include "runtime/backends/cuda/kernels/Joined.h"
#include "runtime/backends/cuda/kernels/Pack.h"
#include "runtime/backends/cuda/kernels/Tiles.h"
#include "runtime/core/Gelu.h"

namespace merak::cuda {

enum class Fold : int32_t { Sum, Max, Squares };

struct ReduceArgs {
  static constexpr int kBlocks = 2; // with packs; see Kernels.h
  Ref x, y;
  Loops<2> kept;    // x, y
  Loops<1> reduced; // x
  Fold fold = Fold::Sum;
  bool add = false;
  int64_t pieces = 1, pieceSize = 0; // of the summands
  void *partial = nullptr;

  MERAK_HD int64_t begin(int64_t piece) const {
    const int64_t at = piece * pieceSize;
    return at < reduced.count ? at : reduced.count;
  }
};

template <typename Value> MERAK_HD Value foldStart(Fold fold, Type type) {
  if (fold != Fold::Max)
    return Value(0);
  if constexpr (std::is_integral_v<Value>)
    return type == Type::I64 ? INT64_MIN : INT32_MIN;
  else
    return -INFINITY;
}
template <typename Value> MERAK_HD Value foldIn(Fold fold, Value sum, Value x) {
  if (fold == Fold::Max)
    return x > sum ? x : sum;
  return fold == Fold::Sum ? sum + x : sum + x * x;
}

// Folds summands begin, begin + step, ... below end of a result at `offset`.
template <typename Value>
MERAK_HD Value foldSummands(const ReduceArgs &a, int64_t offset, int64_t begin,
                            int64_t end, int64_t step) {
  Value sum = foldStart<Value>(a.fold, a.x.type);
  const bool isReal =
      a.x.type == Type::F32 || a.x.type == Type::BF16 || a.x.type == Type::F16;
  if (!std::is_integral_v<Value> && isReal && a.reduced.rank == 1) {
    withReal(a.x.type, [&](auto as) {
      forEach<decltype(as)>(
          a.x, offset, a.reduced.strides[0][0], begin, end, step,
          [&](float x, int64_t) { sum = foldIn(a.fold, sum, Value(x)); });
    });
    return sum;
  }
  for (int64_t i = begin; i < end; i += step)
    sum = foldIn(a.fold, sum, load<Value>(a.x, offset + a.reduced.at(i)));
  return sum;
}

// A block a result and piece: for results whose summands lie together.
template <typename Value, typename Block>
MERAK_HD void reduceRowsBody(Block &block, const ReduceArgs &a) {
  const int64_t work = a.kept.count * a.pieces;
  Value *partial = static_cast<Value *>(a.partial);
  for (int64_t w = block.block(); w < work; w += block.blocks()) {
    const int64_t result = w / a.pieces, piece = w - result * a.pieces;
    int64_t o[2];
    a.kept.at(result, o);
    Value sum = foldSummands<Value>(a, o[0], a.begin(piece) + block.thread(),
                                    a.begin(piece + 1), block.threads());
    sum = a.fold == Fold::Max ? block.max(sum) : block.sum(sum);
    if (block.thread() == 0)
      partial[piece * a.kept.count + result] = sum;
  }
}

// A lane a result: for results that lie together.
template <typename Value, typename Block>
MERAK_HD void reduceColumnsBody(Block &block, const ReduceArgs &a) {
  const int64_t results = a.kept.count;
  const Tile tile = Tile::of(block, results);
  const int64_t tiles = tile.count(results), work = tiles * a.pieces;
  Value *partial = static_cast<Value *>(a.partial);
  auto fold = [&](Value x, Value y) {
    return foldIn(a.fold == Fold::Max ? Fold::Max : Fold::Sum, x, y);
  };
  for (int64_t w = block.block(); w < work; w += block.blocks()) {
    const int64_t piece = w / tiles, first = (w - piece * tiles) * tile.lanes;
    const int64_t result = first + tile.lane;
    Value sums[1] = {foldStart<Value>(a.fold, a.x.type)};
    if (tile.group < tile.groups && result < results) {
      int64_t o[2];
      a.kept.at(result, o);
      sums[0] = foldSummands<Value>(a, o[0], a.begin(piece) + tile.group,
                                    a.begin(piece + 1), tile.groups);
    }
    foldGroups<kTileThreads, kTileScratch>(
        block, tile, sums, fold, [&](int lane, int, Value sum) {
          if (first + lane < results)
            partial[piece * results + first + lane] = sum;
        });
  }
}

template <typename Value, typename Block>
MERAK_HD void reduceFinishBody(Block &block, const ReduceArgs &a) {
  using Sum = std::conditional_t<std::is_integral_v<Value>, Value, double>;
  const Value *partial = static_cast<const Value *>(a.partial);
  const Fold kind = a.fold == Fold::Max ? Fold::Max : Fold::Sum;
  auto fold = [&](Sum x, Sum y) { return foldIn(kind, x, y); };
  const int64_t results = a.kept.count;
  const Tile tile = Tile::of(block, results, finishLanes(a.pieces));
  const int64_t tiles = tile.count(results);
  for (int64_t t = block.block(); t < tiles; t += block.blocks()) {
    const int64_t first = t * tile.lanes, result = first + tile.lane;
    Sum sums[1] = {foldStart<Sum>(kind, a.x.type)};
    if (result < results)
      for (int64_t piece = tile.group; piece < a.pieces; piece += tile.groups)
        sums[0] = fold(sums[0], Sum(partial[piece * results + result]));
    const auto keep = [&](int lane, int, Sum sum) {
      if (first + lane >= results)
        return;
      int64_t o[2];
      a.kept.at(first + lane, o);
      store<Sum>(a.y, o[1], sum, a.add);
    };
    foldGroups<kTileThreads, kTileScratch>(block, tile, sums, fold, keep);
  }
}

// Pieces of sums down columns into `partial` [values, pieces, columns]. Rows:
// kSize columns a lane, kRows rows of a thread under way at once, kValues of
// each column; kLanes of a tile, kThreads and kScratch of a block.
template <typename Rows, typename Block, typename Args>
MERAK_HD void sumColumns(Block &block, const Args &a, int64_t rows,
                         int64_t columns, float *partial) {
  constexpr int kSize = Rows::kSize, kRows = Rows::kRows;
  constexpr int kValues = Rows::kValues * kSize;
  const Tile tile = Tile::of(block, columns / kSize, Rows::kLanes);
  // In 32 bits, for want of registers.
  const int tiles = static_cast<int>(tile.count(columns / kSize));
  const int pieces = static_cast<int>(a.pieces), work = tiles * pieces;
  for (int w = static_cast<int>(block.block()); w < work;
       w += static_cast<int>(block.blocks())) {
    const int piece = w / tiles, first = (w - piece * tiles) * tile.lanes;
    const int64_t column = int64_t(first + tile.lane) * kSize;
    float sums[kValues];
    MERAK_UNROLL
    for (int k = 0; k < kValues; ++k)
      sums[k] = 0;
    if (tile.group < tile.groups && column < columns) {
      const int64_t begin = piece * a.pieceSize, behind = begin + a.pieceSize;
      const int64_t end = behind < rows ? behind : rows;
      int64_t row = begin + tile.group;
      Rows from(a, column, row, tile.groups);
      // Rows behind the last are left out one by one: to read the others in
      // turn would take as long as all that is before.
      for (; row < end; row += kRows * tile.groups, from.advance()) {
        typename Rows::Row some[kRows];
        MERAK_UNROLL
        for (int u = 0; u < kRows; ++u)
          if (row + u * tile.groups < end)
            some[u] = from.read(u);
        MERAK_UNROLL
        for (int u = 0; u < kRows; ++u)
          if (row + u * tile.groups < end)
            Rows::add(some[u], sums);
      }
    }
    foldGroups<Rows::kThreads, Rows::kScratch>(
        block, tile, sums, [](float x, float y) { return x + y; },
        [&](int lane, int k, float sum) {
          const int64_t to = int64_t(first + lane) * kSize + k % kSize;
          if (to < columns)
            partial[(k / kSize * pieces + piece) * columns + to] = sum;
        });
  }
}

// Rows a stride apart, in packs.
template <typename As> struct PackedRows {
  using Word = typename As::Word;
  using Row = Pack<Word>;
  static constexpr int kSize = Row::kSize, kRows = 4, kValues = 1;
  static constexpr int kLanes = kPackLanes, kThreads = kPackThreads;
  static constexpr int kScratch = 16 << 10;
  const Word *x;
  int64_t step; // between rows of a thread

  MERAK_HD PackedRows(const ReduceArgs &a, int64_t column, int64_t row,
                      int groups)
      : x(reinterpret_cast<const Word *>(a.x.data) + column +
          row * a.reduced.strides[0][0]),
        step(groups * a.reduced.strides[0][0]) {}
  MERAK_HD Row read(int u) const { return loadPack<kSize>(x + u * step); }
  MERAK_HD void advance() { x += kRows * step; }
  MERAK_HD static void add(const Row &row, float (&sums)[kSize]) {
    MERAK_UNROLL
    for (int k = 0; k < kSize; ++k)
      sums[k] += As::widen(row.words[k]);
  }
};

// Sums of real elements that lie together in packs. Each type has a kernel: in
// one for all of them the compiler finds no place for what is loaded.
template <typename As, typename Block>
MERAK_HD void sumPacksBody(Block &block, const ReduceArgs &a) {
  sumColumns<PackedRows<As>>(block, a, a.reduced.count, a.kept.count,
                             static_cast<float *>(a.partial));
}

// ---------------------------------------------------------------- squares

// Sums of squares of whole tensors, in double: of chunks into a workspace, then
// those of a tensor.
struct SquaresPart {
  const char *x = nullptr; // aligned to packs
  char *sum = nullptr;
  int64_t count = 0; // elements
  int32_t chunk = 0;
};
struct SquareSumsArgs {
  Joined<SquaresPart, 96, 16384> tensors;
  Type type = Type::F32, sumType = Type::F32;
  bool add = false;
  double *partial = nullptr; // by chunk
};
static_assert(sizeof(SquareSumsArgs) <= kMostArgBytes);

template <typename Block>
MERAK_HD void squareSumsBody(Block &block, const SquareSumsArgs &a) {
  forEachChunk(
      block, a.tensors,
      [&](const SquaresPart &part, int32_t chunk, int64_t begin, int64_t end) {
        double sum = 0;
        withReal(a.type, [&](auto as) {
          using As = decltype(as);
          const auto *x = reinterpret_cast<const typename As::Word *>(part.x);
          forEachPacked<As>(x + begin, end - begin, block.thread(),
                            block.threads(),
                            [&](float value) { sum += double(value) * value; });
        });
        sum = block.sum(sum);
        if (block.thread() == 0)
          a.partial[chunk] = sum;
      });
}

template <typename Block>
MERAK_HD void squareSumsFinishBody(Block &block, const SquareSumsArgs &a) {
  for (int64_t p = block.block(); p < a.tensors.size; p += block.blocks()) {
    const int32_t part = static_cast<int32_t>(p);
    double sum = 0;
    for (int32_t chunk = a.tensors.firstChunk(part) + block.thread();
         chunk < a.tensors.firstChunk(part + 1); chunk += block.threads())
      sum += a.partial[chunk];
    sum = block.sum(sum);
    if (block.thread() == 0)
      store<double>({a.tensors.parts[part].sum, a.sumType}, 0, sum, a.add);
  }
}

// ---------------------------------------------------------------- norms

// dscale = sum over rows of dy (x - mean) rstd, dbias = sum of dy; partial sums
// [2, pieces, columns].
struct ParamGradArgs {
  static constexpr int kBlocks = 1; // with packs; see Kernels.h
  Ref dy, x, rstd, mean, dscale, dbias;
  Loops<4> outer; // dy, x, rstd, mean
  Loops<4> inner; // dy, x, dscale, dbias
  bool rms = false, add = false;
  int64_t pieces = 1, pieceSize = 0; // of the rows
  float *partial = nullptr;
};

// Rows a stride apart, dy and x of one type in packs, statistics in f32.
template <typename As> struct PackedNormRows {
  using Word = typename As::Word;
  static constexpr int kSize = Pack<Word>::kSize, kRows = 4, kValues = 2;
  static constexpr int kLanes = kPackLanes, kThreads = kPackThreads;
  static constexpr int kScratch = 32 << 10;
  struct Row {
    Pack<Word> dy, x;
    float rstd, mean;
  };
  const Word *dy, *x;
  const float *rstd, *mean; // no mean: null
  int64_t steps[4];         // between rows of a thread

  MERAK_HD PackedNormRows(const ParamGradArgs &a, int64_t column, int64_t row,
                          int groups) {
    const auto &strides = a.outer.strides;
    dy = &slot<Word>(a.dy, row * strides[0][0] + column);
    x = &slot<Word>(a.x, row * strides[1][0] + column);
    rstd = &slot<float>(a.rstd, row * strides[2][0]);
    mean = a.rms ? nullptr : &slot<float>(a.mean, row * strides[3][0]);
    MERAK_UNROLL
    for (int o = 0; o < 4; ++o)
      steps[o] = groups * strides[o][0];
  }
  MERAK_HD Row read(int u) const {
    return {loadPack<kSize>(dy + u * steps[0]),
            loadPack<kSize>(x + u * steps[1]), rstd[u * steps[2]],
            mean ? mean[u * steps[3]] : 0};
  }
  MERAK_HD void advance() {
    dy += kRows * steps[0];
    x += kRows * steps[1];
    rstd += kRows * steps[2];
    if (mean)
      mean += kRows * steps[3];
  }
  MERAK_HD static void add(const Row &row, float (&sums)[2 * kSize]) {
    MERAK_UNROLL
    for (int k = 0; k < kSize; ++k) {
      const float dy = As::widen(row.dy.words[k]);
      sums[k] += dy * ((As::widen(row.x.words[k]) - row.mean) * row.rstd);
      sums[kSize + k] += dy;
    }
  }
};

struct AnyNormRows {
  static constexpr int kSize = 1, kRows = 1, kValues = 2;
  static constexpr int kLanes = kTileLanes, kThreads = kTileThreads;
  static constexpr int kScratch = kTileScratch;
  struct Row {
    float dy, x, rstd, mean;
  };
  const ParamGradArgs &a;
  int64_t at[4], row;
  int groups;

  MERAK_HD AnyNormRows(const ParamGradArgs &args, int64_t column, int64_t begin,
                       int step)
      : a(args), row(begin), groups(step) {
    a.inner.at(column, at);
  }
  MERAK_HD Row read(int) const {
    int64_t o[4];
    a.outer.at(row, o);
    return {load<float>(a.dy, o[0] + at[0]), load<float>(a.x, o[1] + at[1]),
            load<float>(a.rstd, o[2]), a.rms ? 0 : load<float>(a.mean, o[3])};
  }
  MERAK_HD void advance() { row += groups; }
  MERAK_HD static void add(const Row &row, float (&sums)[2]) {
    sums[0] += row.dy * ((row.x - row.mean) * row.rstd);
    sums[1] += row.dy;
  }
};

template <typename Rows, typename Block>
MERAK_HD void paramGradAs(Block &block, const ParamGradArgs &a) {
  sumColumns<Rows>(block, a, a.outer.count, a.inner.count, a.partial);
}
template <typename Block>
MERAK_HD void paramGradBody(Block &block, const ParamGradArgs &a) {
  paramGradAs<AnyNormRows>(block, a);
}
template <typename As, typename Block>
MERAK_HD void paramGradPacksBody(Block &block, const ParamGradArgs &a) {
  paramGradAs<PackedNormRows<As>>(block, a);
}

template <typename Block>
MERAK_HD void paramGradFinishBody(Block &block, const ParamGradArgs &a) {
  const int64_t columns = a.inner.count;
  const Tile tile = Tile::of(block, columns, finishLanes(a.pieces));
  const int64_t tiles = tile.count(columns);
  for (int64_t t = block.block(); t < tiles; t += block.blocks()) {
    const int64_t first = t * tile.lanes, column = first + tile.lane;
    double sums[2] = {0, 0};
    if (column < columns)
      for (int64_t piece = tile.group; piece < a.pieces; piece += tile.groups) {
        sums[0] += double(a.partial[piece * columns + column]);
        sums[1] += double(a.partial[(a.pieces + piece) * columns + column]);
      }
    foldGroups<kTileThreads, kTileScratch>(
        block, tile, sums, [](double x, double y) { return x + y; },
        [&](int lane, int k, double sum) {
          if (first + lane >= columns || (k == 1 && a.rms))
            return;
          int64_t at[4];
          a.inner.at(first + lane, at);
          store<double>(k == 0 ? a.dscale : a.dbias, at[2 + k], sum, a.add);
        });
  }
}

// ---------------------------------------------------------------- products

// A thread an element of the result: types and shapes without a matrix product.
struct ContractArgs {
  Ref a, b, out;
  Loops<3> batch, m, n, k; // a, b, out
  double alpha = 1;
  bool add = false;
};

template <typename Value, typename Block>
MERAK_HD void contractBody(const Block &block, const ContractArgs &c) {
  const int64_t count = c.batch.count * c.m.count * c.n.count;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    int64_t ob[3], om[3], on[3], ok[3];
    const int64_t rest = i / c.n.count;
    c.n.at(i - rest * c.n.count, on);
    c.m.at(rest % c.m.count, om);
    c.batch.at(rest / c.m.count, ob);
    Value sum = 0;
    for (int64_t j = 0; j < c.k.count; ++j) {
      c.k.at(j, ok);
      sum += load<Value>(c.a, ob[0] + om[0] + ok[0]) *
             load<Value>(c.b, ob[1] + on[1] + ok[1]);
    }
    if (c.alpha == 1)
      store<Value>(c.out, ob[2] + om[2] + on[2], sum, c.add);
    else
      store<double>(c.out, ob[2] + om[2] + on[2], c.alpha * double(sum), c.add);
  }
}

// What a library did not do to a product when it wrote it: a bias, GELU's tanh
// form (its argument kept or not) or its slope. In place.
struct EpilogueArgs {
  Ref out, bias, argument;
  Loops<3> loops; // out, bias, argument
  bool biased = false, gelu = false, keep = false, gradient = false;
};

template <typename Block>
MERAK_HD void finishProductBody(const Block &block, const EpilogueArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[3];
    a.loops.at(i, o);
    float value = load<float>(a.out, o[0]);
    if (a.biased)
      value += load<float>(a.bias, o[1]);
    if (a.keep)
      store<float>(a.argument, o[2], value, false);
    if (a.gradient)
      value *= runtime::geluSlope(load<float>(a.argument, o[2]));
    else if (a.gelu)
      value = runtime::gelu(value);
    store<float>(a.out, o[0], value, false);
  }
}

} // namespace merak::cuda
