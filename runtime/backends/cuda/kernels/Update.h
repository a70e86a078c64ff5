// Optimizer steps, in f32, as torch.optim or ONNX's operators compute them.
#pragma once

#include "runtime/backends/cuda/kernels/Joined.h"
#include "runtime/backends/cuda/kernels/Loops.h"
#include "runtime/backends/cuda/kernels/Pack.h"

namespace merak::cuda {

enum class UpdateKind : int { AdamW, Sgd, Adagrad };

// What an optimizer computes once a step.
struct UpdateNumbers {
  bool hasBuffer = false, nesterov = false, firstStep = false;
  float lr = 0, momentum = 0, oneMinusDampening = 1, weightDecay = 0;
  float l2 = 0;    // Adam, Adagrad: times the parameter, added to the gradient
  float decay = 1; // AdamW: 1 - lr * weight decay
  float beta1 = 0, beta2 = 0, oneMinusBeta1 = 0, oneMinusBeta2 = 0;
  float stepSize = 0;       // lr / (1 - beta1^t)
  float rootCorrection = 1; // sqrt(1 - beta2^t)
  float eps = 0;
  float keep = 1; // a factor on Adam's new parameter
};

// Operands of `loops`: gradient, parameter, first and second state. Of a
// row-sparse gradient [ids, columns] those are the columns of a row.
struct UpdateArgs : UpdateNumbers {
  Ref grad, factor, param, first, second;
  Ref copy; // the parameter in 16 bits, which lies as it does; null: none
  Loops<4> loops;
  Ref ids; // with `sparse`
  bool sparse = false;
  Loops<2> places; // operand 0: ids, 1: the gradient
  int64_t rows = 0, firstRow = 0;
  int64_t rowStrides[3] = {0, 0, 0}; // of parameter and states
  bool clip = false;

  MERAK_HD int64_t count() const {
    return sparse ? places.count * loops.count : loops.count;
  }
  // Where the operands of an element lie. False: the id names no row of these.
  MERAK_HD bool at(int64_t element, int64_t (&o)[4]) const {
    if (!sparse) {
      loops.at(element, o);
      return true;
    }
    int64_t place[2];
    places.at(element / loops.count, place);
    const int64_t id = load<int64_t>(ids, place[0]), row = id - firstRow;
    if (id < 0 || row < 0 || row >= rows)
      return false;
    loops.at(element % loops.count, o);
    o[0] += place[1];
    for (int i = 0; i < 3; ++i)
      o[i + 1] += row * rowStrides[i];
    return true;
  }
};

// One element of each tensor, in registers.
struct UpdateElement {
  float p = 0, first = 0, second = 0;
};

MERAK_HD void adamWStep(const UpdateNumbers &a, float gradient,
                        UpdateElement &e) {
  const float g = gradient + a.l2 * e.p;
  e.first = e.first * a.beta1 + g * a.oneMinusBeta1;
  e.second = e.second * a.beta2 + g * g * a.oneMinusBeta2;
  const float denominator = sqrtf(e.second) / a.rootCorrection + a.eps;
  e.p = (e.p * a.decay - a.stepSize * (e.first / denominator)) * a.keep;
}

MERAK_HD void adagradStep(const UpdateNumbers &a, float gradient,
                          UpdateElement &e) {
  const float g = gradient + a.l2 * e.p;
  e.first = e.first + g * g;
  e.p = e.p - a.lr * (g / (sqrtf(e.first) + a.eps));
}

MERAK_HD void sgdStep(const UpdateNumbers &a, float gradient,
                      UpdateElement &e) {
  float g = gradient + a.weightDecay * e.p;
  if (a.hasBuffer) {
    e.first = a.firstStep ? g : e.first * a.momentum + a.oneMinusDampening * g;
    g = a.nesterov ? g + a.momentum * e.first : e.first;
  }
  e.p = e.p - a.lr * g;
}

template <UpdateKind kind>
MERAK_HD void updateStep(const UpdateNumbers &a, float gradient,
                         UpdateElement &e) {
  if constexpr (kind == UpdateKind::AdamW)
    adamWStep(a, gradient, e);
  else if constexpr (kind == UpdateKind::Sgd)
    sgdStep(a, gradient, e);
  else
    adagradStep(a, gradient, e);
}
// Which states there are beside the parameter.
template <UpdateKind kind> MERAK_HD bool hasFirst(const UpdateNumbers &a) {
  return kind != UpdateKind::Sgd || a.hasBuffer;
}
template <UpdateKind kind>
constexpr bool kHasSecond = kind == UpdateKind::AdamW;

// One tensor as it lies, or rows of one.
template <UpdateKind kind, typename Block>
MERAK_HD void updateBody(const Block &block, const UpdateArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  if (factor != factor) // the gradients are not finite: nothing may change
    return;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.count(); i += step) {
    int64_t o[4];
    if (!a.at(i, o))
      continue;
    UpdateElement e{load<float>(a.param, o[1]),
                    hasFirst<kind>(a) ? load<float>(a.first, o[2]) : 0,
                    kHasSecond<kind> ? load<float>(a.second, o[3]) : 0};
    updateStep<kind>(a, load<float>(a.grad, o[0]) * factor, e);
    if (hasFirst<kind>(a))
      store<float>(a.first, o[2], e.first, false);
    if (kHasSecond<kind>)
      store<float>(a.second, o[3], e.second, false);
    store<float>(a.param, o[1], e.p, false);
    if (a.copy.data)
      store<float>(a.copy, o[1], e.p, false);
  }
}

