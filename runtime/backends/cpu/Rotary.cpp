// rotary: turns pairs of features by position-dependent angles.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <fmt/format.h>

namespace merak::cpu {

namespace {

KernelResult createRotary(Request &request) {
  if (!request.counts(3, 1))
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  request.allF32();
  request.sameShape(x, "x", y, "y");
  if (!request.expect(x.rank() == 4 && x.shape[3] % 2 == 0,
                      "expected x [b, t, h, d] with even d"))
    return request.status();
  const bool interleaved = request.integer("interleaved", 0) != 0;
  const bool inverse = request.integer("inverse", 0) != 0;
  const int64_t half = x.shape[3] / 2;
  std::vector<int64_t> angles = {x.shape[0], x.shape[1], 1, half};
  std::vector<int64_t> cs, sn;
  bool fits = broadcastStrides(request.inputs[1], angles, cs) &&
              broadcastStrides(request.inputs[2], angles, sn);
  if (!request.expect(fits, fmt::format("cos or sin does not broadcast to "
                                        "[{}, {}, 1, {}]",
                                        angles[0], angles[1], half)) ||
      !request.ok())
    return request.status();
  auto lead = [](const std::vector<int64_t> &s) {
    return std::vector<int64_t>{s[0], s[1], s[2]};
  };
  Nest rows(std::span(x.shape).first(3),
            {lead(x.strides), lead(y.strides), lead(cs), lead(sn)});
  // Where the two members of pair i lie, and the steps from pair to pair.
  const int64_t xStep = x.strides[3], yStep = y.strides[3];
  const int64_t pair = interleaved ? 2 : 1, other = interleaved ? 1 : half;
  const bool dense = !interleaved && xStep == 1 && yStep == 1 &&
                     (half == 1 || (cs[3] == 1 && sn[3] == 1));
  const int64_t cStep = cs[3], sStep = sn[3];
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    pool.parallelFor(
        rows.count(), rowGrain(2 * half), [&](int64_t begin, int64_t end) {
          float *negated = scratch(ScratchSlot::Row0, half);
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[4];
            rows.offsets(i, o);
            const float *x = f32(call.inputs[0]) + o[0];
            float *y = f32Out(call.outputs[0]) + o[1];
            const float *c = f32(call.inputs[1]) + o[2];
            const float *sine = f32(call.inputs[2]) + o[3];
            if (dense) {
              if (inverse) {
                s.scale(negated, sine, half, -1);
                sine = negated;
              }
              s.rotate(y, y + half, x, x + half, c, sine, half);
              continue;
            }
            for (int64_t j = 0; j < half; ++j) {
              float a = x[j * pair * xStep], b = x[(j * pair + other) * xStep];
              float cosine = c[j * cStep];
              float turn = inverse ? -sine[j * sStep] : sine[j * sStep];
              y[j * pair * yStep] = a * cosine - b * turn;
              y[(j * pair + other) * yStep] = b * cosine + a * turn;
            }
          }
        });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"rotary", createRotary, true, false, false},
};

} // namespace

std::span<const KernelEntry> rotaryKernels() { return kEntries; }

} // namespace merak::cpu
