// Kernels with a block for each row: softmax, norms, cross entropy, and the
// masked softmax of attention. Sums of a row run over the threads of the block
// in an order fixed by their number.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

namespace merak::cuda {

template <typename Block, typename Value>
MERAK_HD float rowMax(Block &block, int64_t n, const Value &value) {
  float top = -INFINITY;
  for (int64_t i = block.thread(); i < n; i += block.threads()) {
    const float x = value(i);
    top = x > top ? x : top;
  }
  return block.max(top);
}

template <typename Block, typename Value>
MERAK_HD float rowSum(Block &block, int64_t n, const Value &value) {
  float sum = 0;
  for (int64_t i = block.thread(); i < n; i += block.threads())
    sum += value(i);
  return block.sum(sum);
}

// ---------------------------------------------------------------- softmax

struct SoftmaxArgs {
  Ref x, y;      // softmax: x -> y
  Ref dy, dx;    // gradient: y, dy -> dx
  Loops<3> rows; // x, y; or y, dy, dx
  int64_t size = 0, steps[3] = {0, 0, 0};
  bool add = false;
};

template <typename Block>
MERAK_HD void softmaxBody(Block &block, const SoftmaxArgs &a) {
  for (int64_t r = block.block(); r < a.rows.count; r += block.blocks()) {
    int64_t o[3];
    a.rows.at(r, o);
    auto x = [&](int64_t i) { return load<float>(a.x, o[0] + i * a.steps[0]); };
    const float top = rowMax(block, a.size, x);
    // A row of minus infinity is masked everywhere: zeros.
    const bool masked = top == -INFINITY;
    const float shift = masked ? 0 : top;
    const float sum =
        rowSum(block, a.size, [&](int64_t i) { return expf(x(i) - shift); });
    const float norm = masked ? 0 : 1 / sum;
    for (int64_t i = block.thread(); i < a.size; i += block.threads())
      store<float>(a.y, o[1] + i * a.steps[1], expf(x(i) - shift) * norm,
                   a.add);
  }
}

template <typename Block>
MERAK_HD void softmaxGradBody(Block &block, const SoftmaxArgs &a) {
  for (int64_t r = block.block(); r < a.rows.count; r += block.blocks()) {
    int64_t o[3];
    a.rows.at(r, o);
    auto y = [&](int64_t i) { return load<float>(a.y, o[0] + i * a.steps[0]); };
    auto dy = [&](int64_t i) {
      return load<float>(a.dy, o[1] + i * a.steps[1]);
    };
    const float dot =
        rowSum(block, a.size, [&](int64_t i) { return y(i) * dy(i); });
    for (int64_t i = block.thread(); i < a.size; i += block.threads())
      store<float>(a.dx, o[2] + i * a.steps[2], y(i) * (dy(i) - dot), a.add);
  }
}

// ---------------------------------------------------------------- norms

// RMS norm is the case without mean. Forward: x, y, mean, rstd in `outer`;
// x, y, scale, bias in `inner`. Gradient: dy, x, dx, rstd, mean and dy, x, dx,
// scale.
struct NormArgs {
  Ref x, y, mean, rstd, scale, bias, dy, dx;
  Loops<5> outer;
  Loops<4> inner;
  float epsilon = 0;
  bool rms = false, scaled = false, biased = false, add = false;
};

template <typename Block>
MERAK_HD void normBody(Block &block, const NormArgs &a) {
  const int64_t n = a.inner.count;
  const float count = static_cast<float>(n);
  for (int64_t r = block.block(); r < a.outer.count; r += block.blocks()) {
    int64_t o[5];
    a.outer.at(r, o);
    auto x = [&](int64_t i) {
      int64_t at[4];
      a.inner.at(i, at);
      return load<float>(a.x, o[0] + at[0]);
    };
    const float mean = a.rms ? 0 : rowSum(block, n, x) / count;
    const float variance = rowSum(block, n,
                                  [&](int64_t i) {
                                    const float d = x(i) - mean;
                                    return d * d;
                                  }) /
                           count;
    const float rstd = 1 / sqrtf(variance + a.epsilon);
    for (int64_t i = block.thread(); i < n; i += block.threads()) {
      int64_t at[4];
      a.inner.at(i, at);
      float y = (load<float>(a.x, o[0] + at[0]) - mean) * rstd;
      if (a.scaled)
        y *= load<float>(a.scale, at[2]);
      if (a.biased)
        y += load<float>(a.bias, at[3]);
      store<float>(a.y, o[1] + at[1], y, a.add);
    }
    if (block.thread() == 0) {
      if (!a.rms)
        store<float>(a.mean, o[2], mean, a.add);
      store<float>(a.rstd, o[3], rstd, a.add);
    }
  }
}

template <typename Block>
MERAK_HD void normGradBody(Block &block, const NormArgs &a) {
  const int64_t n = a.inner.count;
  for (int64_t r = block.block(); r < a.outer.count; r += block.blocks()) {
    int64_t o[5];
    a.outer.at(r, o);
    const float rstd = load<float>(a.rstd, o[3]);
    const float mean = a.rms ? 0 : load<float>(a.mean, o[4]);
    auto g = [&](const int64_t *at) {
      const float dy = load<float>(a.dy, o[0] + at[0]);
      return a.scaled ? dy * load<float>(a.scale, at[3]) : dy;
    };
    auto normal = [&](const int64_t *at) {
      return (load<float>(a.x, o[1] + at[1]) - mean) * rstd;
    };
    float first = 0, second = 0;
    for (int64_t i = block.thread(); i < n; i += block.threads()) {
      int64_t at[4];
      a.inner.at(i, at);
      first += g(at);
      second += g(at) * normal(at);
    }
    first = a.rms ? 0 : block.sum(first) / static_cast<float>(n);
    second = block.sum(second) / static_cast<float>(n);
    for (int64_t i = block.thread(); i < n; i += block.threads()) {
      int64_t at[4];
      a.inner.at(i, at);
      store<float>(a.dx, o[2] + at[2],
                   rstd * (g(at) - first - normal(at) * second), a.add);
    }
  }
}

// ---------------------------------------------------------------- losses

struct CrossEntropyArgs {
  Ref logits, labels, loss, lse;          // gradient: loss is dloss
  Ref gradient;                           //
  Loops<5> rows;                          // in this order
  int64_t columns = 0, steps[2] = {0, 0}; // of logits, of the gradient
  int64_t first = 0, ignored = 0;
  bool hasIgnored = false, add = false;
};

// The largest element of a part of a row and the sum of exp(x - largest) over
// it, which take another part.
struct RunningSum {
  float top = -INFINITY, sum = 0;

