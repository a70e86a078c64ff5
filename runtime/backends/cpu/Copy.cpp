// copy, fill, slice, place.
#include "runtime/backends/cpu/Copy.h"

#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/core/DType.h"
#include "runtime/layout/Strides.h"

#include <fmt/format.h>

namespace merak::cpu {

namespace {

constexpr int64_t kCopyGrain = 16384;

template <typename From, typename To, bool kAdd>
void convertLine(const void *from, int64_t fromStride, void *to,
                 int64_t toStride, int64_t n) {
  const From *x = static_cast<const From *>(from);
  To *y = static_cast<To *>(to);
  for (int64_t i = 0; i < n; ++i) {
    To value = convert<To>(x[i * fromStride]);
    if constexpr (kAdd) {
      if constexpr (std::is_same_v<To, Bool>)
        value.bits |= y[i * toStride].bits;
      else if constexpr (std::is_arithmetic_v<To>)
        value = static_cast<To>(value + y[i * toStride]);
      else
        value = convert<To>(toFloat(value) + toFloat(y[i * toStride]));
    }
    y[i * toStride] = value;
  }
}

// Moves elements of a size without looking at them.
template <typename Word>
void moveLine(const void *from, int64_t fromStride, void *to, int64_t toStride,
              int64_t n) {
  if (fromStride == 1 && toStride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(Word));
    return;
  }
  const Word *x = static_cast<const Word *>(from);
  Word *y = static_cast<Word *>(to);
  if (toStride == 1) {
    for (int64_t i = 0; i < n; ++i)
      y[i] = x[i * fromStride];
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    y[i * toStride] = x[i * fromStride];
}

void addLine(const void *from, int64_t fromStride, void *to, int64_t toStride,
             int64_t n) {
  if (fromStride == 1 && toStride == 1)
    simd().add(static_cast<float *>(to), static_cast<const float *>(from), n);
  else
    convertLine<float, float, true>(from, fromStride, to, toStride, n);
}

} // namespace

CopyPlan::CopyPlan(const View &from, const View &to, bool accumulate)
    : fromSize_(runtime::dtypeSize(from.dtype)),
      toSize_(runtime::dtypeSize(to.dtype)) {
  outer_ = Nest(from.shape, {from.strides, to.strides});
  outer_.sortBy(1);
  if (from.dtype == to.dtype && !accumulate)
    line_ = toSize_ == 1   ? moveLine<uint8_t>
            : toSize_ == 2 ? moveLine<uint16_t>
            : toSize_ == 4 ? moveLine<uint32_t>
                           : moveLine<uint64_t>;
  else if (from.dtype == planpb::F32 && to.dtype == planpb::F32)
    line_ = addLine;
  else
    withType(from.dtype, [&](auto x) {
      withType(to.dtype, [&](auto y) {
        using X = decltype(x);
        using Y = decltype(y);
        line_ = accumulate ? convertLine<X, Y, true> : convertLine<X, Y, false>;
      });
    });
  inner_ = outer_.splitInner();
  if (line_ != moveLine<uint32_t> || inner_.strides[1] != 1 ||
      inner_.strides[0] == 1 || inner_.size < 8)
    return;
  // A dimension along which the source is contiguous: blocked transpose.
  for (size_t d = 0; d < outer_.sizes.size(); ++d) {
    if (outer_.strides[0][d] != 1 || outer_.sizes[d] < 8)
      continue;
    transposed_ = true;
    transposedSize_ = outer_.sizes[d];
    transposedToStride_ = outer_.strides[1][d];
    outer_.sizes.erase(outer_.sizes.begin() + d);
    for (auto &strides : outer_.strides)
      strides.erase(strides.begin() + d);
    return;
  }
}

void CopyPlan::runTransposed(const char *from, char *to,
                             ThreadPool &pool) const {
  // Source element (i, j) at i * inner_.strides[0] + j, target at
  // j * transposedToStride_ + i.
  constexpr int64_t kTile = 64;
  int64_t tilesI = (inner_.size + kTile - 1) / kTile;
  int64_t tilesJ = (transposedSize_ + kTile - 1) / kTile;
  const Simd &s = simd();
  pool.parallelFor(
      outer_.count() * tilesJ * tilesI, 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          // Of 2 x 3 tiles, 9 is (9 % 2, 9 / 2 % 3) = (1, 1) of the second
          // matrix.
          int64_t i = t % tilesI * kTile, j = t / tilesI % tilesJ * kTile;
          int64_t offsets[2];
          outer_.offsets(t / (tilesI * tilesJ), offsets);
          const char *source =
              from + 4 * (offsets[0] + i * inner_.strides[0] + j);
          char *target = to + 4 * (offsets[1] + j * transposedToStride_ + i);
          s.transpose32(target, transposedToStride_, source, inner_.strides[0],
                        std::min(kTile, inner_.size - i),
                        std::min(kTile, transposedSize_ - j));
        }
      });
}

