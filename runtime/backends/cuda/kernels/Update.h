// Optimizer steps, in f32, as torch.optim or ONNX's operators compute them.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

namespace merak::cuda {

// Operands of `loops`: gradient, parameter, first and second state.
struct UpdateArgs {
  Ref grad, factor, param, first, second;
  Loops<4> loops;
  bool clip = false, hasBuffer = false, nesterov = false, firstStep = false;
  float lr = 0, momentum = 0, oneMinusDampening = 1, weightDecay = 0;
  float l2 = 0;    // Adam, Adagrad: times the parameter, added to the gradient
  float decay = 1; // AdamW: 1 - lr * weight decay
  float beta1 = 0, beta2 = 0, oneMinusBeta1 = 0, oneMinusBeta2 = 0;
  float stepSize = 0;       // lr / (1 - beta1^t)
  float rootCorrection = 1; // sqrt(1 - beta2^t)
  float eps = 0;
  float keep = 1; // a factor on Adam's new parameter
};

template <typename Block>
MERAK_HD void adamWBody(const Block &block, const UpdateArgs &a) {
  const float factor = a.clip ? load<float>(a.factor, 0) : 1;
  if (factor != factor) // the gradients are not finite: nothing may change
    return;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[4];
    a.loops.at(i, o);
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
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[4];
    a.loops.at(i, o);
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
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[4];
    a.loops.at(i, o);
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
