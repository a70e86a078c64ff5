// softmax_cross_entropy, pick, rotary, with gradients by finite differences.
#include "test/unit/conformance/Harness.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::conformance {
namespace {

using runtime::ScalarValue;

// x [..., V], labels -> loss, lse
Tensors crossEntropy(const Tensor &x, const Tensor &labels,
                     const double *ignore, int64_t first = 0) {
  int64_t n = x.shape.back(), rows = labels.size();
  Tensor loss = zeros(labels.shape), lse = zeros(labels.shape);
  for (int64_t r = 0; r < rows; ++r) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i)
      top = std::max(top, x.v[r * n + i]);
    for (int64_t i = 0; i < n; ++i)
      sum += std::exp(x.v[r * n + i] - top);
    lse.v[r] = top + std::log(sum);
    int64_t column = static_cast<int64_t>(labels.v[r]) - first;
    bool ignored = ignore && labels.v[r] == *ignore;
    if (!ignored)
      loss.v[r] =
          lse.v[r] - (column >= 0 && column < n ? x.v[r * n + column] : 0);
  }
  return {loss, lse};
}

struct Loss {
  Shape rows;
  int64_t classes;
  bool ignores;
  double range = 3;
  planpb::DType labelType = planpb::I64;

  Shape logits() const {
    Shape s = rows;
    s.push_back(classes);
    return s;
  }
  Tensor labels(unsigned seed, int64_t limit) const {
    Tensor t = random(rows, seed, 0, static_cast<double>(limit), labelType);
    for (int64_t i = 1; i < t.size() && ignores; i += 3)
      t.v[i] = -100;
    return t;
  }
  std::map<std::string, std::string> attrs() const {
    if (!ignores)
      return {};
    return {{"ignore_index", "-100"}};
  }
  std::string name() const {
    return fmt::format("[{}] of {}{} range {}{}", fmt::join(rows, " "), classes,
                       ignores ? " ignoring" : "", range,
                       labelType == planpb::I32 ? " i32" : "");
  }
};
constexpr double kIgnored = -100;

Case lossCase(const Loss &l) {
  Case c;
  c.op = "softmax_cross_entropy";
  c.name = c.op + " " + l.name();
  c.attrs = l.attrs();
  c.inputs = {random(l.logits(), 1, -l.range, l.range), l.labels(2, l.classes)};
  c.outputs = {random(l.rows, 3), random(l.rows, 4)};
  c.reference = [l](const Case &k) {
    return crossEntropy(k.inputs[0], k.inputs[1],
                        l.ignores ? &kIgnored : nullptr);
  };
  return c;
}

// `first`: the first of the local columns; labels name global ones.
Case lossGradCase(const Loss &l, int64_t first) {
  Case c;
  c.op = "softmax_cross_entropy_grad";
  c.name = fmt::format("{} {} from {}", c.op, l.name(), first);
  c.attrs = l.attrs();
  c.inputs = {random(l.logits(), 1, -l.range, l.range),
              l.labels(2, 2 * first + l.classes), zeros(l.rows),
              random(l.rows, 5)};
  c.outputs = {random(l.logits(), 3)};
  c.scalars = {ScalarValue::integer(first)};
  c.derive = [](Case &k) {
    k.inputs[2] = crossEntropy(k.inputs[0], k.inputs[1], nullptr)[1];
  };
  c.reference = [l, first](const Case &k) {
    Forward forward = [&](const Tensors &in) {
      return Tensors{crossEntropy(in[0], k.inputs[1],
                                  l.ignores ? &kIgnored : nullptr, first)[0]};
    };
    return Tensors{gradient(forward, {k.inputs[0]}, 0, {k.inputs[3]})};
  };
  return c;
}

Tensor pick(const Tensor &x, const Tensor &labels, bool ignores,
            int64_t first) {
  Tensor y = zeros(labels.shape);
  int64_t n = x.shape.back();
  for (int64_t r = 0; r < labels.size(); ++r) {
    int64_t column = static_cast<int64_t>(labels.v[r]) - first;
    if (column >= 0 && column < n && !(ignores && labels.v[r] == kIgnored))
      y.v[r] = x.v[r * n + column];
  }
  return y;
}

