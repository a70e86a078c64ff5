// Sums and maxima in two stages: pieces of each result into a workspace
// [pieces, results], then the pieces in order. Small products of any type.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"
#include "runtime/core/Gelu.h"

namespace merak::cuda {

enum class Fold : int32_t { Sum, Max, Squares };

struct ReduceArgs {
  Ref x, y;
  Loops<2> kept;    // x, y
  Loops<1> reduced; // x
  Fold fold = Fold::Sum;
  bool add = false;
  int64_t pieces = 1;
  void *partial = nullptr;

  MERAK_HD int64_t begin(int64_t piece) const {
    return reduced.count * piece / pieces;
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

// A thread a result and piece: for results that lie together.
template <typename Value, typename Block>
MERAK_HD void reduceColumnsBody(const Block &block, const ReduceArgs &a) {
  const int64_t work = a.kept.count * a.pieces, step = itemStep(block);
  Value *partial = static_cast<Value *>(a.partial);
  for (int64_t w = firstItem(block); w < work; w += step) {
    const int64_t piece = w / a.kept.count, result = w - piece * a.kept.count;
    int64_t o[2];
    a.kept.at(result, o);
    partial[w] =
        foldSummands<Value>(a, o[0], a.begin(piece), a.begin(piece + 1), 1);
  }
}

template <typename Value, typename Block>
MERAK_HD void reduceFinishBody(const Block &block, const ReduceArgs &a) {
  using Sum = std::conditional_t<std::is_integral_v<Value>, Value, double>;
  const Value *partial = static_cast<const Value *>(a.partial);
  const Fold fold = a.fold == Fold::Max ? Fold::Max : Fold::Sum;
  const int64_t step = itemStep(block);
  for (int64_t r = firstItem(block); r < a.kept.count; r += step) {
    int64_t o[2];
    a.kept.at(r, o);
    Sum sum = foldStart<Sum>(fold, a.x.type);
    for (int64_t piece = 0; piece < a.pieces; ++piece)
      sum = foldIn(fold, sum, Sum(partial[piece * a.kept.count + r]));
    store<Sum>(a.y, o[1], sum, a.add);
  }
}

// ---------------------------------------------------------------- norms

// dscale = sum over rows of dy (x - mean) rstd, dbias = sum of dy; partial sums
// [2, pieces, columns].
struct ParamGradArgs {
  Ref dy, x, rstd, mean, dscale, dbias;
  Loops<4> outer; // dy, x, rstd, mean
  Loops<4> inner; // dy, x, dscale, dbias
  bool rms = false, add = false;
  int64_t pieces = 1;
  float *partial = nullptr;
};

// Rows a stride apart, whose statistics are f32.
template <typename As, typename Block>
MERAK_HD void paramGradAs(const Block &block, const ParamGradArgs &a) {
  using Word = typename As::Word;
  constexpr int kRows = 4; // of which loads are under way
  const int64_t columns = a.inner.count, work = columns * a.pieces;
  const int64_t step = itemStep(block);
  int64_t strides[4];
  for (int i = 0; i < 4; ++i)
    strides[i] = a.outer.strides[i][0];
  for (int64_t w = firstItem(block); w < work; w += step) {
    const int64_t piece = w / columns;
    int64_t at[4];
    a.inner.at(w - piece * columns, at);
    const int64_t end = a.outer.count * (piece + 1) / a.pieces;
    float scale = 0, bias = 0;
    int64_t row = a.outer.count * piece / a.pieces;
    for (; row < end; row += kRows) {
      Word dy[kRows], x[kRows];
      float rstd[kRows], mean[kRows];
      MERAK_UNROLL
      for (int u = 0; u < kRows; ++u) {
        const int64_t here = row + u < end ? row + u : end - 1;
        dy[u] = slot<Word>(a.dy, at[0] + here * strides[0]);
        x[u] = slot<Word>(a.x, at[1] + here * strides[1]);
        rstd[u] = slot<float>(a.rstd, here * strides[2]);
        mean[u] = a.rms ? 0 : slot<float>(a.mean, here * strides[3]);
      }
      MERAK_UNROLL
      for (int u = 0; u < kRows; ++u) {
        const float d = row + u < end ? As::widen(dy[u]) : 0;
        const float term = d * ((As::widen(x[u]) - mean[u]) * rstd[u]);
        scale += row + u < end ? term : 0; // x may be no number
        bias += d;
      }
    }
    a.partial[w] = scale;
    a.partial[work + w] = bias;
  }
}

template <typename Block>
MERAK_HD void paramGradBody(const Block &block, const ParamGradArgs &a) {
  if (a.outer.rank == 1 && a.dy.type == a.x.type && a.rstd.type == Type::F32 &&
      (a.rms || a.mean.type == Type::F32))
    return withReal(a.x.type,
                    [&](auto as) { paramGradAs<decltype(as)>(block, a); });
  const int64_t columns = a.inner.count, work = columns * a.pieces;
  const int64_t step = itemStep(block);
  for (int64_t w = firstItem(block); w < work; w += step) {
    const int64_t piece = w / columns;
    int64_t at[4];
    a.inner.at(w - piece * columns, at);
    const int64_t end = a.outer.count * (piece + 1) / a.pieces;
    float scale = 0, bias = 0;
    for (int64_t row = a.outer.count * piece / a.pieces; row < end; ++row) {
      int64_t o[4];
      a.outer.at(row, o);
      const float dy = load<float>(a.dy, o[0] + at[0]);
      const float mean = a.rms ? 0 : load<float>(a.mean, o[3]);
      const float x = load<float>(a.x, o[1] + at[1]) - mean;
      scale += dy * (x * load<float>(a.rstd, o[2]));
      bias += dy;
    }
    a.partial[w] = scale;
    a.partial[work + w] = bias;
  }
}

template <typename Block>
MERAK_HD void paramGradFinishBody(const Block &block, const ParamGradArgs &a) {
  const int64_t columns = a.inner.count, step = itemStep(block);
  for (int64_t c = firstItem(block); c < columns; c += step) {
    double scale = 0, bias = 0;
    for (int64_t piece = 0; piece < a.pieces; ++piece) {
      scale += double(a.partial[piece * columns + c]);
      bias += double(a.partial[(a.pieces + piece) * columns + c]);
    }
    int64_t at[4];
    a.inner.at(c, at);
    store<double>(a.dscale, at[2], scale, a.add);
    if (!a.rms)
      store<double>(a.dbias, at[3], bias, a.add);
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
