// sgd_update, adamw_update, adagrad_update, the same with _rows, square_sum,
// clip_factor, scale.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/Types.h"
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
  // Operand 0: the gradient, then parameter and states. Of a row-sparse
  // gradient [ids, columns] those are the columns of a row.
  Nest outer;
  Nest::Inner inner;
  size_t states = 0; // outputs
  bool clip = false;
  // One output more of a dense update: the parameter in 16 bits, which lies as
  // the parameter does.
  planpb::DType copy = planpb::DTYPE_INVALID;

  bool sparse = false;
  bool reaches = false; // notes how far rows are
  ReachedRequest reached;
  planpb::DType idType = planpb::I64;
  RowsRequest rows;

  size_t inputs() const { return size_t{1} + clip + sparse; }
  size_t outputs() const { return states + 2 * reaches + hasCopy(); }
  bool hasCopy() const { return copy != planpb::DTYPE_INVALID; }
  bool dense() const {
    return inner.size == 1 ||
           std::all_of(inner.strides.begin(), inner.strides.end(),
                       [](int64_t s) { return s == 1; });
  }
};

// Before the operands are counted.
void findCopy(const Request &request, Update &u) {
  if (!u.sparse && request.outputs.size() == u.states + 1)
    u.copy = request.outputs.back().dtype;
}

bool readAll(Request &request, Update &u) {
  request.type(request.inputs[0], "the gradient", planpb::F32);
  const View &grad = request.inputs[0];
  std::vector<std::vector<int64_t>> strides = {grad.strides};
  for (const View &state : request.outputs.first(u.states)) {
    request.type(state, "a parameter or its state", planpb::F32);
    request.sameShape(grad, "the gradient", state, "a parameter or its state");
    strides.push_back(state.strides);
  }
  if (u.hasCopy())
    expectCopy(request, u.states);
  if (!request.ok())
    return false;
  u.outer = Nest(grad.shape, strides);
  return true;
}

bool readUpdate(Request &request, Update &u) {
  if (u.clip) {
    request.type(request.inputs[1], "the clip factor", planpb::F32);
    request.expect(request.inputs[1].elements() == 1,
                   "expected one clip factor");
  }
  if (u.sparse) {
    request.type(request.inputs[0], "the gradient", planpb::F32);
    if (!readUpdateRows(request, u.clip, u.states, u.rows) ||
        (u.reaches && !readReached(request, u.states, u.reached)))
      return false;
    u.idType = request.inputs[1 + u.clip].dtype;
    u.outer = u.rows.columns;
  } else if (!readAll(request, u)) {
    return false;
  }
  u.inner = u.outer.splitInner();
  return true;
}

// Calls step(pointers to the states, gradient, n) on contiguous elements;
// strided ones pass through copies.
template <typename Step>
void stepOn(const Update &u, float *const *state, const float *grad, int64_t n,
            const Step &step) {
  if (u.dense())
    return step(state, grad, n);
  constexpr ScratchSlot kSlots[] = {ScratchSlot::Row1, ScratchSlot::Row2,
                                    ScratchSlot::Row3};
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
}

// Of the rows that are named, each by one id; those of negative ids and of
// other ranks are left out.
template <typename Step>
void runRows(const Update &u, const KernelCall &call, ThreadPool &pool,
             const Step &step) {
  const int64_t first = scalarInteger(call, 2), runs = u.outer.count();
  const void *ids = call.inputs[1 + u.clip].data;
  pool.parallelFor(
      u.rows.ids.count(), rowGrain(runs * u.inner.size),
      [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
          int64_t of[2], offsets[4];
          u.rows.ids.offsets(at, of);
          const int64_t id = indexAt(u.idType, ids, of[0]), row = id - first;
          if (id < 0 || row < 0 || row >= u.rows.rows)
            continue;
          for (int64_t run = 0; run < runs; ++run) {
            u.outer.offsets(run, offsets);
            float *state[3] = {nullptr, nullptr, nullptr};
            for (size_t i = 0; i < u.states; ++i)
              state[i] = f32Out(call.outputs[i]) + row * u.rows.rowStrides[i] +
                         offsets[i + 1];
            stepOn(u, state, f32(call.inputs[0]) + of[1] + offsets[0],
                   u.inner.size, step);
          }
        }
      });
}

