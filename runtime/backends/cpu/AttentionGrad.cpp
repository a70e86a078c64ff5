// attention_grad. With P = exp(S - lse), S = scale q k^T + mask:
//   dv = P^T dout, dP = dout v^T, D_i = sum_d dout_id out_id,
//   dS = P (dP - D) scale, dq = dS k, dk = dS^T q.
// One task owns a batch entry and a key head, so that dk and dv are summed over
// heads and blocks in a fixed order.
#include "runtime/backends/cpu/Attention.h"
#include "runtime/backends/cpu/Gemm.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cmath>

namespace merak::cpu {

namespace {

// The [t, d] matrix of one batch entry and head, from row `first`.
struct Matrix {
  float *data;
  int64_t row, col;
  Matrix(const View &view, int64_t batch, int64_t head, int64_t first = 0)
      : data(f32Out(view) + batch * view.strides[0] + first * view.strides[1] +
             head * view.strides[2]),
        row(view.strides[1]), col(view.strides[3]) {}
  Matrix(float *data, int64_t row, int64_t col)
      : data(data), row(row), col(col) {}
  Matrix transposed() const { return {data, col, row}; }
};

void product(int64_t m, int64_t n, int64_t k, const Matrix &a, const Matrix &b,
             const Matrix &c, bool accumulate, float alpha = 1) {
  gemm({m, n, k, a.data, a.row, a.col, b.data, b.row, b.col, c.data, c.row,
        c.col, alpha, accumulate});
}

float strideDot(const Simd &s, const float *x, int64_t xStride, const float *y,
                int64_t yStride, int64_t n) {
  if (xStride == 1 && yStride == 1)
    return s.dot(x, y, n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += x[i * xStride] * y[i * yStride];
  return sum;
}

void backwardBlock(const AttentionShape &a, const KernelCall &call,
                   int64_t batch, int64_t group, int64_t head, int64_t query,
                   bool first) {
  const Simd &s = simd();
  const View &lse = call.inputs[4];
  const int64_t rows = std::min(a.kBlock, a.tq - query);
  // The first block writes all of dk and dv, the others add to what they see.
  const int64_t keys = first ? a.tk : a.keys(query + rows);
  Matrix q(call.inputs[0], batch, head, query), k(call.inputs[1], batch, group);
  Matrix v(call.inputs[2], batch, group);
  Matrix out(call.inputs[3], batch, head, query);
  Matrix dout(call.inputs[5], batch, head, query);
  Matrix dq(call.outputs[0], batch, head, query);
  Matrix dk(call.outputs[1], batch, group), dv(call.outputs[2], batch, group);
  const int64_t count = rows * std::max<int64_t>(keys, 1);
  Matrix p(scratch(ScratchSlot::Scores, count), keys, 1);
  Matrix ds(scratch(ScratchSlot::ScoreGrads, count), keys, 1);
  product(rows, keys, a.d, q, k.transposed(), p, false, a.scale);
  maskScores(a, call.inputs.size() > 6 ? &call.inputs[6] : nullptr, batch, head,
             query, rows, keys, p.data);
  product(rows, keys, a.d, dout, v.transposed(), ds, false);
  for (int64_t i = 0; i < rows; ++i) {
    float *row = p.data + i * keys;
    float shift = f32(lse)[batch * lse.strides[0] + head * lse.strides[1] +
                           (query + i) * lse.strides[2]];
    if (shift == -INFINITY)
      std::fill_n(row, keys, 0.0f);
    else
      s.expSum(row, row, keys, shift);
    float d = strideDot(s, dout.data + i * dout.row, dout.col,
                        out.data + i * out.row, out.col, a.d);
    s.attentionGrad(ds.data + i * keys, row, ds.data + i * keys, keys, d,
                    a.scale);
  }
  product(rows, a.d, keys, ds, k, dq, false);
  product(keys, a.d, rows, ds.transposed(), q, dk, !first);
  product(keys, a.d, rows, p.transposed(), dout, dv, !first);
}

} // namespace

KernelResult createAttentionGrad(Request &request) {
  AttentionShape a;
  bool masked = request.text("mask", "none") != "none";
  if (!request.counts(masked ? 7 : 6, 3) || !readAttention(request, 6, a))
    return request.status();
  request.shape(request.inputs[3], "out", {a.b, a.tq, a.h, a.d});
  request.shape(request.inputs[4], "lse", {a.b, a.h, a.tq});
  request.shape(request.inputs[5], "dout", {a.b, a.tq, a.h, a.d});
  request.shape(request.outputs[0], "dq", {a.b, a.tq, a.h, a.d});
  request.shape(request.outputs[1], "dk", {a.b, a.tk, a.hk, a.d});
  request.shape(request.outputs[2], "dv", {a.b, a.tk, a.hk, a.d});
  if (!request.ok())
    return request.status();
  return makeKernel([shape = a](const KernelCall &call, ThreadPool &pool) {
    const AttentionShape a = shape.of(call);
    pool.parallelFor(a.b * a.hk, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        int64_t batch = t / a.hk, group = t % a.hk, heads = a.h / a.hk;
        bool first = true;
        for (int64_t head = group * heads; head < (group + 1) * heads; ++head)
          for (int64_t block = 0; block < a.blocks(); ++block, first = false)
            backwardBlock(a, call, batch, group, head, block * a.kBlock, first);
        if (first) // no queries
          for (int output : {1, 2}) {
            Matrix zero(call.outputs[output], batch, group);
            product(a.tk, a.d, 0, zero, zero, zero, false);
          }
      }
    });
    return Status();
  });
}

} // namespace merak::cpu
