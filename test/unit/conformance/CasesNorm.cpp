// softmax, layer_norm, rms_norm; gradients by finite differences.
#include "test/unit/conformance/Harness.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::conformance {
namespace {

std::string text(const Shape &shape) {
  return fmt::format("[{}]", fmt::join(shape, " "));
}

// ------------------------------------------------------------ softmax

Tensor softmax(const Tensor &x, int64_t axis) {
  Tensor y = x;
  int64_t n = x.shape[axis], inner = 1;
  for (size_t d = axis + 1; d < x.shape.size(); ++d)
    inner *= x.shape[d];
  int64_t rows = n ? x.size() / n : 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t base = row / inner * inner * n + row % inner;
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i)
      top = std::max(top, x.v[base + i * inner]);
    for (int64_t i = 0; i < n; ++i)
      sum += std::exp(x.v[base + i * inner] - top);
    for (int64_t i = 0; i < n; ++i)
      y.v[base + i * inner] =
          top == -INFINITY ? 0 : std::exp(x.v[base + i * inner] - top) / sum;
  }
  return y;
}

Case softmaxCase(const Shape &shape, int64_t axis, double range = 4) {
  Case c;
  c.name = fmt::format("softmax {} axis {} range {}", text(shape), axis, range);
  c.op = "softmax";
  c.attrs["axis"] = std::to_string(axis);
  c.inputs = {random(shape, 1, -range, range)};
  c.outputs = {random(shape, 2)};
  c.reference = [axis](const Case &k) {
    int64_t rank = static_cast<int64_t>(k.inputs[0].shape.size());
    return Tensors{softmax(k.inputs[0], axis < 0 ? axis + rank : axis)};
  };
  c.tolerance = 1e-6;
  return c;
}

// The last input carries x, from which y follows; the kernel does not see it.
Case softmaxGradCase(const Shape &shape, int64_t axis) {
  Case c;
  c.name = fmt::format("softmax_grad {} axis {}", text(shape), axis);
  c.op = "softmax_grad";
  c.attrs["axis"] = std::to_string(axis);
  c.inputs = {random(shape, 1, -2, 2), random(shape, 2)};
  c.outputs = {random(shape, 3)};
  // y is kept as a softmax; its logarithm is a valid x.
  c.derive = [axis](Case &k) { k.inputs[0] = softmax(k.inputs[0], axis); };
  c.reference = [axis](const Case &k) {
    Tensor x = k.inputs[0];
    for (double &value : x.v)
      value = std::log(value);
    Forward forward = [axis](const Tensors &in) {
      return Tensors{softmax(in[0], axis)};
    };
    return Tensors{gradient(forward, {x}, 0, {k.inputs[1]})};
  };
  return c;
}

// ------------------------------------------------------------ norms

struct Norm {
  Shape shape;
  int64_t axis;
  bool rms, scale, bias;
  double epsilon = 1e-5;

  Shape rows() const { return Shape(shape.begin(), shape.begin() + axis); }
  Shape row() const { return Shape(shape.begin() + axis, shape.end()); }
  std::string name() const {
    return fmt::format("{} axis {}{}{}", text(shape), axis,
                       scale ? " scale" : "", bias ? " bias" : "");
  }
};

// in: x [scale] [bias] -> y, [mean], rstd
Tensors normForward(const Norm &n, const Tensors &in) {
  const Tensor &x = in[0];
  int64_t size = elements(n.row()), rows = elements(n.rows());
  Tensor y = x, mean = zeros(n.rows()), rstd = zeros(n.rows());
  for (int64_t r = 0; r < rows; ++r) {
    const double *p = &x.v[r * size];
    double m = 0, variance = 0;
    for (int64_t i = 0; i < size && !n.rms; ++i)
      m += p[i] / static_cast<double>(size);
    for (int64_t i = 0; i < size; ++i)
      variance += (p[i] - m) * (p[i] - m) / static_cast<double>(size);
    double s = 1 / std::sqrt(variance + n.epsilon);
    mean.v[r] = m;
    rstd.v[r] = s;
    for (int64_t i = 0; i < size; ++i)
      y.v[r * size + i] = (p[i] - m) * s * (n.scale ? in[1].v[i] : 1) +
                          (n.bias ? in[1 + n.scale].v[i] : 0);
  }
  return n.rms ? Tensors{y, rstd} : Tensors{y, mean, rstd};
}

std::map<std::string, std::string> normAttrs(const Norm &n) {
  return {{"axis", std::to_string(n.axis)},
          {"epsilon", fmt::format("{}", n.epsilon)},
          {"scale", n.scale ? "1" : "0"},
          {"bias", n.bias ? "1" : "0"}};
}

Case normCase(const Norm &n) {
  Case c;
  c.op = n.rms ? "rms_norm" : "layer_norm";
  c.name = c.op + " " + n.name();
  c.attrs = normAttrs(n);
  c.inputs = {random(n.shape, 1, -2, 3)};
  if (n.scale)
    c.inputs.push_back(random(n.row(), 2));
  if (n.bias)
    c.inputs.push_back(random(n.row(), 3));
  c.outputs = {random(n.shape, 4)};
  if (!n.rms)
    c.outputs.push_back(random(n.rows(), 5));
  c.outputs.push_back(random(n.rows(), 6));
  c.reference = [n](const Case &k) { return normForward(n, k.inputs); };
  // Broadcast makes the row constant: the mean's rounding, times 1 / sqrt(eps).
  if (n.axis == 0)
    c.tolerance = 1e-4;
  return c;
}

