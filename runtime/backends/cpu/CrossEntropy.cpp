// softmax_cross_entropy and its gradient, on logits [..., V]; and the
// column-parallel half of it, where `labels` name global columns.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <atomic>
#include <cmath>
#include <fmt/format.h>

namespace merak::cpu {

namespace {

struct Geometry {
  Nest rows; // logits, labels, then the operands of one value a row
  RowAccess logits, gradient;
  int64_t columns = 0, columnStride = 0;
  bool hasIgnored = false;
  int64_t ignored = 0;
  planpb::DType labelType = planpb::I64;
};

bool readGeometry(Request &request, std::initializer_list<const View *> vectors,
                  const View *gradient, Geometry &g) {
  const View &logits = request.inputs[0], &labels = request.inputs[1];
  if (!request.expect(logits.rank() > 0, "expected logits of rank 1 or more"))
    return false;
  std::vector<int64_t> shape(logits.shape.begin(), logits.shape.end() - 1);
  auto lead = [](const View &view) {
    return std::vector<int64_t>(view.strides.begin(), view.strides.end() - 1);
  };
  std::vector<std::vector<int64_t>> strides = {lead(logits), labels.strides};
  request.type(logits, "logits", planpb::F32);
  request.index(labels, "labels");
  request.shape(labels, "labels", shape);
  for (const View *view : vectors) {
    request.type(*view, "values of a row", planpb::F32);
    request.shape(*view, "values of a row", shape);
    strides.push_back(view->strides);
  }
  if (gradient) {
    request.type(*gradient, "dlogits", planpb::F32);
    request.sameShape(logits, "logits", *gradient, "dlogits");
  }
  g.hasIgnored = request.has("ignore_index");
  g.ignored = request.integer("ignore_index", 0);
  if (!request.ok())
    return false;
  if (gradient) {
    strides.push_back(lead(*gradient));
    g.gradient = RowAccess(std::span(&gradient->shape.back(), 1),
                           std::span(&gradient->strides.back(), 1));
  }
  g.rows = Nest(shape, strides);
  g.logits = RowAccess(std::span(&logits.shape.back(), 1),
                       std::span(&logits.strides.back(), 1));
  g.columns = logits.shape.back();
  g.labelType = labels.dtype;
  return true;
}

KernelResult createForward(Request &request) {
  Geometry g;
  if (!request.counts(2, 2) ||
      !readGeometry(request, {&request.outputs[0], &request.outputs[1]},
                    nullptr, g))
    return request.status();
  return makeKernel([g](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    const int64_t n = g.columns;
    std::atomic<int64_t> wrongRow{-1};
    pool.parallelFor(
        g.rows.count(), rowGrain(n), [&](int64_t begin, int64_t end) {
          float *copy = scratch(ScratchSlot::Row0, n);
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[4];
            g.rows.offsets(i, o);
            const float *x = g.logits.read(f32(call.inputs[0]) + o[0], copy);
            float top = s.max(x, n);
            float lse = top == -INFINITY
                            ? top
                            : top + std::log(s.expSum(nullptr, x, n, top));
            int64_t label = indexAt(g.labelType, call.inputs[1].data, o[1]);
            float loss = 0;
            if (!(g.hasIgnored && label == g.ignored)) {
              if (label >= 0 && label < n)
                loss = lse - x[label];
              else
                wrongRow = i;
            }
            f32Out(call.outputs[0])[o[2]] = loss;
            f32Out(call.outputs[1])[o[3]] = lse;
          }
        });
    if (int64_t row = wrongRow; row >= 0) {
      int64_t o[4];
      g.rows.offsets(row, o);
      return Status::error(fmt::format(
          "softmax_cross_entropy: label {} of row {} is outside [0, {})",
          indexAt(g.labelType, call.inputs[1].data, o[1]), row, n));
    }
    return Status();
  });
}

KernelResult createGrad(Request &request) {
  Geometry g;
  if (!request.counts(4, 1) ||
      !readGeometry(request, {&request.inputs[2], &request.inputs[3]},
                    &request.outputs[0], g))
    return request.status();
  return makeKernel([g](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    const int64_t n = g.columns, first = scalarInteger(call, 0);
    pool.parallelFor(
        g.rows.count(), rowGrain(n), [&](int64_t begin, int64_t end) {
          float *in = scratch(ScratchSlot::Row0, n);
          float *out = scratch(ScratchSlot::Row1, n);
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[5];
            g.rows.offsets(i, o);
            int64_t label = indexAt(g.labelType, call.inputs[1].data, o[1]);
            const float *x = g.logits.read(f32(call.inputs[0]) + o[0], in);
            float *target = f32Out(call.outputs[0]) + o[4];
            float *dx = g.gradient.target(target, out);
            if (g.hasIgnored && label == g.ignored) {
              std::fill_n(dx, n, 0.0f);
            } else {
              float dloss = f32(call.inputs[3])[o[3]];
              s.expSum(dx, x, n, f32(call.inputs[2])[o[2]]);
              s.scale(dx, dx, n, dloss);
              if (label >= first && label < first + n)
                dx[label - first] -= dloss;
            }
            g.gradient.finish(target, dx);
          }
        });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"softmax_cross_entropy", createForward, true, false, false},
    {"softmax_cross_entropy_grad", createGrad, true, false, false},
};

} // namespace

std::span<const KernelEntry> crossEntropyKernels() { return kEntries; }

} // namespace merak::cpu
