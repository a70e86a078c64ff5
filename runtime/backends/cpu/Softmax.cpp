// softmax, softmax_grad, along any axis.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <cmath>

namespace merak::cpu {

namespace {

// Rows along `axis` of operands of one shape.
struct Rows {
  Nest outer;
  std::vector<RowAccess> row; // by operand
  int64_t size = 0;
};

Rows makeRows(const std::vector<const View *> &views, int64_t axis) {
  Rows rows;
  std::vector<int64_t> shape = views[0]->shape;
  rows.size = shape[axis];
  shape.erase(shape.begin() + axis);
  std::vector<std::vector<int64_t>> strides;
  for (const View *view : views) {
    std::vector<int64_t> rest = view->strides;
    rest.erase(rest.begin() + axis);
    strides.push_back(rest);
    rows.row.emplace_back(std::span(&view->shape[axis], 1),
                          std::span(&view->strides[axis], 1));
  }
  rows.outer = Nest(shape, strides);
  return rows;
}

KernelResult createSoftmax(Request &request) {
  if (!request.counts(1, 1))
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  request.allF32();
  request.sameShape(x, "x", y, "y");
  int64_t axis = request.axis(x.rank());
  if (!request.ok())
    return request.status();
  Rows rows = makeRows({&x, &y}, axis);
  return makeKernel([rows](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    const int64_t n = rows.size;
    pool.parallelFor(
        rows.outer.count(), rowGrain(n), [&](int64_t begin, int64_t end) {
          float *in = scratch(ScratchSlot::Row0, n);
          float *out = scratch(ScratchSlot::Row1, n);
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[2];
            rows.outer.offsets(i, o);
            const float *x = rows.row[0].read(f32(call.inputs[0]) + o[0], in);
            float *y = rows.row[1].target(f32Out(call.outputs[0]) + o[1], out);
            float top = s.max(x, n);
            // A row of minus infinity is masked everywhere: zeros.
            bool masked = top == -INFINITY;
            float sum = s.expSum(y, x, n, masked ? 0 : top);
            s.scale(y, y, n, masked ? 0 : 1 / sum);
            rows.row[1].finish(f32Out(call.outputs[0]) + o[1], y);
          }
        });
    return Status();
  });
}

KernelResult createSoftmaxGrad(Request &request) {
  if (!request.counts(2, 1))
    return request.status();
  const View &y = request.inputs[0], &dy = request.inputs[1];
  const View &dx = request.outputs[0];
  request.allF32();
  request.sameShape(y, "y", dy, "dy");
  request.sameShape(y, "y", dx, "dx");
  int64_t axis = request.axis(y.rank());
  if (!request.ok())
    return request.status();
  Rows rows = makeRows({&y, &dy, &dx}, axis);
  return makeKernel([rows](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    const int64_t n = rows.size;
    pool.parallelFor(
        rows.outer.count(), rowGrain(n), [&](int64_t begin, int64_t end) {
          float *a = scratch(ScratchSlot::Row0, n);
          float *b = scratch(ScratchSlot::Row1, n);
          float *out = scratch(ScratchSlot::Row2, n);
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[3];
            rows.outer.offsets(i, o);
            const float *y = rows.row[0].read(f32(call.inputs[0]) + o[0], a);
            const float *dy = rows.row[1].read(f32(call.inputs[1]) + o[1], b);
            float *dx = rows.row[2].target(f32Out(call.outputs[0]) + o[2], out);
            s.softmaxGrad(dx, y, dy, n, s.dot(y, dy, n));
            rows.row[2].finish(f32Out(call.outputs[0]) + o[2], dx);
          }
        });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"softmax", createSoftmax, true, false, false},
    {"softmax_grad", createSoftmaxGrad, true, false, false},
};

} // namespace

std::span<const KernelEntry> softmaxKernels() { return kEntries; }

} // namespace merak::cpu