template <typename Block>
MERAK_HD void adamWBody(const Block &block, const UpdateArgs &a) {
  updateBody<UpdateKind::AdamW>(block, a);
}
template <typename Block>
MERAK_HD void adagradBody(const Block &block, const UpdateArgs &a) {
  updateBody<UpdateKind::Adagrad>(block, a);
}
template <typename Block>
MERAK_HD void sgdBody(const Block &block, const UpdateArgs &a) {
  updateBody<UpdateKind::Sgd>(block, a);
}

// Dense tensors of one optimizer: 16 bytes of each operand at once.
struct UpdatePart {
  const char *grad = nullptr;
  float *param = nullptr, *first = nullptr, *second = nullptr;
  uint16_t *copy = nullptr; // null: none
  int64_t count = 0;        // elements
  int32_t chunk = 0;
};
struct JoinedUpdateArgs : UpdateNumbers {
  Joined<UpdatePart, 64, 4096> tensors;
  Ref factor;
  Type gradType = Type::F32;
  Type copyType = Type::F32; // of all copies; F32: there is none
  bool clip = false;
};
static_assert(sizeof(JoinedUpdateArgs) <= kMostArgBytes);

MERAK_HD uint16_t narrowTo(Type type, float x) {
  return type == Type::F16 ? AsF16::narrow(x) : AsBf16::narrow(x);
}

template <UpdateKind kind, typename As, typename Block>
MERAK_HD void updateChunk(const Block &block, const JoinedUpdateArgs &a,
                          float factor, const UpdatePart &part, int64_t begin,
                          int64_t end) {
  using Word = typename As::Word;
  constexpr int kSize = Pack<float>::kSize, kPacks = 2;
  const bool withFirst = hasFirst<kind>(a);
  const Word *grad = reinterpret_cast<const Word *>(part.grad);
  const int64_t step = int64_t(block.threads()) * kSize;
  int64_t i = begin + int64_t(block.thread()) * kSize;
  for (; i + kSize <= end; i += kPacks * step) {
    Pack<Word, kSize> g[kPacks];
    Pack<float> p[kPacks], first[kPacks], second[kPacks];
    MERAK_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      const int64_t at = i + u * step;
      if (at + kSize > end)
        continue;
      g[u] = loadPack<kSize>(grad + at);
      p[u] = loadPack<kSize>(part.param + at);
      if (withFirst)
        first[u] = loadPack<kSize>(part.first + at);
      if (kHasSecond<kind>)
        second[u] = loadPack<kSize>(part.second + at);
    }
    MERAK_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      const int64_t at = i + u * step;
      if (at + kSize > end)
        continue;
      MERAK_UNROLL
      for (int k = 0; k < kSize; ++k) {
        UpdateElement e{p[u].words[k], withFirst ? first[u].words[k] : 0,
                        kHasSecond<kind> ? second[u].words[k] : 0};
        updateStep<kind>(a, As::widen(g[u].words[k]) * factor, e);
        p[u].words[k] = e.p;
        first[u].words[k] = e.first;
        second[u].words[k] = e.second;
      }
      if (withFirst)
        storePack(part.first + at, first[u]);
      if (kHasSecond<kind>)
        storePack(part.second + at, second[u]);
      storePack(part.param + at, p[u]);
      if (part.copy) {
        Pack<uint16_t, kSize> narrow;
        MERAK_UNROLL
        for (int k = 0; k < kSize; ++k)
          narrow.words[k] = narrowTo(a.copyType, p[u].words[k]);
        storePack(part.copy + at, narrow);
      }
    }
  }
  // What is left of the tensor behind its last pack.
  for (i = begin + (end - begin) / kSize * kSize + block.thread(); i < end;
       i += block.threads()) {
    UpdateElement e{part.param[i], withFirst ? part.first[i] : 0,
                    kHasSecond<kind> ? part.second[i] : 0};
    updateStep<kind>(a, As::widen(grad[i]) * factor, e);
    if (withFirst)
      part.first[i] = e.first;
    if (kHasSecond<kind>)
      part.second[i] = e.second;
    part.param[i] = e.p;
    if (part.copy)
      part.copy[i] = narrowTo(a.copyType, e.p);
  }
}