Case pickCase(const Loss &l, int64_t first, bool grad) {
  Case c;
  c.op = grad ? "pick_grad" : "pick";
  c.name = fmt::format("{} {} from {}", c.op, l.name(), first);
  c.attrs = l.attrs();
  Tensor labels = l.labels(2, 2 * first + l.classes);
  c.inputs = {grad ? random(l.rows, 1) : random(l.logits(), 1), labels};
  c.outputs = {grad ? random(l.logits(), 3) : random(l.rows, 3)};
  c.scalars = {ScalarValue::integer(first)};
  c.reference = [l, first, grad](const Case &k) {
    if (!grad)
      return Tensors{pick(k.inputs[0], k.inputs[1], l.ignores, first)};
    Forward forward = [&](const Tensors &in) {
      return Tensors{pick(in[0], k.inputs[1], l.ignores, first)};
    };
    return Tensors{
        gradient(forward, {random(l.logits(), 9)}, 0, {k.inputs[0]})};
  };
  return c;
}

// ------------------------------------------------------------ rotary

Case rotaryCase(const Shape &x, const Shape &angles, bool interleaved,
                bool inverse) {
  Case c;
  c.op = "rotary";
  c.name = fmt::format(
      "rotary [{}] by [{}]{}{}", fmt::join(x, " "), fmt::join(angles, " "),
      interleaved ? " interleaved" : "", inverse ? " inverse" : "");
  c.attrs = {{"interleaved", interleaved ? "1" : "0"},
             {"inverse", inverse ? "1" : "0"}};
  c.inputs = {random(x, 1), random(angles, 2), random(angles, 3)};
  c.outputs = {random(x, 4)};
  Forward turn = [=](const Tensors &in) {
    Tensor y = in[0];
    int64_t d = x[3], half = d / 2;
    for (int64_t i = 0; i < y.size(); i += d) {
      int64_t at[4] = {i / (x[1] * x[2] * d), i / (x[2] * d) % x[1], 0, 0};
      for (int64_t j = 0; j < half; ++j) {
        at[3] = j;
        int64_t p = 0;
        for (size_t k = 0; k < angles.size(); ++k) {
          int64_t size = angles[k];
          p = p * size + (size == 1 ? 0 : at[4 - angles.size() + k]);
        }
        int64_t a = interleaved ? 2 * j : j,
                b = interleaved ? 2 * j + 1 : j + half;
        double u = in[0].v[i + a], v = in[0].v[i + b];
        y.v[i + a] = u * in[1].v[p] - v * in[2].v[p];
        y.v[i + b] = v * in[1].v[p] + u * in[2].v[p];
      }
    }
    return Tensors{y};
  };
  c.reference = [=](const Case &k) {
    if (!inverse)
      return turn(k.inputs);
    // The adjoint, by differences.
    Tensors in = {random(x, 7), k.inputs[1], k.inputs[2]};
    return Tensors{gradient(turn, in, 0, {k.inputs[0]})};
  };
  return c;
}

} // namespace

std::vector<Case> lossCases() {
  std::vector<Case> cases;
  for (bool ignores : {false, true}) {
    cases.push_back(lossCase({{6}, 17, ignores}));
    cases.push_back(lossCase({{3, 5}, 100, ignores, 40}));
    cases.push_back(lossCase({{3, 5}, 100, ignores, 3, planpb::I32}));
    cases.push_back(lossCase({{2}, 3000, ignores}));
    cases.push_back(lossCase({{0}, 5, ignores}));
    for (int64_t first : {0, 7}) {
      cases.push_back(lossGradCase({{6}, 17, ignores}, first));
      cases.push_back(
          lossGradCase({{2, 3}, 20, ignores, 3, planpb::I32}, first));
      for (bool grad : {false, true}) {
        cases.push_back(pickCase({{6}, 17, ignores}, first, grad));
        cases.push_back(
            pickCase({{2, 3}, 9, ignores, 3, planpb::I32}, first, grad));
      }
    }
  }
  for (bool interleaved : {false, true})
    for (bool inverse : {false, true}) {
      cases.push_back(
          rotaryCase({2, 5, 3, 12}, {5, 1, 6}, interleaved, inverse));
      cases.push_back(
          rotaryCase({2, 3, 2, 40}, {2, 3, 1, 20}, interleaved, inverse));
      cases.push_back(
          rotaryCase({2, 3, 2, 2}, {3, 1, 1}, interleaved, inverse));
    }
  return cases;
}

} // namespace merak::conformance
