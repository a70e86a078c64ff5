// Convolution and pooling; gradients by finite differences.
#include "test/unit/conformance/Harness.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::conformance {
namespace {

struct Window {
  Shape in;     // spatial
  Shape kernel; // spatial
  Shape strides, pads, dilations;
  int64_t n = 2, channels = 3, outChannels = 4, group = 1;
  bool bias = false;
  bool countPad = false;

  size_t dims() const { return in.size(); }
  Shape out() const {
    Shape s;
    for (size_t d = 0; d < dims(); ++d)
      s.push_back((in[d] + pads[d] + pads[d + dims()] -
                   (dilations[d] * (kernel[d] - 1) + 1)) /
                      strides[d] +
                  1);
    return s;
  }
  Shape full(int64_t c, const Shape &spatial) const {
    Shape s = {n, c};
    s.insert(s.end(), spatial.begin(), spatial.end());
    return s;
  }
  Shape weight() const {
    Shape s = {outChannels, channels / group};
    s.insert(s.end(), kernel.begin(), kernel.end());
    return s;
  }
  std::map<std::string, std::string> attrs() const {
    return {{"strides", fmt::format("{}", fmt::join(strides, ","))},
            {"pads", fmt::format("{}", fmt::join(pads, ","))},
            {"dilations", fmt::format("{}", fmt::join(dilations, ","))},
            {"kernel", fmt::format("{}", fmt::join(kernel, ","))},
            {"group", std::to_string(group)},
            {"bias", bias ? "1" : "0"},
            {"count_include_pad", countPad ? "1" : "0"}};
  }
  std::string name() const {
    return fmt::format("{} by {} step {} pad {} dilation {} c{} o{} g{}{}{}",
                       fmt::join(in, "x"), fmt::join(kernel, "x"),
                       fmt::join(strides, "x"), fmt::join(pads, "x"),
                       fmt::join(dilations, "x"), channels, outChannels, group,
                       bias ? " bias" : "", countPad ? " with pad" : "");
  }
  // Calls body(output position, kernel position, input position or -1,
  // whether inside the padded input) for all windows.
  template <typename Body> void forAll(Body body) const {
    Shape o = out();
    for (int64_t i = 0; i < elements(o); ++i)
      for (int64_t k = 0; k < elements(kernel); ++k) {
        int64_t position = 0, restO = i, restK = k;
        std::vector<int64_t> at(dims());
        bool inside = true, padded = true;
        for (size_t d = dims(); d-- > 0;) {
          at[d] = restO % o[d] * strides[d] - pads[d] +
                  restK % kernel[d] * dilations[d];
          inside = inside && at[d] >= 0 && at[d] < in[d];
          padded = padded && at[d] < in[d] + pads[d + dims()];
          restO /= o[d];
          restK /= kernel[d];
        }
        for (size_t d = 0; d < dims(); ++d)
          position = position * in[d] + at[d];
        body(i, k, inside ? position : -1, padded);
      }
  }
};

// x, w, [bias] -> y
Tensors conv(const Window &w, const Tensors &in) {
  Tensor y = zeros(w.full(w.outChannels, w.out()));
  int64_t inSize = elements(w.in), outSize = elements(w.out());
  int64_t perGroup = w.channels / w.group, window = elements(w.kernel);
  for (int64_t n = 0; n < w.n; ++n)
    for (int64_t o = 0; o < w.outChannels; ++o) {
      int64_t first = o / (w.outChannels / w.group) * perGroup;
      double *out = &y.v[(n * w.outChannels + o) * outSize];
      if (w.bias)
        std::fill_n(out, outSize, in[2].v[o]);
      for (int64_t c = 0; c < perGroup; ++c)
        w.forAll([&](int64_t i, int64_t k, int64_t p, bool) {
          if (p >= 0)
            out[i] += in[0].v[(n * w.channels + first + c) * inSize + p] *
                      in[1].v[(o * perGroup + c) * window + k];
        });
    }
  return {y};
}

Case convCase(const Window &w, const std::string &op) {
  Case c;
  c.op = op;
  c.name = op + " " + w.name();
  c.attrs = w.attrs();
  Tensor x = random(w.full(w.channels, w.in), 1);
  Tensor weight = random(w.weight(), 2);
  Tensor y = random(w.full(w.outChannels, w.out()), 3);
  Tensor bias = random({w.outChannels}, 4);
  if (op == "conv") {
    c.inputs = {x, weight};
    if (w.bias)
      c.inputs.push_back(bias);
    c.outputs = {y};
    c.reference = [w](const Case &k) { return conv(w, k.inputs); };
    return c;
  }
  c.attrs.erase("bias");
  Window plain = w;
  plain.bias = false;
  Forward f = [plain](const Tensors &in) { return conv(plain, in); };
  bool input = op == "conv_grad_input";
  c.inputs = {input ? y : x, input ? weight : y};
  c.outputs = {input ? x : weight};
  c.reference = [f, input, x, weight](const Case &k) {
    if (input)
      return Tensors{gradient(f, {x, k.inputs[1]}, 0, {k.inputs[0]})};
    return Tensors{gradient(f, {k.inputs[0], weight}, 1, {k.inputs[1]})};
  };
  c.tolerance = 1e-5;
  return c;
}

// ------------------------------------------------------------ pooling

Tensors maxPool(const Window &w, const Tensors &in) {
  Tensor y = zeros(w.full(w.channels, w.out()));
  Tensor index = zeros(y.shape, planpb::I64);
  std::fill(y.v.begin(), y.v.end(), -INFINITY);
  int64_t inSize = elements(w.in), outSize = elements(w.out());
  for (int64_t plane = 0; plane < w.n * w.channels; ++plane)
    w.forAll([&](int64_t i, int64_t, int64_t p, bool) {
      double &best = y.v[plane * outSize + i];
      if (p >= 0 && in[0].v[plane * inSize + p] > best) {
        best = in[0].v[plane * inSize + p];
        index.v[plane * outSize + i] = static_cast<double>(p);
      }
    });
  return {y, index};
}

Tensors averagePool(const Window &w, const Tensors &in) {
  Tensor y = zeros(w.full(w.channels, w.out()));
  int64_t inSize = elements(w.in), outSize = elements(w.out());
  for (int64_t plane = 0; plane < w.n * w.channels; ++plane) {
    std::vector<double> count(outSize, 0);
    w.forAll([&](int64_t i, int64_t, int64_t p, bool padded) {
      count[i] += w.countPad ? padded : p >= 0;
      if (p >= 0)
        y.v[plane * outSize + i] += in[0].v[plane * inSize + p];
    });
    for (int64_t i = 0; i < outSize; ++i)
      y.v[plane * outSize + i] /= count[i];
  }
  return {y};
}

// Distinct values in a shuffled order: no ties, far from a jump.
Tensor distinct(const Shape &shape) {
  Tensor x = zeros(shape);
  for (int64_t i = 0; i < x.size(); ++i)
    x.v[i] = static_cast<double>(i * 37 % 1009) / 100;
  return x;
}

std::vector<Case> poolCases(const Window &w) {
  Shape wide = w.full(w.channels, w.in), narrow = w.full(w.channels, w.out());
  Case max, maxGrad, average, averageGrad;
  max.op = "max_pool";
  max.inputs = {distinct(wide)};
  max.outputs = {random(narrow, 1), random(narrow, 2, 0, 10, planpb::I64)};
  max.reference = [w](const Case &k) { return maxPool(w, k.inputs); };
  maxGrad.op = "max_pool_grad";
  maxGrad.inputs = {random(narrow, 3), maxPool(w, {distinct(wide)})[1]};
  maxGrad.outputs = {random(wide, 4)};
  // By the index alone, which a layout may have changed.
  maxGrad.reference = [w](const Case &k) {
    Tensor dx = zeros(k.outputs[0].shape);
    int64_t inSize = elements(w.in), outSize = elements(w.out());
    for (int64_t i = 0; i < k.inputs[0].size(); ++i)
      dx.v[i / outSize * inSize + static_cast<int64_t>(k.inputs[1].v[i])] +=
          k.inputs[0].v[i];
    return Tensors{dx};
  };
  average.op = "avg_pool";
  average.inputs = {random(wide, 5)};
  average.outputs = {random(narrow, 6)};
  average.reference = [w](const Case &k) { return averagePool(w, k.inputs); };
  averageGrad.op = "avg_pool_grad";
  averageGrad.inputs = {random(narrow, 7)};
  averageGrad.outputs = {random(wide, 8)};
  averageGrad.reference = [w, wide](const Case &k) {
    Forward f = [w](const Tensors &in) { return averagePool(w, in); };
    return Tensors{gradient(f, {random(wide, 9)}, 0, {k.inputs[0]})};
  };
  std::vector<Case> cases = {max, maxGrad, average, averageGrad};
  for (Case &c : cases) {
    c.name = c.op + " " + w.name();
    c.attrs = w.attrs();
  }
  return cases;
}

// max_pool_grad's own definition against differences, once.
Case maxPoolDifferences() {
  Window w{{6, 6}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}};
  Case c = poolCases(w)[1];
  c.name += " differences";
  c.reference = [w](const Case &k) {
    Forward f = [w](const Tensors &in) { return Tensors{maxPool(w, in)[0]}; };
    Tensor x = distinct(k.outputs[0].shape);
    // An x with its maxima where the index says.
    for (int64_t i = 0; i < k.inputs[1].size(); ++i)
      x.v[i / 9 * 36 + static_cast<int64_t>(k.inputs[1].v[i])] += 100;
    return Tensors{gradient(f, {x}, 0, {k.inputs[0]})};
  };
  return c;
}

} // namespace