template <UpdateKind kind, typename Block>
MERAK_HD void joinedUpdateBody(const Block &block, const JoinedUpdateArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  if (factor != factor) // the gradients are not finite: nothing may change
    return;
  forEachChunk(
      block, a.tensors,
      [&](const UpdatePart &part, int32_t, int64_t begin, int64_t end) {
        withReal(a.gradType, [&](auto as) {
          updateChunk<kind, decltype(as)>(block, a, factor, part, begin, end);
        });
      });
}

template <typename Block>
MERAK_HD void joinedAdamWBody(const Block &block, const JoinedUpdateArgs &a) {
  joinedUpdateBody<UpdateKind::AdamW>(block, a);
}
template <typename Block>
MERAK_HD void joinedAdagradBody(const Block &block, const JoinedUpdateArgs &a) {
  joinedUpdateBody<UpdateKind::Adagrad>(block, a);
}
template <typename Block>
MERAK_HD void joinedSgdBody(const Block &block, const JoinedUpdateArgs &a) {
  joinedUpdateBody<UpdateKind::Sgd>(block, a);
}

// ---------------------------------------------------------------- exact rows
//
// Rows of a table that an update leaves out take its step later, with a
// gradient of zero. A history is a ring of four numbers a step: whether it
// changed anything and what the optimizer computes once a step.
constexpr int kNotedNumbers = 4;

// Behind an update of rows: it is noted, and its rows have reached the step. Of
// a step that changed nothing that is all there is to know.
struct ReachArgs {
  Ref factor, ids;
  Loops<2> places; // as of UpdateArgs
  int64_t rows = 0, firstRow = 0;
  bool clip = false;
  int32_t *reached = nullptr;
  int64_t rowStride = 1;  // of reached
  float *noted = nullptr; // of this step
  int64_t numberStride = 1;
  int32_t step = 0;
  float numbers[kNotedNumbers] = {1, 0, 0, 0};
};

template <typename Block>
MERAK_HD void reachBody(const Block &block, const ReachArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  const bool changes = factor == factor;
  const int64_t step = itemStep(block), begin = firstItem(block);
  if (begin == 0)
    for (int k = 0; k < kNotedNumbers; ++k)
      a.noted[k * a.numberStride] = k == 0 && !changes ? 0 : a.numbers[k];
  for (int64_t i = begin; changes && i < a.places.count; i += step) {
    int64_t place[2];
    a.places.at(i, place);
    const int64_t id = load<int64_t>(a.ids, place[0]), row = id - a.firstRow;
    if (id >= 0 && row >= 0 && row < a.rows)
      a.reached[row * a.rowStride] = a.step;
  }
}

enum class ReplayPhase : int { Look, Claim, Reach };

// By names: an id may be there several times. Each place looks how far its row
// is, then writes its own number there; whose number stays takes the steps, and
// at last the row has reached the step. Of stripes each row is there once.
struct ReplayArgs {
  UpdateArgs update; // constants, param, first, second
  Ref ids;
  Loops<1> places;
  Loops<4> columns; // operands 1 to 3, as of UpdateArgs
  bool named = false;
  int64_t rows = 0, firstRow = 0, globalRows = 0;
  int64_t begin = 0, count = 0; // places, or rows of the stripe
  int32_t *reached = nullptr;
  int64_t rowStride = 1;     // of reached
  int32_t *before = nullptr; // by place; -1: not behind
  const float *history = nullptr;
  int64_t steps = 1, stepStride = 0, numberStride = 1; // of the history
  int32_t until = 0;
  ReplayPhase phase = ReplayPhase::Look;

  // -1: there is no such row here.
  MERAK_HD int64_t rowOf(int64_t place) const {
    if (!named)
      return begin + place < rows ? begin + place : -1;
    int64_t id = load<int64_t>(ids, places.at(place));
    if (id < 0)
      id += globalRows;
    const int64_t row = id - firstRow;
    return id >= 0 && row >= 0 && row < rows ? row : -1;
  }
  // How far the row of a place was if its steps are to be taken there; else -1.
  MERAK_HD int32_t late(int64_t place, int64_t row) const {
    if (row < 0)
      return -1;
    if (!named)
      return reached[row] < until ? reached[row] : -1;
    return before[place] >= 0 &&
                   reached[row] == -1 - static_cast<int32_t>(place)
               ? before[place]
               : -1;
  }
};