void CopyPlan::run(const void *from, void *to, ThreadPool &pool) const {
  const char *source = static_cast<const char *>(from);
  char *target = static_cast<char *>(to);
  if (transposed_)
    return runTransposed(source, target, pool);
  forRowPieces(
      pool, outer_, inner_.size, kCopyGrain,
      [&](const int64_t *offsets, int64_t column, int64_t length) {
        line_(source + fromSize_ * (offsets[0] + column * inner_.strides[0]),
              inner_.strides[0],
              target + toSize_ * (offsets[1] + column * inner_.strides[1]),
              inner_.strides[1], length);
      });
}

View denseView(const View &view, void *data) {
  return {data, view.dtype, view.shape, layout::denseStrides(view.shape)};
}

namespace {

KernelResult createCopy(Request &request) {
  if (request.counts(1, 1))
    request.sameShape(request.inputs[0], "input", request.outputs[0], "output");
  if (!request.ok())
    return request.status();
  CopyPlan plan(request.inputs[0], request.outputs[0],
                request.instruction.accumulate());
  return makeKernel([plan](const KernelCall &call, ThreadPool &pool) {
    plan.run(call.inputs[0].data, call.outputs[0].data, pool);
    return Status();
  });
}

KernelResult createFill(Request &request) {
  request.counts(0, 1);
  if (!request.ok())
    return request.status();
  const View &out = request.outputs[0];
  // The value is a copy of one element with all strides 0.
  View one{nullptr, out.dtype, out.shape,
           std::vector<int64_t>(out.shape.size(), 0)};
  CopyPlan plan(one, out, request.instruction.accumulate());
  return makeKernel([plan, dtype = out.dtype](const KernelCall &call,
                                              ThreadPool &pool) {
    if (call.scalars.empty())
      return Status::error("fill: expected 1 scalar, found 0");
    alignas(8) unsigned char word[8] = {};
    const ScalarValue &scalar = call.scalars[0];
    withType(dtype, [&](auto type) {
      using T = decltype(type);
      T value = scalar.isFloat ? convert<T>(scalar.f) : convert<T>(scalar.i);
      std::memcpy(word, &value, sizeof(value));
    });
    plan.run(word, call.outputs[0].data, pool);
    return Status();
  });
}

// What a rank keeps of a value that all ranks have.
KernelResult createSlice(Request &request) {
  AxisPart part;
  if (!request.counts(1, 1) ||
      !readAxisPart(request, request.inputs[0], request.outputs[0],
                    "output is no part of the input along the axis", part))
    return request.status();
  CopyPlan plan(part.view, request.outputs[0],
                request.instruction.accumulate());
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const Result<int64_t> offset = part.offset(call, "slice");
    if (!offset)
      return offset.status();
    plan.run(static_cast<const char *>(call.inputs[0].data) + *offset,
             call.outputs[0].data, pool);
    return Status();
  });
}

// Its adjoint: the part among zeros.
KernelResult createPlace(Request &request) {
  AxisPart part;
  if (!request.counts(1, 1) ||
      !readAxisPart(request, request.outputs[0], request.inputs[0],
                    "input is no part of the output along the axis", part))
    return request.status();
  const View &out = request.outputs[0];
  const bool adds = request.instruction.accumulate();
  CopyPlan plan(request.inputs[0], part.view, adds);
  const View zeros{nullptr, out.dtype, out.shape,
                   std::vector<int64_t>(out.shape.size(), 0)};
  const CopyPlan clear(zeros, out, /*accumulate=*/false);
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const Result<int64_t> offset = part.offset(call, "place");
    if (!offset)
      return offset.status();
    constexpr char kZero[8] = {};
    if (!adds)
      clear.run(kZero, call.outputs[0].data, pool);
    plan.run(call.inputs[0].data,
             static_cast<char *>(call.outputs[0].data) + *offset, pool);
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"copy", createCopy, true, true, false, true},
    {"slice", createSlice, true, true, false, true},
    {"place", createPlace, true, true, false, true},
    {"fill", createFill, true, true, false, true},
};

} // namespace

std::span<const KernelEntry> copyKernels() { return kEntries; }

} // namespace merak::cpu