std::vector<Case> convCases() {
  std::vector<Case> cases;
  const Window windows[] = {
      {{8, 9}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2, 3, 4, 1, true},
      {{7, 7}, {3, 2}, {2, 2}, {1, 0, 0, 1}, {1, 1}, 2, 3, 5},
      {{9, 8}, {3, 3}, {1, 2}, {2, 2, 2, 2}, {2, 2}, 1, 2, 3, 1, true},
      {{5, 6}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}, 3, 4, 5, 1, true},
      {{6, 6}, {1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}, 2, 4, 3},
      {{6, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2, 4, 6, 2, true},
      {{6, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2, 4, 4, 4}, // depthwise
      {{12}, {4}, {3}, {2, 1}, {1}, 2, 3, 4, 1, true},
      {{4, 5, 3}, {2, 3, 2}, {1, 2, 1}, {1, 1, 0, 0, 1, 1}, {1, 1, 1}, 1, 2, 3},
      {{3, 3}, {3, 3}, {1, 1}, {4, 4, 4, 4}, {1, 1}, 1, 1, 1}, // all padding
  };
  for (const Window &w : windows)
    for (const char *op : {"conv", "conv_grad_input", "conv_grad_weight"})
      cases.push_back(convCase(w, op));
  Window none = windows[0];
  none.n = 0;
  cases.push_back(convCase(none, "conv"));
  cases.push_back(convCase(none, "conv_grad_weight"));
  const Window pools[] = {
      {{8, 9}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
      {{7, 7}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{7, 6}, {3, 3}, {1, 2}, {1, 0, 1, 1}, {1, 1}, 2, 3, 4, 1, false, true},
      {{8, 8}, {8, 8}, {1, 1}, {0, 0, 0, 0}, {1, 1}}, // global
      {{13}, {3}, {2}, {1, 1}, {2}},
      {{4, 5, 4}, {2, 2, 2}, {2, 1, 2}, {0, 1, 0, 0, 0, 0}, {1, 1, 1}},
  };
  for (const Window &w : pools)
    for (Case &c : poolCases(w))
      cases.push_back(std::move(c));
  cases.push_back(maxPoolDifferences());
  return cases;
}

} // namespace merak::conformance