// Of the elements that a step was just taken on.
void roundOn(const Update &u, const KernelCall &call, const float *param,
             int64_t offset, int64_t n) {
  const int64_t stride = u.inner.strides[1];
  auto *to = static_cast<uint16_t *>(call.outputs[u.states].data) + offset;
  const bool isF16 = u.copy == planpb::F16;
  if (stride == 1)
    return simd().narrow(to, param, n, isF16);
  for (int64_t j = 0; j < n; ++j)
    simd().narrow(to + j * stride, param + j * stride, 1, isF16);
}

template <typename Step>
void runUpdate(const Update &u, const KernelCall &call, ThreadPool &pool,
               const Step &step) {
  if (u.sparse)
    return runRows(u, call, pool, step);
  forRowPieces(pool, u.outer, u.inner.size, kGrain,
               [&](const int64_t *offsets, int64_t column, int64_t n) {
                 float *state[3] = {nullptr, nullptr, nullptr};
                 for (size_t i = 0; i < u.states; ++i)
                   state[i] = f32Out(call.outputs[i]) + offsets[i + 1] +
                              column * u.inner.strides[i + 1];
                 stepOn(u, state,
                        f32(call.inputs[0]) + offsets[0] +
                            column * u.inner.strides[0],
                        n, step);
                 if (u.hasCopy())
                   roundOn(u, call, state[0],
                           offsets[1] + column * u.inner.strides[1], n);
               });
}

// After the step: rows that it was taken on have reached it, and those that
// were left out will find it in the history. Of a step that changed nothing
// that is all there is to know.
template <typename Now>
void noteStep(const Update &u, const KernelCall &call, float factor,
              const Now &now) {
  if (!u.reaches)
    return;
  const int64_t step = call.scalars[1].asInteger();
  const HistoryRequest &history = u.reached.steps;
  float numbers[kNoted] = {std::isnan(factor) ? 0.0f : 1.0f};
  note(now, numbers);
  for (int64_t k = 0; k < kNoted; ++k)
    f32Out(call.outputs[u.reached.history])[history.at(step) +
                                            k * history.numberStride] =
        numbers[k];
  if (std::isnan(factor))
    return;
  const int64_t first = scalarInteger(call, 2);
  auto *reached = static_cast<int32_t *>(call.outputs[u.reached.reached].data);
  const void *ids = call.inputs[1 + u.clip].data;
  for (int64_t at = 0; at < u.rows.ids.count(); ++at) {
    int64_t of[2];
    u.rows.ids.offsets(at, of);
    const int64_t id = indexAt(u.idType, ids, of[0]), row = id - first;
    if (id >= 0 && row >= 0 && row < u.rows.rows)
      reached[row * u.reached.rowStride] = static_cast<int32_t>(step);
  }
}

// NaN: the gradients are not finite, and nothing may change.
float clipFactor(const Update &u, const KernelCall &call) {
  return u.clip ? f32(call.inputs[1])[0] : 1;
}

