// Sliding windows of convolution and pooling over one to three spatial
// dimensions.
#pragma once

#include "runtime/backends/cpu/Kernel.h"

#include <array>

namespace merak::cpu {

// Missing dimensions have size 1 and a window of 1 in front.
struct Window {
  static constexpr int kDims = 3;
  std::array<int64_t, kDims> in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1};
  std::array<int64_t, kDims> stride{1, 1, 1}, dilation{1, 1, 1}, pad{0, 0, 0};

  int64_t inSize() const { return in[0] * in[1] * in[2]; }
  int64_t outSize() const { return out[0] * out[1] * out[2]; }
  int64_t kernelSize() const { return kernel[0] * kernel[1] * kernel[2]; }
  // Input coordinate of window element k at output o; may lie outside.
  int64_t at(int dim, int64_t o, int64_t k) const {
    return o * stride[dim] - pad[dim] + k * dilation[dim];
  }
  // The window element of position p (row-major).
  // Of a 1 x 3 x 3 window, 5 is (5 / 9, 5 / 3 % 3, 5 % 3) = (0, 1, 2).
  std::array<int64_t, kDims> element(int64_t p) const {
    return {p / (kernel[1] * kernel[2]), p / kernel[2] % kernel[1],
            p % kernel[2]};
  }
  // Outputs [begin, end) whose element k lies inside the input along `dim`.
  void inside(int dim, int64_t k, int64_t &begin, int64_t &end) const;
};

// Reads strides, pads and dilations and checks the output's spatial shape.
// `in`, `out`: [N, C, spatial]; `kernel`: spatial sizes.
bool readWindow(Request &request, const View &in, const View &out,
                std::span<const int64_t> kernel, Window &window);

} // namespace merak::cpu