  // A NaN is no maximum, but makes the sum one.
  MERAK_HD float shift() const { return top == -INFINITY ? 0 : top; }
  MERAK_HD void raise(float to) {
    if (to > top) {
      sum *= top == -INFINITY ? 1 : expf(top - to); // 0 or NaN stays
      top = to;
    }
  }
};

// One pass over the row, kAtOnce elements of a thread at once. A label outside
// the columns, which the reader of data refuses, gives NaN.
template <typename As, typename Block>
MERAK_HD void crossEntropyAs(Block &block, const CrossEntropyArgs &a) {
  using Word = typename As::Word;
  for (int64_t r = block.block(); r < a.rows.count; r += block.blocks()) {
    int64_t o[5];
    a.rows.at(r, o);
    const Word *x = reinterpret_cast<const Word *>(a.logits.data) + o[0];
    RunningSum part;
    const int64_t step = block.threads();
    for (int64_t i = block.thread(); i < a.columns; i += kAtOnce * step) {
      float values[kAtOnce], top = -INFINITY;
      MERAK_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t at = i + u * step;
        values[u] = at < a.columns ? As::widen(x[at * a.steps[0]]) : -INFINITY;
      }
      MERAK_UNROLL
      for (int u = 0; u < kAtOnce; ++u)
        top = values[u] > top ? values[u] : top;
      part.raise(top);
      MERAK_UNROLL
      for (int u = 0; u < kAtOnce; ++u)
        part.sum += expf(values[u] - part.shift());
    }
    const float top = block.max(part.top);
    part.raise(top);
    const float sum = block.sum(part.sum);
    const float lse = top == -INFINITY ? top : top + logf(sum);
    if (block.thread() == 0) {
      const int64_t label = load<int64_t>(a.labels, o[1]);
      float loss = 0;
      if (!(a.hasIgnored && label == a.ignored))
        loss = label >= 0 && label < a.columns
                   ? lse - As::widen(x[label * a.steps[0]])
                   : NAN;
      store<float>(a.loss, o[2], loss, a.add);
      store<float>(a.lse, o[3], lse, a.add);
    }
  }
}

template <typename Block>
MERAK_HD void crossEntropyBody(Block &block, const CrossEntropyArgs &a) {
  withReal(a.logits.type,
           [&](auto as) { crossEntropyAs<decltype(as)>(block, a); });
}

struct CrossEntropyRow {
  int64_t from, to, label; // offsets in logits and gradient; local column
  bool ignored;
  float dloss, lse;

  MERAK_HD float slope(float x, int64_t i) const {
    if (ignored)
      return 0;
    const float dx = expf(x - lse) * dloss;
    return i == label ? dx - dloss : dx;
  }
};

template <typename Block, typename Use>
MERAK_HD void crossEntropyGradRows(const Block &block,
                                   const CrossEntropyArgs &a, const Use &use) {
  for (int64_t r = block.block(); r < a.rows.count; r += block.blocks()) {
    int64_t o[5];
    a.rows.at(r, o);
    const int64_t label = load<int64_t>(a.labels, o[1]);
    use(CrossEntropyRow{o[0], o[4], label - a.first,
                        a.hasIgnored && label == a.ignored,
                        load<float>(a.loss, o[2]), load<float>(a.lse, o[3])});
  }
}

