// Convolution and pooling on dense operands, each result by itself: the
// reference and the fallback of what cuDNN does.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

namespace merak::cuda {

// Sliding windows over three spatial dimensions; see cpu::Window.
struct Sliding {
  int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3], padEnd[3];

  MERAK_HD int64_t inSize() const { return in[0] * in[1] * in[2]; }
  MERAK_HD int64_t outSize() const { return out[0] * out[1] * out[2]; }
  MERAK_HD int64_t kernelSize() const {
    return kernel[0] * kernel[1] * kernel[2];
  }
  // The input position of window element `element` at output `o`, -1 outside.
  MERAK_HD int64_t input(int64_t o, int64_t element) const {
    int64_t position = 0, scale = 1;
    for (int d = 3; d-- > 0;) {
      const int64_t at =
          o % out[d] * stride[d] - pad[d] + element % kernel[d] * dilation[d];
      if (at < 0 || at >= in[d])
        return -1;
      position += at * scale;
      scale *= in[d];
      o /= out[d];
      element /= kernel[d];
    }
    return position;
  }
  // The output whose window element `element` is input `i`, -1 if none.
  MERAK_HD int64_t output(int64_t i, int64_t element) const {
    int64_t position = 0, scale = 1;
    for (int d = 3; d-- > 0;) {
      const int64_t at = i % in[d] + pad[d] - element % kernel[d] * dilation[d];
      if (at < 0 || at % stride[d] != 0 || at / stride[d] >= out[d])
        return -1;
      position += at / stride[d] * scale;
      scale *= out[d];
      i /= in[d];
      element /= kernel[d];
    }
    return position;
  }
  // What an average divides by: elements inside, or inside the padded input.
  MERAK_HD float divisor(int64_t o, bool countPad) const {
    int64_t count = 1;
    for (int d = 3; d-- > 0;) {
      int64_t inside = 0;
      for (int64_t k = 0; k < kernel[d]; ++k) {
        const int64_t at = o % out[d] * stride[d] - pad[d] + k * dilation[d];
        inside += countPad ? at < in[d] + padEnd[d] : at >= 0 && at < in[d];
      }
      count *= inside;
      o /= out[d];
    }
    return static_cast<float>(count > 1 ? count : 1);
  }
};

struct ConvArgs {
  Ref x, w, y, bias; // gradients: dx or dw in place of x or w
  Sliding window;
  int64_t samples = 0, groups = 1;
  int64_t inChannels = 0, outChannels = 0; // of one group
  bool biased = false, add = false;
};

template <typename Block>
MERAK_HD void convBody(const Block &block, const ConvArgs &a) {
  const int64_t positions = a.window.outSize(), area = a.window.kernelSize();
  const int64_t channels = a.groups * a.outChannels;
  const int64_t count = a.samples * channels * positions;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    const int64_t o = i % positions, channel = i / positions % channels;
    const int64_t sample = i / positions / channels;
    const int64_t group = channel / a.outChannels;
    const int64_t x =
        (sample * a.groups + group) * a.inChannels * a.window.inSize();
    float sum = 0;
    for (int64_t c = 0; c < a.inChannels; ++c)
      for (int64_t k = 0; k < area; ++k) {
        const int64_t at = a.window.input(o, k);
        if (at >= 0)
          sum += load<float>(a.x, x + c * a.window.inSize() + at) *
                 load<float>(a.w, (channel * a.inChannels + c) * area + k);
      }
    if (a.biased)
      sum += load<float>(a.bias, channel);
    store<float>(a.y, i, sum, a.add);
  }
}

template <typename Block>
MERAK_HD void convGradInputBody(const Block &block, const ConvArgs &a) {
  const int64_t size = a.window.inSize(), area = a.window.kernelSize();
  const int64_t channels = a.groups * a.inChannels;
  const int64_t count = a.samples * channels * size, step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    const int64_t at = i % size, channel = i / size % channels;
    const int64_t sample = i / size / channels;
    const int64_t group = channel / a.inChannels, c = channel % a.inChannels;
    const int64_t first = group * a.outChannels;
    float sum = 0;
    for (int64_t k = 0; k < area; ++k) {
      const int64_t o = a.window.output(at, k);
      if (o < 0)
        continue;
      for (int64_t m = first; m < first + a.outChannels; ++m)
        sum += load<float>(a.y, (sample * a.groups * a.outChannels + m) *
                                        a.window.outSize() +
                                    o) *
               load<float>(a.w, (m * a.inChannels + c) * area + k);
    }
    store<float>(a.x, i, sum, a.add);
  }
}

