// sgd_update, adamw_update, adagrad_update, square_sum, clip_factor.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace merak::cpu {

namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kPiece = 65536; // elements of one partial square sum

// The gradient and the tensors that a step reads and writes.
struct Update {
  Nest outer;
  Nest::Inner inner;
  size_t states = 0; // outputs
  bool clip = false;

  bool dense() const {
    return std::all_of(inner.strides.begin(), inner.strides.end(),
                       [](int64_t s) { return s == 1; });
  }
};

bool readUpdate(Request &request, size_t states, Update &u) {
  request.allF32();
  if (!request.ok())
    return false;
  const View &grad = request.inputs[0];
  std::vector<std::vector<int64_t>> strides = {grad.strides};
  for (const View &state : request.outputs) {
    request.sameShape(grad, "the gradient", state, "a parameter or its state");
    strides.push_back(state.strides);
  }
  if (u.clip)
    request.expect(request.inputs[1].elements() == 1,
                   "expected one clip factor");
  if (!request.ok())
    return false;
  u.outer = Nest(grad.shape, strides);
  u.inner = u.outer.splitInner();
  u.states = states;
  return true;
}

// Calls step(pointers to the states, gradient, n) on contiguous pieces; strided
// ones pass through copies.
template <typename Step>
void runUpdate(const Update &u, const KernelCall &call, ThreadPool &pool,
               const Step &step) {
  const bool dense = u.dense() || u.inner.size == 1;
  constexpr ScratchSlot kSlots[] = {ScratchSlot::Row1, ScratchSlot::Row2,
                                    ScratchSlot::Row3};
  forRowPieces(pool, u.outer, u.inner.size, kGrain,
               [&](const int64_t *offsets, int64_t column, int64_t n) {
                 const float *grad = f32(call.inputs[0]) + offsets[0] +
                                     column * u.inner.strides[0];
                 float *state[3] = {nullptr, nullptr, nullptr};
                 for (size_t i = 0; i < u.states; ++i)
                   state[i] = f32Out(call.outputs[i]) + offsets[i + 1] +
                              column * u.inner.strides[i + 1];
                 if (dense)
                   return step(state, grad, n);
                 float *gradCopy = scratch(ScratchSlot::Row0, n);
                 for (int64_t j = 0; j < n; ++j)
                   gradCopy[j] = grad[j * u.inner.strides[0]];
                 float *copy[3] = {nullptr, nullptr, nullptr};
                 for (size_t i = 0; i < u.states; ++i) {
                   copy[i] = scratch(kSlots[i], n);
                   for (int64_t j = 0; j < n; ++j)
                     copy[i][j] = state[i][j * u.inner.strides[i + 1]];
                 }
                 step(copy, gradCopy, n);
                 for (size_t i = 0; i < u.states; ++i)
                   for (int64_t j = 0; j < n; ++j)
                     state[i][j * u.inner.strides[i + 1]] = copy[i][j];
               });
}

// NaN: the gradients are not finite, and nothing may change.
float clipFactor(const Update &u, const KernelCall &call) {
  return u.clip ? f32(call.inputs[1])[0] : 1;
}

KernelResult createSgd(Request &request) {
  Update u;
  u.clip = request.integer("clip", 0) != 0;
  SgdRequest sgd;
  if (!readSgd(request, sgd))
    return request.status();
  const size_t states = sgd.momentum != 0 ? 2 : 1;
  // The buffer may also be listed as an input: it is the same view.
  const size_t inputs = 1 + u.clip;
  if (request.inputs.size() != inputs + 1 || sgd.momentum == 0)
    request.counts(inputs, states);
  else
    request.counts(inputs + 1, states);
  if (!request.ok() || !readUpdate(request, states, u))
    return request.status();
  return makeKernel([u, sgd](const KernelCall &call, ThreadPool &pool) {
    if (call.scalars.size() < 2)
      return Status::error("sgd_update: expected the scalars lr and step");
    const SgdStep now =
        sgd.at(call.scalars[0].asDouble(), call.scalars[1].asInteger());
    const float factor = clipFactor(u, call);
    if (std::isnan(factor))
      return Status();
    runUpdate(u, call, pool,
              [&](float *const *state, const float *grad, int64_t n) {
                simd().sgd(state[0], state[1], grad, n, factor, now);
              });
    return Status();
  });
}

