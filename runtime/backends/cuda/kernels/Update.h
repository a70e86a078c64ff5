// Optimizer steps, in f32, as torch.optim or ONNX's operators compute them.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

namespace merak::cuda {

// Operands of `loops`: gradient, parameter, first and second state. Of a
// row-sparse gradient [ids, columns] those are the columns of a row.
struct UpdateArgs {
  Ref grad, factor, param, first, second;
  Loops<4> loops;
  Ref ids; // with `sparse`
  bool sparse = false;
  Loops<2> places; // operand 0: ids, 1: the gradient
  int64_t rows = 0, firstRow = 0;
  int64_t rowStrides[3] = {0, 0, 0}; // of parameter and states
  bool clip = false, hasBuffer = false, nesterov = false, firstStep = false;
  float lr = 0, momentum = 0, oneMinusDampening = 1, weightDecay = 0;
  float l2 = 0;    // Adam, Adagrad: times the parameter, added to the gradient
  float decay = 1; // AdamW: 1 - lr * weight decay
  float beta1 = 0, beta2 = 0, oneMinusBeta1 = 0, oneMinusBeta2 = 0;
  float stepSize = 0;       // lr / (1 - beta1^t)
  float rootCorrection = 1; // sqrt(1 - beta2^t)
  float eps = 0;
  float keep = 1; // a factor on Adam's new parameter

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

template <typename Block>
MERAK_HD void adamWBody(const Block &block, const UpdateArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  if (factor != factor) // the gradients are not finite: nothing may change
    return;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.count(); i += step) {
    int64_t o[4];
    if (!a.at(i, o))
      continue;
    const float p = load<float>(a.param, o[1]);
    const float g = load<float>(a.grad, o[0]) * factor + a.l2 * p;
    const float m = load<float>(a.first, o[2]) * a.beta1 + g * a.oneMinusBeta1;
    const float v =
        load<float>(a.second, o[3]) * a.beta2 + g * g * a.oneMinusBeta2;
    store<float>(a.first, o[2], m, false);
    store<float>(a.second, o[3], v, false);
    const float denominator = sqrtf(v) / a.rootCorrection + a.eps;
    store<float>(a.param, o[1],
                 (p * a.decay - a.stepSize * (m / denominator)) * a.keep,
                 false);
  }
}

template <typename Block>
MERAK_HD void adagradBody(const Block &block, const UpdateArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  if (factor != factor) // the gradients are not finite: nothing may change
    return;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.count(); i += step) {
    int64_t o[4];
    if (!a.at(i, o))
      continue;
    const float p = load<float>(a.param, o[1]);
    const float g = load<float>(a.grad, o[0]) * factor + a.l2 * p;
    const float sum = load<float>(a.first, o[2]) + g * g;
    store<float>(a.first, o[2], sum, false);
    store<float>(a.param, o[1], p - a.lr * (g / (sqrtf(sum) + a.eps)), false);
  }
}

template <typename Block>
MERAK_HD void sgdBody(const Block &block, const UpdateArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  if (factor != factor) // the gradients are not finite: nothing may change
    return;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.count(); i += step) {
    int64_t o[4];
    if (!a.at(i, o))
      continue;
    const float p = load<float>(a.param, o[1]);
    float g = load<float>(a.grad, o[0]) * factor + a.weightDecay * p;
    if (a.hasBuffer) {
      const float buffer = a.firstStep
                               ? g
                               : load<float>(a.first, o[2]) * a.momentum +
                                     a.oneMinusDampening * g;
      store<float>(a.first, o[2], buffer, false);
      g = a.nesterov ? g + a.momentum * buffer : buffer;
    }
    store<float>(a.param, o[1], p - a.lr * g, false);
  }
}

struct ClipArgs {
  Ref squares, norm, factor;
  int64_t count = 0, step = 1;
  double maxNorm = 0;
  bool add = false;
};

template <typename Block>
MERAK_HD void clipFactorBody(const Block &block, const ClipArgs &a) {
  if (block.block() != 0 || block.thread() != 0)
    return;
  double sum = 0;
  for (int64_t i = 0; i < a.count; ++i)
    sum += load<double>(a.squares, i * a.step);
  const double norm = sqrt(sum), factor = a.maxNorm / (norm + 1e-6);
  // Also a norm that no f32 holds makes the factor NaN: the step is skipped.
  const bool finite = fabsf(static_cast<float>(norm)) < INFINITY;
  store<double>(a.norm, 0, norm, a.add);
  store<double>(a.factor, 0, !finite ? NAN : factor < 1 ? factor : 1.0, a.add);
}

} // namespace merak::cuda
