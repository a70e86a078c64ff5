// conv and its gradients: windows are laid out as the rows of a matrix, then
// multiplied. With columns [C/g * window, outputs] of one sample and group:
//   y = w columns, dcolumns = w^T dy, dw = sum over samples of dy columns^T.
// Operands are dense here (see the adapters in Registry.cpp).
#include "runtime/backends/cpu/Gemm.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::cpu {

namespace {

struct Conv : ConvRequest {
  bool bias = false;

  int64_t depth() const { return inChannels * window.kernelSize(); }
  // 1x1 windows at stride 1: the input is the matrix already.
  bool trivial() const {
    return window.kernelSize() == 1 && window.in == window.out &&
           window.stride == std::array<int64_t, 3>{1, 1, 1} &&
           window.pad == std::array<int64_t, 3>{0, 0, 0};
  }
  int64_t inOffset(int64_t sample, int64_t group) const {
    return (sample * groups + group) * inChannels * window.inSize();
  }
  int64_t outOffset(int64_t sample, int64_t group) const {
    return (sample * groups + group) * outChannels * window.outSize();
  }
  int64_t weightOffset(int64_t group) const {
    return group * outChannels * depth();
  }
};

bool readF32(Request &request, const View &x, const View &w, const View &y,
             Conv &c) {
  request.allF32();
  return readConv(request, x, w, y, c);
}

// Rows [first, last) of the matrix of one sample and group.
void makeColumns(const Conv &c, const float *x, int64_t first, int64_t last,
                 float *columns) {
  const Window &w = c.window;
  for (int64_t row = first; row < last; ++row) {
    // Of windows of 9 elements row 20 is element 2 of channel 2.
    const float *plane = x + row / w.kernelSize() * w.inSize();
    auto k = w.element(row % w.kernelSize());
    int64_t begin, end;
    w.inside(2, k[2], begin, end);
    for (int64_t i = 0; i < w.out[0]; ++i)
      for (int64_t j = 0; j < w.out[1]; ++j, columns += w.out[2]) {
        int64_t a = w.at(0, i, k[0]), b = w.at(1, j, k[1]);
        bool outside = a < 0 || a >= w.in[0] || b < 0 || b >= w.in[1];
        if (outside || begin >= end) {
          std::fill_n(columns, w.out[2], 0.0f);
          continue;
        }
        const float *line = plane + (a * w.in[1] + b) * w.in[2];
        std::fill_n(columns, begin, 0.0f);
        const float *source = line + w.at(2, begin, k[2]);
        if (w.stride[2] == 1)
          std::copy_n(source, end - begin, columns + begin);
        else
          for (int64_t o = begin; o < end; ++o, source += w.stride[2])
            columns[o] = *source;
        std::fill(columns + end, columns + w.out[2], 0.0f);
      }
  }
}

// The adjoint: adds the rows to the planes of one sample and group.
void addColumns(const Conv &c, const float *columns, float *x) {
  const Window &w = c.window;
  for (int64_t row = 0; row < c.depth(); ++row) {
    float *plane = x + row / w.kernelSize() * w.inSize();
    auto k = w.element(row % w.kernelSize());
    int64_t begin, end;
    w.inside(2, k[2], begin, end);
    for (int64_t i = 0; i < w.out[0]; ++i)
      for (int64_t j = 0; j < w.out[1]; ++j, columns += w.out[2]) {
        int64_t a = w.at(0, i, k[0]), b = w.at(1, j, k[1]);
        if (a < 0 || a >= w.in[0] || b < 0 || b >= w.in[1])
          continue;
        float *line = plane + (a * w.in[1] + b) * w.in[2];
        for (int64_t o = begin; o < end; ++o)
          line[w.at(2, o, k[2])] += columns[o];
      }
  }
}

KernelResult createConv(Request &request) {
  Conv c;
  c.bias = request.integer("bias", 0) != 0;
  if (!request.counts(2 + c.bias, 1) ||
      !readF32(request, request.inputs[0], request.inputs[1],
               request.outputs[0], c))
    return request.status();
  if (c.bias)
    request.shape(request.inputs[2], "bias", {request.inputs[1].shape[0]});
  if (!request.ok())
    return request.status();
  return makeKernel([c](const KernelCall &call, ThreadPool &pool) {
    const int64_t depth = c.depth(), positions = c.window.outSize();
    // Samples alone are too few for the threads: cut the channels as well.
    int64_t parts = c.samples * c.groups >= 2 * pool.threads()
                        ? 1
                        : std::min<int64_t>(c.outChannels, pool.threads());
    pool.parallelFor(
        c.samples * c.groups * parts, 1, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            // Of 2 groups in 3 parts, 10 is part 1 of group 1 of sample 1; of 8
            // channels it has those from 8 * 1 / 3 = 2 to 8 * 2 / 3 = 5.
            int64_t part = t % parts, group = t / parts % c.groups;
            int64_t sample = t / (parts * c.groups);
            int64_t first = c.outChannels * part / parts;
            int64_t last = c.outChannels * (part + 1) / parts;
            const float *x = f32(call.inputs[0]) + c.inOffset(sample, group);
            if (!c.trivial()) {
              float *columns = scratch(ScratchSlot::Columns, depth * positions);
              makeColumns(c, x, 0, depth, columns);
              x = columns;
            }
            Gemm g;
            g.m = last - first, g.n = positions, g.k = depth;
            g.a = f32(call.inputs[1]) + c.weightOffset(group) + first * depth;
            g.aRow = depth;
            g.b = x, g.bRow = positions;
            g.c = f32Out(call.outputs[0]) + c.outOffset(sample, group) +
                  first * positions;
            g.cRow = positions;
            gemm(g);
            if (c.bias)
              for (int64_t o = first; o < last; ++o) {
                float b = f32(call.inputs[2])[group * c.outChannels + o];
                float *y = g.c + (o - first) * positions;
                for (int64_t i = 0; i < positions; ++i)
                  y[i] += b;
              }
          }
        });
    return Status();
  });
}