template <typename Block>
MERAK_HD void replayMarkBody(const Block &block, const ReplayArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.count; i += step) {
    const int64_t row = a.rowOf(i);
    switch (a.phase) {
    case ReplayPhase::Look:
      a.before[i] = row >= 0 && a.reached[row * a.rowStride] < a.until
                        ? a.reached[row * a.rowStride]
                        : -1;
      break;
    case ReplayPhase::Claim:
      if (a.before[i] >= 0)
        a.reached[row * a.rowStride] = -1 - static_cast<int32_t>(i);
      break;
    case ReplayPhase::Reach:
      if (row >= 0 && (!a.named || a.before[i] >= 0))
        a.reached[row * a.rowStride] = a.until;
      break;
    }
  }
}

template <UpdateKind kind, typename Block>
MERAK_HD void replayBody(const Block &block, const ReplayArgs &a) {
  const int64_t step = itemStep(block), items = a.count * a.columns.count;
  for (int64_t i = firstItem(block); i < items; i += step) {
    const int64_t place = i / a.columns.count, row = a.rowOf(place);
    const int32_t from = a.late(place, row);
    if (from < 0)
      continue;
    int64_t o[4];
    a.columns.at(i % a.columns.count, o);
    UpdateArgs now = a.update;
    const bool withFirst = hasFirst<kind>(now);
    for (int k = 0; k < 3; ++k)
      o[k + 1] += row * now.rowStrides[k];
    UpdateElement e{load<float>(now.param, o[1]),
                    withFirst ? load<float>(now.first, o[2]) : 0,
                    kHasSecond<kind> ? load<float>(now.second, o[3]) : 0};
    for (int64_t s = int64_t(from) + 1; s <= a.until; ++s) {
      const float *at = a.history + s % a.steps * a.stepStride;
      const float noted[kNotedNumbers] = {at[0], at[a.numberStride],
                                          at[2 * a.numberStride],
                                          at[3 * a.numberStride]};
      if (noted[0] == 0)
        continue;
      if constexpr (kind == UpdateKind::AdamW) {
        now.decay = noted[1];
        now.stepSize = noted[2];
        now.rootCorrection = noted[3];
        adamWStep(now, 0, e);
      } else if constexpr (kind == UpdateKind::Sgd) {
        now.lr = noted[1];
        now.oneMinusDampening = noted[2];
        now.firstStep = noted[3] != 0;
        sgdStep(now, 0, e);
      } else {
        now.lr = noted[1];
        adagradStep(now, 0, e);
      }
    }
    if (kHasSecond<kind>)
      store<float>(now.second, o[3], e.second, false);
    if (withFirst)
      store<float>(now.first, o[2], e.first, false);
    store<float>(now.param, o[1], e.p, false);
  }
}

template <typename Block>
MERAK_HD void replayAdamWBody(const Block &block, const ReplayArgs &a) {
  replayBody<UpdateKind::AdamW>(block, a);
}
template <typename Block>
MERAK_HD void replaySgdBody(const Block &block, const ReplayArgs &a) {
  replayBody<UpdateKind::Sgd>(block, a);
}
template <typename Block>
MERAK_HD void replayAdagradBody(const Block &block, const ReplayArgs &a) {
  replayBody<UpdateKind::Adagrad>(block, a);
}

struct ClipArgs {
  Ref squares, norm, factor;
  int64_t count = 0, step = 1;
  double maxNorm = 0;
  double scale = 1; // of the loss
  bool add = false;
};

template <typename Block>
MERAK_HD void clipFactorBody(const Block &block, const ClipArgs &a) {
  if (block.block() != 0 || block.thread() != 0)
    return;
  double sum = 0;
  for (int64_t i = 0; i < a.count; ++i)
    sum += load<double>(a.squares, i * a.step);
  const double norm = sqrt(sum) / a.scale, factor = a.maxNorm / (norm + 1e-6);
  // Also a norm that no f32 holds makes the factor NaN: the step is skipped.
  const bool finite = fabsf(static_cast<float>(norm)) < INFINITY;
  store<double>(a.norm, 0, norm, a.add);
  store<double>(a.factor, 0,
                !finite ? NAN : (factor < 1 ? factor : 1.0) / a.scale, a.add);
}

struct ScaleArgs {
  Ref x, y;
  Loops<2> loops; // row-major position to x and y
  float factor = 1;
  bool add = false;
};

template <typename Block>
MERAK_HD void scaleBody(const Block &block, const ScaleArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[2];
    a.loops.at(i, o);
    store<float>(a.y, o[1], load<float>(a.x, o[0]) * a.factor, a.add);
  }
}

} // namespace merak::cuda