template <bool sparse> KernelResult createSgd(Request &request) {
  Update u;
  u.sparse = sparse;
  u.clip = request.integer("clip", 0) != 0;
  SgdRequest sgd;
  if (!readSgd(request, sgd))
    return request.status();
  u.states = sgd.momentum != 0 ? 2 : 1;
  u.reaches = sparse && request.integer("reaches", 0) != 0;
  findCopy(request, u);
  // The buffer may also be listed as an input: it is the same view.
  const size_t inputs = u.inputs();
  if (request.inputs.size() != inputs + 1 || sgd.momentum == 0)
    request.counts(inputs, u.outputs());
  else
    request.counts(inputs + 1, u.outputs());
  if (!request.ok() || !readUpdate(request, u))
    return request.status();
  return makeKernel([u, sgd](const KernelCall &call, ThreadPool &pool) {
    if (call.scalars.size() < 2)
      return Status::error("sgd_update: expected the scalars lr and step");
    const SgdStep now =
        sgd.at(call.scalars[0].asDouble(), call.scalars[1].asInteger());
    const float factor = clipFactor(u, call);
    noteStep(u, call, factor, now);
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
KernelResult makeUpdate(Request &request, bool sparse, const Scalars &scalars,
                        const Step &step) {
  Update u;
  u.sparse = sparse;
  u.clip = request.integer("clip", 0) != 0;
  u.reaches = sparse && request.integer("reaches", 0) != 0;
  u.states = states;
  findCopy(request, u);
  if (!request.counts(u.inputs(), u.outputs()) || !readUpdate(request, u) ||
      !request.ok())
    return request.status();
  return makeKernel(
      [u, scalars, step](const KernelCall &call, ThreadPool &pool) {
        if (call.scalars.size() < 2)
          return Status::error("an update: expected the scalars lr and step");
        const auto now =
            scalars.at(call.scalars[0].asDouble(), call.scalars[1].asInteger());
        const float factor = clipFactor(u, call);
        noteStep(u, call, factor, now);
        if (std::isnan(factor))
          return Status();
        runUpdate(u, call, pool,
                  [&](float *const *state, const float *grad, int64_t n) {
                    step(state, grad, n, factor, now);
                  });
        return Status();
      });
}

template <bool sparse> KernelResult createAdamW(Request &request) {
  AdamRequest adam;
  if (!readAdam(request, adam))
    return request.status();
  return makeUpdate<3>(request, sparse, adam,
                       [](float *const *state, const float *grad, int64_t n,
                          float factor, const AdamWStep &now) {
                         simd().adamW(state[0], state[1], state[2], grad, n,
                                      factor, now);
                       });
}

template <bool sparse> KernelResult createAdagrad(Request &request) {
  AdagradRequest adagrad;
  if (!readAdagrad(request, adagrad))
    return request.status();
  return makeUpdate<2>(request, sparse, adagrad,
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
    const double scale = call.scalars.empty() ? 1 : call.scalars[0].asDouble();
    double norm = std::sqrt(sum) / scale;
    f32Out(call.outputs[0])[0] = static_cast<float>(norm);
    const bool finite = std::isfinite(static_cast<float>(norm));
    f32Out(call.outputs[1])[0] =
        finite
            ? static_cast<float>(std::min(1.0, maxNorm / (norm + 1e-6)) / scale)
            : std::numeric_limits<float>::quiet_NaN();
    return Status();
  });
}

KernelResult createScale(Request &request) {
  if (!request.counts(1, 1))
    return request.status();
  request.allF32();
  request.expect(request.inputs[0].shape == request.outputs[0].shape,
                 "expected an output of the input's shape");
  if (!request.ok())
    return request.status();
  return makeKernel([](const KernelCall &call, ThreadPool &pool) {
    if (call.scalars.empty())
      return Status::error("scale: expected 1 scalar, found 0");
    const auto factor = static_cast<float>(call.scalars[0].asDouble());
    const float *x = f32(call.inputs[0]);
    float *y = f32Out(call.outputs[0]);
    pool.parallelFor(call.inputs[0].elements(), rowGrain(1),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i)
                         y[i] = x[i] * factor;
                     });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"sgd_update", createSgd<false>, true, false, true},
    {"adamw_update", createAdamW<false>, true, false, true},
    {"adagrad_update", createAdagrad<false>, true, false, true},
    {"sgd_update_rows", createSgd<true>, true, false, true},
    {"adamw_update_rows", createAdamW<true>, true, false, true},
    {"adagrad_update_rows", createAdagrad<true>, true, false, true},
    {"square_sum", createSquareSum, true, true, false},
    {"clip_factor", createClipFactor, true, false, false},
    {"scale", createScale, false, false, false},
};

} // namespace

std::span<const KernelEntry> optimizerKernels() { return kEntries; }

} // namespace merak::cpu