// dy, x, [mean], rstd, [scale] -> dx
Case normGradCase(const Norm &n) {
  Case c;
  c.op = n.rms ? "rms_norm_grad" : "layer_norm_grad";
  c.name = c.op + " " + n.name();
  c.attrs = normAttrs(n);
  c.inputs = {random(n.shape, 1), random(n.shape, 2, -2, 3)};
  for (int i = 0; i < (n.rms ? 1 : 2); ++i)
    c.inputs.push_back(zeros(n.rows()));
  if (n.scale)
    c.inputs.push_back(random(n.row(), 4));
  c.outputs = {random(n.shape, 5)};
  Norm plain = n;
  plain.bias = false;
  c.derive = [plain](Case &k) {
    Tensors in = {k.inputs[1]};
    if (plain.scale)
      in.push_back(k.inputs.back());
    Tensors out = normForward(plain, in);
    for (size_t i = 1; i < out.size(); ++i)
      k.inputs[1 + i] = out[i];
  };
  c.reference = [plain](const Case &k) {
    Tensors in = {k.inputs[1]};
    if (plain.scale)
      in.push_back(k.inputs.back());
    Forward forward = [plain](const Tensors &x) {
      return Tensors{normForward(plain, x)[0]};
    };
    return Tensors{gradient(forward, in, 0, {k.inputs[0]})};
  };
  c.tolerance = 2e-5;
  return c;
}

// dy, x, [mean], rstd -> dscale, [dbias]
Case normParamCase(const Norm &shape) {
  Norm n = shape;
  n.scale = true;
  n.bias = !n.rms;
  Case c;
  c.op = n.rms ? "rms_norm_param_grad" : "layer_norm_param_grad";
  c.name = c.op + " " + n.name();
  c.attrs = normAttrs(n);
  c.inputs = {random(n.shape, 1), random(n.shape, 2, -2, 3)};
  for (int i = 0; i < (n.rms ? 1 : 2); ++i)
    c.inputs.push_back(zeros(n.rows()));
  c.outputs = {random(n.row(), 3)};
  if (!n.rms)
    c.outputs.push_back(random(n.row(), 4));
  auto inputs = [n](const Case &k) {
    Tensors in = {k.inputs[1], random(n.row(), 8)};
    if (n.bias)
      in.push_back(random(n.row(), 9));
    return in;
  };
  c.derive = [n, inputs](Case &k) {
    Tensors out = normForward(n, inputs(k));
    for (size_t i = 1; i < out.size(); ++i)
      k.inputs[1 + i] = out[i];
  };
  c.reference = [n, inputs](const Case &k) {
    Forward forward = [n](const Tensors &x) {
      return Tensors{normForward(n, x)[0]};
    };
    Tensors grads;
    for (size_t which = 1; which <= k.outputs.size(); ++which)
      grads.push_back(gradient(forward, inputs(k), which, {k.inputs[0]}));
    return grads;
  };
  c.tolerance = 2e-5;
  return c;
}

} // namespace

std::vector<Case> normCases() {
  std::vector<Case> cases;
  cases.push_back(softmaxCase({7, 33}, 1));
  cases.push_back(softmaxCase({7, 33}, -1, 60)); // most weights underflow
  cases.push_back(softmaxCase({3, 5, 6}, 1));
  cases.push_back(softmaxCase({9, 4}, 0));
  cases.push_back(softmaxCase({2, 1000}, 1));
  cases.push_back(softmaxCase({5, 1}, 1));
  cases.push_back(softmaxCase({0, 5}, 1));
  Case masked = softmaxCase({3, 18}, 1);
  masked.name += " masked";
  for (int64_t i = 0; i < masked.inputs[0].size(); ++i)
    if (i % 18 > 4 || i < 18)
      masked.inputs[0].v[i] = -INFINITY;
  cases.push_back(masked);
  cases.push_back(softmaxGradCase({4, 17}, 1));
  cases.push_back(softmaxGradCase({3, 5, 4}, 1));
  cases.push_back(softmaxGradCase({3, 40}, 1));
  for (bool rms : {false, true})
    for (bool scale : {false, true})
      for (bool bias : {false, true}) {
        if (rms && bias)
          continue;
        for (Norm n : {Norm{{5, 3, 17}, 2, rms, scale, bias},
                       Norm{{3, 4, 6}, 1, rms, scale, bias},
                       Norm{{2, 96}, 1, rms, scale, bias, 1e-3},
                       Norm{{9, 1}, 1, rms, scale, bias},
                       Norm{{13}, 0, rms, scale, bias}}) {
          cases.push_back(normCase(n));
          if (!bias)
            cases.push_back(normGradCase(n));
        }
        cases.push_back(normCase({{0, 8}, 1, rms, scale, bias}));
      }
  for (bool rms : {false, true}) {
    cases.push_back(normParamCase({{5, 3, 17}, 2, rms, true, true}));
    cases.push_back(normParamCase({{3, 4, 6}, 1, rms, true, true}));
    cases.push_back(normParamCase({{70, 40}, 1, rms, true, true}));
    cases.push_back(normParamCase({{150, 72}, 1, rms, true, true}));
  }
  return cases;
}

} // namespace merak::conformance