template <typename Block>
MERAK_HD void crossEntropyGradBody(const Block &block,
                                   const CrossEntropyArgs &a) {
  const int64_t first = block.thread(), step = block.threads();
  if (a.gradient.type == a.logits.type && !a.add)
    return withReal(a.logits.type, [&](auto as) {
      using As = decltype(as);
      crossEntropyGradRows(block, a, [&](const CrossEntropyRow &row) {
        auto *to =
            reinterpret_cast<typename As::Word *>(a.gradient.data) + row.to;
        forEach<As>(a.logits, row.from, a.steps[0], first, a.columns, step,
                    [&](float x, int64_t i) {
                      to[i * a.steps[1]] = As::narrow(row.slope(x, i));
                    });
      });
    });
  crossEntropyGradRows(block, a, [&](const CrossEntropyRow &row) {
    for (int64_t i = first; i < a.columns; i += step) {
      const float x = load<float>(a.logits, row.from + i * a.steps[0]);
      store<float>(a.gradient, row.to + i * a.steps[1], row.slope(x, i), a.add);
    }
  });
}

// ---------------------------------------------------------------- attention

// Rows (head, query) of the scores of one batch entry, dense [h, tq, tk] f32.
// The products around them are matrix products; see Attention.cpp.
struct ScoreArgs {
  Ref scores, weights; // weights: what is multiplied next, [h, tq, tk]
  Ref gradients;       // backward: of the weights, f32
  Ref scoreGradients;  // backward: what is multiplied next; may be `gradients`
  Ref out, dout, lse, mask;
  int64_t heads = 0, queries = 0, keys = 0, features = 0;
  int64_t outStrides[3] = {0, 0, 0};  // query, head, feature
  int64_t doutStrides[3] = {0, 0, 0}; //
  int64_t lseStrides[2] = {0, 0};     // head, query
  int64_t maskStrides[3] = {0, 0, 0}; // head, query, key
  float scale = 1;
  bool causal = false, masked = false, accumulate = false;

  // The score of a key as softmax sees it; scores hold scale * q k.
  MERAK_HD float score(int64_t head, int64_t query, int64_t key) const {
    if (causal && key > query + keys - queries)
      return -INFINITY;
    float s = load<float>(scores, (head * queries + query) * keys + key);
    if (masked) {
      const int64_t at =
          head * maskStrides[0] + query * maskStrides[1] + key * maskStrides[2];
      if (mask.type == Type::Bool)
        s = load<int64_t>(mask, at) ? s : -INFINITY;
      else
        s += load<float>(mask, at);
    }
    return s;
  }
};

template <typename Block>
MERAK_HD void attentionWeightsBody(Block &block, const ScoreArgs &a) {
  const int64_t rows = a.heads * a.queries;
  for (int64_t r = block.block(); r < rows; r += block.blocks()) {
    const int64_t head = r / a.queries, query = r - head * a.queries;
    auto s = [&](int64_t j) { return a.score(head, query, j); };
    const float top = rowMax(block, a.keys, s);
    const bool nothing = top == -INFINITY; // to attend to
    const float shift = nothing ? 0 : top;
    const float sum =
        rowSum(block, a.keys, [&](int64_t j) { return expf(s(j) - shift); });
    const float norm = nothing ? 0 : 1 / sum;
    // Weights may lie where the scores do: a thread rewrites its own.
    for (int64_t j = block.thread(); j < a.keys; j += block.threads())
      store<float>(a.weights, r * a.keys + j, expf(s(j) - shift) * norm, false);
    if (block.thread() == 0)
      store<float>(a.lse, head * a.lseStrides[0] + query * a.lseStrides[1],
                   nothing ? -INFINITY : top + logf(sum), a.accumulate);
  }
}

// weights = exp(scores - lse); scoreGradients = weights (gradients - D) scale,
// with D = sum over features of dout out.
template <typename Block>
MERAK_HD void attentionGradBody(Block &block, const ScoreArgs &a) {
  const int64_t rows = a.heads * a.queries;
  for (int64_t r = block.block(); r < rows; r += block.blocks()) {
    const int64_t head = r / a.queries, query = r - head * a.queries;
    const float d = rowSum(block, a.features, [&](int64_t i) {
      return load<float>(a.out, query * a.outStrides[0] +
                                    head * a.outStrides[1] +
                                    i * a.outStrides[2]) *
             load<float>(a.dout, query * a.doutStrides[0] +
                                     head * a.doutStrides[1] +
                                     i * a.doutStrides[2]);
    });
    const float lse =
        load<float>(a.lse, head * a.lseStrides[0] + query * a.lseStrides[1]);
    for (int64_t j = block.thread(); j < a.keys; j += block.threads()) {
      const int64_t at = r * a.keys + j;
      const float p =
          lse == -INFINITY ? 0 : expf(a.score(head, query, j) - lse);
      const float g = p * (load<float>(a.gradients, at) - d) * a.scale;
      // Both may be written in place: a thread rewrites what it has read.
      store<float>(a.weights, at, p, false);
      store<float>(a.scoreGradients, at, g, false);
    }
  }
}

} // namespace merak::cuda
