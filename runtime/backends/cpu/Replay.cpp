// sgd_replay, adamw_replay, adagrad_replay: the steps of an optimizer that rows
// of a table were left out of, whose gradients are zeros.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::cpu {

namespace {

struct Replay : ReplayRequest {
  size_t tensors = 1; // a table and its states
  planpb::DType idType = planpb::I64;
  Nest::Inner inner; // `columns` are the runs of a row, of so many elements

  bool dense() const {
    return inner.size == 1 ||
           std::all_of(inner.strides.begin(), inner.strides.end(),
                       [](int64_t s) { return s == 1; });
  }
};

bool read(Request &request, size_t tensors, Replay &r) {
  if (!readReplay(request, tensors, r))
    return false;
  r.tensors = tensors;
  if (r.named)
    r.idType = request.inputs[1].dtype;
  r.inner = r.columns.splitInner();
  return true;
}

struct LateRow {
  int64_t row;
  int32_t reached;
};

// The rows that are behind, once each; from here on they have reached the step.
std::vector<LateRow> takeLate(const Replay &r, const KernelCall &call) {
  std::vector<LateRow> late;
  const int64_t step = scalarInteger(call, 0), until = r.until(step);
  auto *reached = static_cast<int32_t *>(call.outputs[r.tensors].data);
  auto take = [&](int64_t row) {
    int32_t &at = reached[row * r.rowStrides[r.tensors]];
    if (at >= until)
      return;
    late.push_back({row, at});
    at = static_cast<int32_t>(until);
  };
  if (!r.named) {
    const int64_t begin = step % r.stripes * r.stripeRows();
    for (int64_t row = begin; row < std::min(r.rows, begin + r.stripeRows());
         ++row)
      take(row);
    return late;
  }
  const int64_t first = scalarInteger(call, 1);
  for (int64_t at = 0; at < r.ids.count(); ++at) {
    int64_t of[1];
    r.ids.offsets(at, of);
    int64_t id = indexAt(r.idType, call.inputs[1].data, of[0]);
    if (id < 0)
      id += r.globalRows;
    if (id >= first && id - first < r.rows)
      take(id - first);
  }
  return late;
}

// Steps that changed something, after the oldest of the rows.
template <typename Step> struct Steps {
  std::vector<Step> all;
  int64_t oldest = 0;
  std::vector<int64_t> behind; // by row's step, from the oldest: its first one

  const Step *from(int32_t reached) const {
    return all.data() + behind[static_cast<size_t>(reached - oldest)];
  }
  int64_t count(int32_t reached) const {
    return static_cast<int64_t>(all.size()) -
           behind[static_cast<size_t>(reached - oldest)];
  }
};

template <typename Step, typename Scalars>
Result<Steps<Step>> stepsOf(const Replay &r, const KernelCall &call,
                            const Scalars &scalars,
                            const std::vector<LateRow> &late) {
  const int64_t until = r.until(scalarInteger(call, 0));
  Steps<Step> steps;
  steps.oldest = std::min_element(late.begin(), late.end(),
                                  [](const LateRow &a, const LateRow &b) {
                                    return a.reached < b.reached;
                                  })
                     ->reached;
  if (until - steps.oldest > r.history.steps)
    return Status::error(fmt::format(
        "{}: a row is {} steps behind, expected at most {}",
        call.instruction->op(), until - steps.oldest, r.history.steps));
  const float *history = f32(call.inputs[0]);
  for (int64_t step = steps.oldest + 1; step <= until; ++step) {
    steps.behind.push_back(static_cast<int64_t>(steps.all.size()));
    float noted[kNoted];
    for (int64_t k = 0; k < kNoted; ++k)
      noted[k] = history[r.history.at(step) + k * r.history.numberStride];
    if (noted[0] != 0)
      steps.all.push_back(scalars.noted(noted));
  }
  steps.behind.push_back(static_cast<int64_t>(steps.all.size()));
  return steps;
}

// Calls step(pointers to the states, n, steps, their number) on contiguous
// elements; strided ones pass through copies.
template <typename Step, typename Take>
void replayRow(const Replay &r, const KernelCall &call, const LateRow &late,
               const Step *steps, int64_t count, const Take &take) {
  const int64_t n = r.inner.size;
  for (int64_t run = 0; run < r.columns.count(); ++run) {
    int64_t offsets[3];
    r.columns.offsets(run, offsets);
    float *state[3] = {nullptr, nullptr, nullptr};
    for (size_t i = 0; i < r.tensors; ++i)
      state[i] =
          f32Out(call.outputs[i]) + late.row * r.rowStrides[i] + offsets[i];
    if (r.dense()) {
      take(state, n, steps, count);
      continue;
    }
    constexpr ScratchSlot kSlots[] = {ScratchSlot::Row1, ScratchSlot::Row2,
                                      ScratchSlot::Row3};
    float *copy[3] = {nullptr, nullptr, nullptr};
    for (size_t i = 0; i < r.tensors; ++i) {
      copy[i] = scratch(kSlots[i], n);
      for (int64_t j = 0; j < n; ++j)
        copy[i][j] = state[i][j * r.inner.strides[i]];
    }
    take(copy, n, steps, count);
    for (size_t i = 0; i < r.tensors; ++i)
      for (int64_t j = 0; j < n; ++j)
        state[i][j * r.inner.strides[i]] = copy[i][j];
  }
}

template <typename Step, typename Scalars, typename Finish, typename Take>
KernelResult makeReplay(const Replay &r, const Scalars &scalars,
                        const Finish &finish, const Take &take) {
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const std::vector<LateRow> late = takeLate(r, call);
    if (late.empty())
      return Status();
    auto steps = stepsOf<Step>(r, call, scalars, late);
    if (!steps)
      return steps.status();
    finish(steps->all);
    pool.parallelFor(
        static_cast<int64_t>(late.size()), 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const LateRow &row = late[static_cast<size_t>(i)];
            if (int64_t n = steps->count(row.reached); n > 0)
              replayRow(r, call, row, steps->from(row.reached), n, take);
          }
        });
    return Status();
  });
}