// A block an element of the weight.
template <typename Block>
MERAK_HD void convGradWeightBody(Block &block, const ConvArgs &a) {
  const int64_t area = a.window.kernelSize(), positions = a.window.outSize();
  const int64_t channels = a.groups * a.outChannels;
  const int64_t count = channels * a.inChannels * area;
  for (int64_t i = block.block(); i < count; i += block.blocks()) {
    const int64_t k = i % area, c = i / area % a.inChannels;
    const int64_t channel = i / area / a.inChannels;
    const int64_t group = channel / a.outChannels;
    float sum = 0;
    for (int64_t j = block.thread(); j < a.samples * positions;
         j += block.threads()) {
      const int64_t sample = j / positions, o = j % positions;
      const int64_t at = a.window.input(o, k);
      if (at < 0)
        continue;
      const int64_t plane = (sample * a.groups + group) * a.inChannels + c;
      sum += load<float>(a.y, (sample * channels + channel) * positions + o) *
             load<float>(a.x, plane * a.window.inSize() + at);
    }
    sum = block.sum(sum);
    if (block.thread() == 0)
      store<float>(a.w, i, sum, a.add);
  }
}

// ---------------------------------------------------------------- pooling

struct PoolArgs {
  Ref x, y, index; // gradients: dx and dy
  Sliding window;
  int64_t planes = 0, inSize = 0, outSize = 0;
  bool countPad = false, add = false;
};

template <typename Block>
MERAK_HD void maxPoolBody(const Block &block, const PoolArgs &a) {
  const int64_t count = a.planes * a.outSize, step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    const int64_t o = i % a.outSize, plane = i / a.outSize * a.inSize;
    int64_t best = -1;
    float value = -INFINITY;
    for (int64_t k = 0; k < a.window.kernelSize(); ++k) {
      const int64_t at = a.window.input(o, k);
      if (at < 0)
        continue;
      const float x = load<float>(a.x, plane + at);
      // A NaN wins and stays.
      if (best < 0 || x > value || (x != x && value == value)) {
        best = at;
        value = x;
      }
    }
    store<float>(a.y, i, value, a.add);
    store<int64_t>(a.index, i, best < 0 ? 0 : best, a.add);
  }
}

// A thread a plane, whose gradients were cleared: windows may overlap, and
// their sums have an order.
template <typename Block>
MERAK_HD void maxPoolGradBody(const Block &block, const PoolArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t plane = firstItem(block); plane < a.planes; plane += step)
    for (int64_t o = 0; o < a.outSize; ++o) {
      const int64_t at = load<int64_t>(a.index, plane * a.outSize + o);
      if (at >= 0 && at < a.inSize)
        store<float>(a.x, plane * a.inSize + at,
                     load<float>(a.y, plane * a.outSize + o), true);
    }
}

template <typename Block>
MERAK_HD void averagePoolBody(const Block &block, const PoolArgs &a) {
  const int64_t count = a.planes * a.outSize, step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    const int64_t o = i % a.outSize, plane = i / a.outSize * a.inSize;
    float sum = 0;
    for (int64_t k = 0; k < a.window.kernelSize(); ++k) {
      const int64_t at = a.window.input(o, k);
      sum += at < 0 ? 0 : load<float>(a.x, plane + at);
    }
    store<float>(a.y, i, sum / a.window.divisor(o, a.countPad), a.add);
  }
}

template <typename Block>
MERAK_HD void averagePoolGradBody(const Block &block, const PoolArgs &a) {
  const int64_t count = a.planes * a.inSize, step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    const int64_t at = i % a.inSize, plane = i / a.inSize * a.outSize;
    float sum = 0;
    for (int64_t k = 0; k < a.window.kernelSize(); ++k) {
      const int64_t o = a.window.output(at, k);
      if (o >= 0)
        sum += load<float>(a.y, plane + o) / a.window.divisor(o, a.countPad);
    }
    store<float>(a.x, i, sum, a.add);
  }
}

} // namespace merak::cuda
