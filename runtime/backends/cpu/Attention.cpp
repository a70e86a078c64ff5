// attention: softmax(scale * q k^T + mask) v, for each batch entry and head, in
// blocks of queries, without storing the weights.
#include "runtime/backends/cpu/Attention.h"

#include "runtime/backends/cpu/Gemm.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::cpu {

int64_t AttentionShape::keys(int64_t end) const {
  return causal ? std::clamp<int64_t>(first + end + tk - queries, 0, tk) : tk;
}

AttentionShape AttentionShape::of(const runtime::KernelCall &call) const {
  AttentionShape part = *this;
  part.first = scalarInteger(call, 0);
  return part;
}

bool readAttention(Request &request, size_t maskAt, AttentionShape &a) {
  const View &q = request.inputs[0], &k = request.inputs[1];
  const View &v = request.inputs[2];
  for (size_t i = 0; i < maskAt; ++i)
    request.type(request.inputs[i], fmt::format("input {}", i).c_str(),
                 planpb::F32);
  for (const View &out : request.outputs)
    request.type(out, "an output", planpb::F32);
  if (!request.expect(q.rank() == 4 && k.rank() == 4 && v.rank() == 4,
                      "expected q, k and v of rank 4"))
    return false;
  a.b = q.shape[0], a.tq = q.shape[1], a.h = q.shape[2], a.d = q.shape[3];
  a.tk = k.shape[1], a.hk = k.shape[2];
  request.shape(k, "k", {a.b, a.tk, a.hk, a.d});
  request.shape(v, "v", {a.b, a.tk, a.hk, a.d});
  request.expect(a.hk > 0 && a.h % a.hk == 0,
                 fmt::format("{} key heads do not divide {} heads", a.hk, a.h));
  a.scale = static_cast<float>(request.real("scale"));
  a.causal = request.integer("causal", 0) != 0;
  a.queries = request.integer("queries", a.tq);
  request.expect(a.tq == 0 ? a.queries == 0 : a.queries % a.tq == 0,
                 fmt::format("{} queries are no part of {}", a.tq, a.queries));
  std::string kind = request.text("mask", "none");
  if (kind == "none")
    return request.ok();
  request.expect(kind == "bool" || kind == "float",
                 fmt::format("unknown mask '{}'", kind));
  if (!request.expect(request.inputs.size() > maskAt, "the mask is missing"))
    return false;
  const View &mask = request.inputs[maskAt];
  a.mask =
      kind == "bool" ? AttentionShape::Mask::Bool : AttentionShape::Mask::Float;
  request.type(mask, "mask", kind == "bool" ? planpb::BOOL : planpb::F32);
  std::vector<int64_t> strides, shape = {a.b, a.h, a.tq, a.tk};
  if (request.expect(broadcastStrides(mask, shape, strides),
                     "the mask does not broadcast to the scores"))
    std::copy(strides.begin(), strides.end(), a.maskStrides);
  return request.ok();
}

void maskScores(const AttentionShape &a, const View *mask, int64_t batch,
                int64_t head, int64_t query, int64_t rows, int64_t keys,
                float *scores) {
  for (int64_t i = 0; i < rows; ++i) {
    float *row = scores + i * keys;
    int64_t offset = batch * a.maskStrides[0] + head * a.maskStrides[1] +
                     (query + i) * a.maskStrides[2];
    if (a.mask == AttentionShape::Mask::Bool) {
      const uint8_t *m = static_cast<const uint8_t *>(mask->data) + offset;
      for (int64_t j = 0; j < keys; ++j)
        if (!m[j * a.maskStrides[3]])
          row[j] = -INFINITY;
    } else if (a.mask == AttentionShape::Mask::Float) {
      const float *m = f32(*mask) + offset;
      for (int64_t j = 0; j < keys; ++j)
        row[j] += m[j * a.maskStrides[3]];
    }
    if (a.causal)
      for (int64_t j = a.keys(query + i + 1); j < keys; ++j)
        row[j] = -INFINITY;
  }
}

namespace {

void forwardBlock(const AttentionShape &a, const KernelCall &call,
                  int64_t batch, int64_t head, int64_t query) {
  const Simd &s = simd();
  const View &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2];
  const View &out = call.outputs[0], &lse = call.outputs[1];
  const int64_t rows = std::min(a.kBlock, a.tq - query);
  const int64_t keys = a.keys(query + rows), group = head / (a.h / a.hk);
  float *scores =
      scratch(ScratchSlot::Scores, rows * std::max<int64_t>(keys, 1));
  Gemm g;
  g.m = rows, g.n = keys, g.k = a.d;
  g.a = f32(q) + batch * q.strides[0] + query * q.strides[1] +
        head * q.strides[2];
  g.aRow = q.strides[1], g.aCol = q.strides[3];
  g.b = f32(k) + batch * k.strides[0] + group * k.strides[2];
  g.bRow = k.strides[3], g.bCol = k.strides[1];
  g.c = scores, g.cRow = keys;
  g.alpha = a.scale;
  gemm(g);
  maskScores(a, call.inputs.size() > 3 ? &call.inputs[3] : nullptr, batch, head,
             query, rows, keys, scores);
  for (int64_t i = 0; i < rows; ++i) {
    float *row = scores + i * keys;
    float top = s.max(row, keys);
    float total = 0, norm = 0;
    if (top == -INFINITY) { // nothing to attend to
      std::fill_n(row, keys, 0.0f);
    } else {
      total = s.expSum(row, row, keys, top);
      norm = 1 / total;
      s.scale(row, row, keys, norm);
    }
    f32Out(lse)[batch * lse.strides[0] + head * lse.strides[1] +
                (query + i) * lse.strides[2]] =
        top == -INFINITY ? -INFINITY : top + std::log(total);
  }
  Gemm p;
  p.m = rows, p.n = a.d, p.k = keys;
  p.a = scores, p.aRow = keys;
  p.b = f32(v) + batch * v.strides[0] + group * v.strides[2];
  p.bRow = v.strides[1], p.bCol = v.strides[3];
  p.c = f32Out(out) + batch * out.strides[0] + query * out.strides[1] +
        head * out.strides[2];
  p.cRow = out.strides[1], p.cCol = out.strides[3];
  gemm(p);
}

KernelResult createAttention(Request &request) {
  AttentionShape a;
  bool masked = request.text("mask", "none") != "none";
  if (!request.counts(masked ? 4 : 3, 2) || !readAttention(request, 3, a))
    return request.status();
  request.shape(request.outputs[0], "out", {a.b, a.tq, a.h, a.d});
  request.shape(request.outputs[1], "lse", {a.b, a.h, a.tq});
  if (!request.ok())
    return request.status();
  return makeKernel([shape = a](const KernelCall &call, ThreadPool &pool) {
    const AttentionShape a = shape.of(call);
    int64_t blocks = a.blocks();
    pool.parallelFor(a.b * a.h * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        // Of 2 heads in 3 blocks of queries, 10 is block 1 of head 1 of
        // sample 1.
        forwardBlock(a, call, t / (a.h * blocks), t / blocks % a.h,
                     t % blocks * a.kBlock);
    });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"attention", createAttention, true, false, false},
    {"attention_grad", createAttentionGrad, true, false, false},
};

} // namespace

std::span<const KernelEntry> attentionKernels() { return kEntries; }

} // namespace merak::cpu