// Of a step without a gradient.
const float *zeros(int64_t n) {
  float *values = scratch(ScratchSlot::Row0, n);
  std::fill(values, values + n, 0.0f);
  return values;
}

KernelResult createSgd(Request &request) {
  SgdRequest sgd;
  Replay r;
  if (!readSgd(request, sgd) || !read(request, sgd.momentum != 0 ? 2 : 1, r))
    return request.status();
  return makeReplay<SgdStep>(
      r, sgd, [](std::vector<SgdStep> &) {},
      [](float *const *state, int64_t n, const SgdStep *steps, int64_t count) {
        const float *grad = zeros(n);
        for (int64_t s = 0; s < count; ++s)
          simd().sgd(state[0], state[1], grad, n, 1, steps[s]);
      });
}

// What the noted step of Adam is, with bounds yet to be found.
struct AdamNotes : AdamRequest {
  AdamWReplayStep noted(const float *history) const {
    return {.step = AdamRequest::noted(history)};
  }
};

KernelResult createAdamW(Request &request) {
  AdamNotes adam;
  Replay r;
  if (!readAdam(request, adam) || !read(request, 3, r))
    return request.status();
  return makeReplay<AdamWReplayStep>(
      r, adam, boundSteps,
      [](float *const *state, int64_t n, const AdamWReplayStep *steps,
         int64_t count) {
        simd().adamWReplay(state[0], state[1], state[2], n, steps, count);
      });
}

KernelResult createAdagrad(Request &request) {
  AdagradRequest adagrad;
  Replay r;
  if (!readAdagrad(request, adagrad) || !read(request, 2, r))
    return request.status();
  return makeReplay<AdagradStep>(
      r, adagrad, [](std::vector<AdagradStep> &) {},
      [](float *const *state, int64_t n, const AdagradStep *steps,
         int64_t count) {
        const float *grad = zeros(n);
        for (int64_t s = 0; s < count; ++s)
          simd().adagrad(state[0], state[1], grad, n, 1, steps[s]);
      });
}

constexpr KernelEntry kEntries[] = {
    {"sgd_replay", createSgd, true, false, true},
    {"adamw_replay", createAdamW, true, false, true},
    {"adagrad_replay", createAdagrad, true, false, true},
};

} // namespace

std::span<const KernelEntry> replayKernels() { return kEntries; }

} // namespace merak::cpu
