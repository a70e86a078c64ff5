// dropout: zeros at random, the same ones for any cut of the global tensor.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/core/Philox.h"
#include "runtime/layout/Strides.h"

namespace merak::cpu {

namespace {

KernelResult createDropout(Request &request) {
  DropoutRequest dropout;
  const bool reads = readDropout(request, dropout);
  request.allF32();
  if (!reads || !request.ok())
    return request.status();
  // Where elements lie here and in the global tensor.
  Nest outer(dropout.extents,
             {layout::denseStrides(dropout.extents), dropout.strides});
  Nest::Inner inner = outer.splitInner();
  DropoutRow row;
  row.op = dropout.id;
  row.threshold = philox::thresholdOf(dropout.ratio);
  row.scale = static_cast<float>(1 / (1 - dropout.ratio));
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    if (call.scalars.size() < 2)
      return Status::error("dropout: expected the scalars seed and step");
    DropoutRow now = row;
    now.seed = static_cast<uint64_t>(call.scalars[0].asInteger());
    now.step = static_cast<uint32_t>(call.scalars[1].asInteger());
    int64_t begin = 0;
    for (size_t i = 2; i < call.scalars.size(); ++i)
      begin += call.scalars[i].asInteger();
    const float *from = f32(call.inputs[0]);
    float *to = f32Out(call.outputs[0]);
    forRowPieces(
        pool, outer, inner.size, 4096,
        [&](const int64_t *offsets, int64_t column, int64_t length) {
          const int64_t local = offsets[0] + column;
          const int64_t global = begin + offsets[1] + column * inner.strides[1];
          if (inner.strides[1] == 1) {
            simd().dropout(to + local, from + local, length,
                           static_cast<uint64_t>(global), now);
            return;
          }
          const philox::Stream stream{now.seed, now.op, now.step};
          for (int64_t i = 0; i < length; ++i) {
            const int64_t element = global + i * inner.strides[1];
            const bool kept =
                philox::wordOf(stream, static_cast<uint64_t>(element)) >=
                now.threshold;
            to[local + i] = kept ? from[local + i] * now.scale : 0.0f;
          }
        });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"dropout", createDropout, false, false, false},
};

} // namespace

std::span<const KernelEntry> dropoutKernels() { return kEntries; }

} // namespace merak::cpu