KernelResult createGradInput(Request &request) {
  Conv c;
  if (!request.counts(2, 1) ||
      !readF32(request, request.outputs[0], request.inputs[1],
               request.inputs[0], c))
    return request.status();
  return makeKernel([c](const KernelCall &call, ThreadPool &pool) {
    const int64_t depth = c.depth(), positions = c.window.outSize();
    pool.parallelFor(c.samples * c.groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        int64_t sample = t / c.groups, group = t % c.groups;
        float *x = f32Out(call.outputs[0]) + c.inOffset(sample, group);
        Gemm g;
        g.m = depth, g.n = positions, g.k = c.outChannels;
        g.a = f32(call.inputs[1]) + c.weightOffset(group);
        g.aRow = 1, g.aCol = depth;
        g.b = f32(call.inputs[0]) + c.outOffset(sample, group);
        g.bRow = positions;
        g.c =
            c.trivial() ? x : scratch(ScratchSlot::Columns, depth * positions);
        g.cRow = positions;
        gemm(g);
        if (c.trivial())
          continue;
        std::fill_n(x, c.inChannels * c.window.inSize(), 0.0f);
        addColumns(c, g.c, x);
      }
    });
    return Status();
  });
}

// Threads share out the columns of dw; each goes through all samples in order.
KernelResult createGradWeight(Request &request) {
  Conv c;
  if (!request.counts(2, 1) ||
      !readF32(request, request.inputs[0], request.outputs[0],
               request.inputs[1], c))
    return request.status();
  return makeKernel([c](const KernelCall &call, ThreadPool &pool) {
    const int64_t depth = c.depth(), positions = c.window.outSize();
    pool.parallelFor(c.groups * depth, 4, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end;) {
        // A range may have rows of several groups: of 9 rows a group, [7, 12)
        // are 7 and 8 of the first and 0 to 2 of the second.
        int64_t group = t / depth, first = t % depth;
        int64_t last = std::min(depth, first + end - t);
        t += last - first;
        float *columns =
            scratch(ScratchSlot::Columns, (last - first) * positions);
        Gemm g;
        g.m = c.outChannels, g.n = last - first, g.k = positions;
        g.aRow = positions;
        g.bRow = 1, g.bCol = positions;
        g.c = f32Out(call.outputs[0]) + c.weightOffset(group) + first;
        g.cRow = depth;
        g.accumulate = call.accumulate;
        if (c.samples == 0)
          g.k = 0, gemm(g);
        for (int64_t sample = 0; sample < c.samples; ++sample) {
          const float *x = f32(call.inputs[0]) + c.inOffset(sample, group);
          if (c.trivial())
            g.b = x + first * positions;
          else
            makeColumns(c, x, first, last, columns), g.b = columns;
          g.a = f32(call.inputs[1]) + c.outOffset(sample, group);
          gemm(g);
          g.accumulate = true;
        }
      }
    });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"conv", createConv, false, false, false},
    {"conv_grad_input", createGradInput, false, false, false},
    {"conv_grad_weight", createGradWeight, false, true, false},
};

} // namespace

std::span<const KernelEntry> convKernels() { return kEntries; }

} // namespace merak::cpu
