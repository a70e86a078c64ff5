// max_pool, avg_pool and their gradients, one plane (sample and channel) after
// the other. Operands are dense here.
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Requests.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::cpu {

namespace {

struct Pool : PoolRequest {
  // Calls body(output position, input position) for each window element that
  // lies inside the input, windows and elements in row-major order.
  template <typename Body> void forElements(int64_t out, Body body) const {
    const Window &w = window;
    // Of 1 x 2 x 4 windows 7 is (7 / 8, 7 / 4 % 2, 7 % 4) = (0, 1, 3).
    int64_t o[3] = {out / (w.out[1] * w.out[2]), out / w.out[2] % w.out[1],
                    out % w.out[2]};
    for (int64_t p = 0; p < w.kernelSize(); ++p) {
      auto k = w.element(p);
      int64_t a = w.at(0, o[0], k[0]), b = w.at(1, o[1], k[1]);
      int64_t c = w.at(2, o[2], k[2]);
      if (a >= 0 && a < w.in[0] && b >= 0 && b < w.in[1] && c >= 0 &&
          c < w.in[2])
        body((a * w.in[1] + b) * w.in[2] + c);
    }
  }
  // What an average divides by: elements inside, or inside the padded input.
  float divisor(int64_t out) const {
    const Window &w = window;
    int64_t o[3] = {out / (w.out[1] * w.out[2]), out / w.out[2] % w.out[1],
                    out % w.out[2]};
    int64_t count = 1;
    for (int d = 0; d < Window::kDims; ++d) {
      int64_t inside = 0;
      for (int64_t k = 0; k < w.kernel[d]; ++k) {
        int64_t at = w.at(d, o[d], k);
        inside += countPad ? at < w.in[d] + padEnd[d] : at >= 0 && at < w.in[d];
      }
      count *= inside;
    }
    return static_cast<float>(std::max<int64_t>(count, 1));
  }
};

bool readF32(Request &request, const View &in, const View &out, Pool &p) {
  request.type(in, "the wide operand", planpb::F32);
  request.type(out, "the narrow operand", planpb::F32);
  return readPool(request, in, out, p);
}

// Calls body(plane) on all threads.
template <typename Body>
void forPlanes(const Pool &p, ThreadPool &pool, const Body &body) {
  int64_t work = p.window.outSize() * p.window.kernelSize();
  pool.parallelFor(p.planes, rowGrain(work), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane)
      body(plane);
  });
}

KernelResult createMax(Request &request) {
  Pool p;
  if (!request.counts(1, 2) ||
      !readF32(request, request.inputs[0], request.outputs[0], p))
    return request.status();
  request.type(request.outputs[1], "index", planpb::I64);
  request.sameShape(request.outputs[0], "y", request.outputs[1], "index");
  if (!request.ok())
    return request.status();
  return makeKernel([p](const KernelCall &call, ThreadPool &pool) {
    const int64_t inSize = p.window.inSize(), outSize = p.window.outSize();
    forPlanes(p, pool, [&](int64_t plane) {
      const float *x = f32(call.inputs[0]) + plane * inSize;
      float *y = f32Out(call.outputs[0]) + plane * outSize;
      int64_t *index =
          static_cast<int64_t *>(call.outputs[1].data) + plane * outSize;
      for (int64_t o = 0; o < outSize; ++o) {
        int64_t best = -1;
        p.forElements(o, [&](int64_t i) {
          // A NaN wins and stays.
          if (best < 0 || x[i] > x[best] ||
              (std::isnan(x[i]) && !std::isnan(x[best])))
            best = i;
        });
        index[o] = std::max<int64_t>(best, 0);
        y[o] = best < 0 ? -INFINITY : x[best];
      }
    });
    return Status();
  });
}

KernelResult createMaxGrad(Request &request) {
  if (!request.counts(2, 1))
    return request.status();
  const View &dy = request.inputs[0], &index = request.inputs[1];
  const View &dx = request.outputs[0];
  request.type(dy, "dy", planpb::F32);
  request.type(index, "index", planpb::I64);
  request.type(dx, "dx", planpb::F32);
  request.sameShape(dy, "dy", index, "index");
  if (!request.expect(dy.rank() >= 2 && dx.rank() >= 2 &&
                          dy.shape[0] == dx.shape[0] &&
                          dy.shape[1] == dx.shape[1],
                      "samples and channels differ"))
    return request.status();
  if (!request.ok())
    return request.status();
  const int64_t planes = dy.shape[0] * dy.shape[1];
  const int64_t outSize = planes ? dy.elements() / planes : 0;
  const int64_t inSize = planes ? dx.elements() / planes : 0;
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    pool.parallelFor(planes, rowGrain(inSize), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const float *dy = f32(call.inputs[0]) + plane * outSize;
        const int64_t *index =
            static_cast<const int64_t *>(call.inputs[1].data) + plane * outSize;
        float *dx = f32Out(call.outputs[0]) + plane * inSize;
        std::fill_n(dx, inSize, 0.0f);
        for (int64_t o = 0; o < outSize; ++o)
          if (index[o] >= 0 && index[o] < inSize)
            dx[index[o]] += dy[o];
      }
    });
    return Status();
  });
}

KernelResult createAverage(Request &request) {
  Pool p;
  if (!request.counts(1, 1) ||
      !readF32(request, request.inputs[0], request.outputs[0], p))
    return request.status();
  return makeKernel([p](const KernelCall &call, ThreadPool &pool) {
    const int64_t inSize = p.window.inSize(), outSize = p.window.outSize();
    forPlanes(p, pool, [&](int64_t plane) {
      const float *x = f32(call.inputs[0]) + plane * inSize;
      float *y = f32Out(call.outputs[0]) + plane * outSize;
      for (int64_t o = 0; o < outSize; ++o) {
        double sum = 0;
        p.forElements(o, [&](int64_t i) { sum += x[i]; });
        y[o] = static_cast<float>(sum / p.divisor(o));
      }
    });
    return Status();
  });
}

KernelResult createAverageGrad(Request &request) {
  Pool p;
  if (!request.counts(1, 1) ||
      !readF32(request, request.outputs[0], request.inputs[0], p))
    return request.status();
  return makeKernel([p](const KernelCall &call, ThreadPool &pool) {
    const int64_t inSize = p.window.inSize(), outSize = p.window.outSize();
    forPlanes(p, pool, [&](int64_t plane) {
      const float *dy = f32(call.inputs[0]) + plane * outSize;
      float *dx = f32Out(call.outputs[0]) + plane * inSize;
      std::fill_n(dx, inSize, 0.0f);
      for (int64_t o = 0; o < outSize; ++o) {
        float share = dy[o] / p.divisor(o);
        p.forElements(o, [&](int64_t i) { dx[i] += share; });
      }
    });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"max_pool", createMax, false, false, false},
    {"max_pool_grad", createMaxGrad, false, false, false},
    {"avg_pool", createAverage, false, false, false},
    {"avg_pool_grad", createAverageGrad, false, false, false},
};

} // namespace

std::span<const KernelEntry> poolKernels() { return kEntries; }

} // namespace merak::cpu
