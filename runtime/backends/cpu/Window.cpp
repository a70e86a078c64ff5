#include "runtime/backends/cpu/Window.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::cpu {

void Window::inside(int dim, int64_t k, int64_t &begin, int64_t &end) const {
  // 0 <= o * stride + offset < in
  // Stride 2 and one element of padding, k = 0, in = 8: output o reads 2 o - 1,
  // which is inside for o from (1 + 1) / 2 = 1 up to 8 / 2 = 4.
  int64_t offset = k * dilation[dim] - pad[dim], step = stride[dim];
  begin = offset >= 0 ? 0 : (-offset + step - 1) / step;
  int64_t last = in[dim] - 1 - offset;
  end = last < 0 ? 0 : std::min(out[dim], last / step + 1);
  begin = std::min(begin, end);
}

bool readWindow(Request &request, const View &in, const View &out,
                std::span<const int64_t> kernel, Window &w) {
  size_t dims = kernel.size();
  if (!request.expect(dims >= 1 && dims <= Window::kDims &&
                          in.shape.size() == dims + 2 &&
                          out.shape.size() == dims + 2,
                      fmt::format("expected [N, C] and 1 to 3 spatial "
                                  "dimensions, found ranks {} and {}",
                                  in.rank(), out.rank())))
    return false;
  std::vector<int64_t> ones(dims, 1), zeros(2 * dims, 0);
  std::vector<int64_t> strides = request.list("strides", ones);
  std::vector<int64_t> dilations = request.list("dilations", ones);
  std::vector<int64_t> pads = request.list("pads", zeros);
  if (!request.expect(strides.size() == dims && dilations.size() == dims &&
                          pads.size() == 2 * dims,
                      "expected a stride and a dilation, and two pads, for "
                      "each spatial dimension"))
    return false;
  size_t lead = Window::kDims - dims;
  for (size_t d = 0; d < dims; ++d) {
    size_t to = lead + d;
    w.in[to] = in.shape[d + 2];
    w.out[to] = out.shape[d + 2];
    w.kernel[to] = kernel[d];
    w.stride[to] = strides[d];
    w.dilation[to] = dilations[d];
    w.pad[to] = pads[d];
    if (!request.expect(strides[d] > 0 && dilations[d] > 0 && kernel[d] > 0,
                        "strides, dilations and windows must be positive"))
      return false;
    // Pooling may round the size up: one window more that starts inside.
    // Windows of 3 in 8, stride 2: room is 5, of 3 or, rounded up, 4 windows.
    int64_t room = w.in[to] + pads[d] + pads[d + dims] -
                   (dilations[d] * (kernel[d] - 1) + 1);
    int64_t floor = room < 0 ? 0 : room / strides[d] + 1;
    int64_t ceil = room < 0 ? 0 : (room + strides[d] - 1) / strides[d] + 1;
    request.expect(w.out[to] == floor || w.out[to] == ceil,
                   fmt::format("expected {} windows along spatial dimension "
                               "{}, found {}",
                               floor, d, w.out[to]));
  }
  return request.ok();
}

} // namespace merak::cpu