// Adam and Adagrad: `states` tensors, and a function of simd().
template <size_t states, typename Step, typename Scalars>
KernelResult makeUpdate(Request &request, const Scalars &scalars,
                        const Step &step) {
  Update u;
  u.clip = request.integer("clip", 0) != 0;
  if (!request.counts(1 + u.clip, states) || !readUpdate(request, states, u) ||
      !request.ok())
    return request.status();
  return makeKernel(
      [u, scalars, step](const KernelCall &call, ThreadPool &pool) {
        if (call.scalars.size() < 2)
          return Status::error("an update: expected the scalars lr and step");
        const auto now =
            scalars.at(call.scalars[0].asDouble(), call.scalars[1].asInteger());
        const float factor = clipFactor(u, call);
        if (std::isnan(factor))
          return Status();
        runUpdate(u, call, pool,
                  [&](float *const *state, const float *grad, int64_t n) {
                    step(state, grad, n, factor, now);
                  });
        return Status();
      });
}

KernelResult createAdamW(Request &request) {
  AdamRequest adam;
  if (!readAdam(request, adam))
    return request.status();
  return makeUpdate<3>(request, adam,
                       [](float *const *state, const float *grad, int64_t n,
                          float factor, const AdamWStep &now) {
                         simd().adamW(state[0], state[1], state[2], grad, n,
                                      factor, now);
                       });
}

KernelResult createAdagrad(Request &request) {
  AdagradRequest adagrad;
  if (!readAdagrad(request, adagrad))
    return request.status();
  return makeUpdate<2>(request, adagrad,
                       [](float *const *state, const float *grad, int64_t n,
                          float factor, const AdagradStep &now) {
                         simd().adagrad(state[0], state[1], grad, n, factor,
                                        now);
                       });
}

KernelResult createSquareSum(Request &request) {
  if (!request.counts(1, 1))
    return request.status();
  request.allF32();
  request.expect(request.outputs[0].elements() == 1, "expected one output");
  if (!request.ok())
    return request.status();
  const View &x = request.inputs[0];
  Nest outer(x.shape, {x.strides});
  outer.sortBy(0);
  Nest::Inner inner = outer.splitInner();
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const int64_t perRow = (inner.size + kPiece - 1) / kPiece;
    const int64_t pieces = outer.count() * perRow;
    std::vector<double> partial(static_cast<size_t>(pieces));
    pool.parallelFor(pieces, rowGrain(std::min(inner.size, kPiece)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t p = begin; p < end; ++p) {
                         // With 3 pieces a row, piece 7 is the second
                         // of the third row.
                         int64_t offset, first = p % perRow * kPiece;
                         outer.offsets(p / perRow, &offset);
                         int64_t n = std::min(kPiece, inner.size - first);
                         const float *x = f32(call.inputs[0]) + offset +
                                          first * inner.strides[0];
                         if (inner.strides[0] != 1) {
                           float *copy = scratch(ScratchSlot::Row0, n);
                           for (int64_t i = 0; i < n; ++i)
                             copy[i] = x[i * inner.strides[0]];
                           x = copy;
                         }
                         partial[p] = simd().squareSum(x, n);
                       }
                     });
    double total = 0;
    for (double part : partial)
      total += part;
    float &out = f32Out(call.outputs[0])[0];
    out = static_cast<float>(call.accumulate ? out + total : total);
    return Status();
  });
}

KernelResult createClipFactor(Request &request) {
  if (!request.counts(1, 2))
    return request.status();
  request.allF32();
  request.expect(request.inputs[0].rank() == 1, "expected a list of squares");
  for (const View &out : request.outputs)
    request.expect(out.elements() == 1, "expected one element an output");
  const double maxNorm = request.real("max_norm");
  if (!request.ok())
    return request.status();
  return makeKernel([maxNorm](const KernelCall &call, ThreadPool &) {
    const View &squares = call.inputs[0];
    double sum = 0;
    for (int64_t i = 0; i < squares.shape[0]; ++i)
      sum += f32(squares)[i * squares.strides[0]];
    double norm = std::sqrt(sum);
    f32Out(call.outputs[0])[0] = static_cast<float>(norm);
    const bool finite = std::isfinite(static_cast<float>(norm));
    f32Out(call.outputs[1])[0] =
        finite ? static_cast<float>(std::min(1.0, maxNorm / (norm + 1e-6)))
               : std::numeric_limits<float>::quiet_NaN();
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"sgd_update", createSgd, true, false, true},
    {"adamw_update", createAdamW, true, false, true},
    {"adagrad_update", createAdagrad, true, false, true},
    {"square_sum", createSquareSum, true, true, false},
    {"clip_factor", createClipFactor, true, false, false},
};

} // namespace

std::span<const KernelEntry> optimizerKernels() { return kEntries; }

} // namespace merak::cpu
