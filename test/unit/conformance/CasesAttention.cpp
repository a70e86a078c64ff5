// attention and its gradients, by finite differences.
#include "test/unit/conformance/Harness.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::conformance {
namespace {

struct Attention {
  int64_t b, tq, tk, h, hk, d;
  bool causal = false;
  std::string mask = "none"; // none, bool, float
  Shape maskShape = {};
  // All queries, of which tq from `first` on are here; 0: those here are all.
  int64_t queries = 0, first = 0;

  Shape q() const { return {b, tq, h, d}; }
  Shape k() const { return {b, tk, hk, d}; }
  Shape lse() const { return {b, h, tq}; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(d)); }
  std::string name() const {
    return fmt::format("b{} tq{} tk{} h{} hk{} d{}{} mask {}{}{}", b, tq, tk, h,
                       hk, d, causal ? " causal" : "", mask, maskShape.size(),
                       queries ? fmt::format(" at {} of {}", first, queries)
                               : "");
  }
  std::map<std::string, std::string> attrs() const {
    std::map<std::string, std::string> all = {
        {"scale", fmt::format("{}", scale())},
        {"causal", causal ? "1" : "0"},
        {"mask", mask}};
    if (queries)
      all["queries"] = std::to_string(queries);
    return all;
  }
  std::vector<runtime::ScalarValue> scalars() const {
    if (!queries)
      return {};
    return {runtime::ScalarValue::integer(first)};
  }
  Tensor makeMask() const {
    if (mask == "float")
      return random(maskShape, 11, -2, 2);
    return integers(maskShape, {1, 0, 1, 1, 0, 0, 1}, planpb::BOOL);
  }
};

// q, k, v, [mask] -> out, lse
Tensors forward(const Attention &a, const Tensors &in) {
  Tensor out = zeros(a.q()), lse = zeros(a.lse());
  const Shape full = {a.b, a.h, a.tq, a.tk};
  auto maskAt = [&](const int64_t(&at)[4]) {
    int64_t p = 0;
    size_t lead = 4 - in[3].shape.size();
    for (size_t d = 0; d < in[3].shape.size(); ++d)
      p = p * in[3].shape[d] + (in[3].shape[d] == 1 ? 0 : at[lead + d]);
    return in[3].v[p];
  };
  std::vector<double> s(a.tk);
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t h = 0; h < a.h; ++h)
      for (int64_t i = 0; i < a.tq; ++i) {
        int64_t g = h / (a.h / a.hk);
        const double *q = &in[0].v[((b * a.tq + i) * a.h + h) * a.d];
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < a.tk; ++j) {
          const double *k = &in[1].v[((b * a.tk + j) * a.hk + g) * a.d];
          s[j] = 0;
          for (int64_t d = 0; d < a.d; ++d)
            s[j] += a.scale() * q[d] * k[d];
          if (a.causal &&
              j > i + a.first + a.tk - (a.queries ? a.queries : a.tq))
            s[j] = -INFINITY;
          if (a.mask == "bool" && maskAt({b, h, i, j}) == 0)
            s[j] = -INFINITY;
          if (a.mask == "float")
            s[j] += maskAt({b, h, i, j});
          top = std::max(top, s[j]);
        }
        double &l = lse.v[(b * a.h + h) * a.tq + i];
        l = -INFINITY;
        if (top == -INFINITY)
          continue;
        for (double x : s)
          sum += std::exp(x - top);
        l = top + std::log(sum);
        double *o = &out.v[((b * a.tq + i) * a.h + h) * a.d];
        for (int64_t j = 0; j < a.tk; ++j) {
          const double *v = &in[2].v[((b * a.tk + j) * a.hk + g) * a.d];
          for (int64_t d = 0; d < a.d; ++d)
            o[d] += std::exp(s[j] - l) * v[d];
        }
      }
  return {out, lse};
}

Case attentionCase(const Attention &a) {
  Case c;
  c.op = "attention";
  c.name = "attention " + a.name();
  c.attrs = a.attrs();
  c.scalars = a.scalars();
  c.inputs = {random(a.q(), 1, -2, 2), random(a.k(), 2, -2, 2),
              random(a.k(), 3)};
  if (a.mask != "none")
    c.inputs.push_back(a.makeMask());
  c.outputs = {random(a.q(), 4), random(a.lse(), 5)};
  c.reference = [a](const Case &k) { return forward(a, k.inputs); };
  return c;
}

// q, k, v, out, lse, dout, [mask] -> dq, dk, dv
Case attentionGradCase(const Attention &a) {
  Case c;
  c.op = "attention_grad";
  c.name = "attention_grad " + a.name();
  c.attrs = a.attrs();
  c.scalars = a.scalars();
  c.inputs = {random(a.q(), 1, -2, 2), random(a.k(), 2, -2, 2),
              random(a.k(), 3),        zeros(a.q()),
              zeros(a.lse()),          random(a.q(), 6)};
  if (a.mask != "none")
    c.inputs.push_back(a.makeMask());
  c.outputs = {random(a.q(), 7), random(a.k(), 8), random(a.k(), 9)};
  auto primary = [](const Case &k) {
    Tensors in = {k.inputs[0], k.inputs[1], k.inputs[2]};
    if (k.inputs.size() > 6)
      in.push_back(k.inputs[6]);
    return in;
  };
  c.derive = [a, primary](Case &k) {
    Tensors out = forward(a, primary(k));
    k.inputs[3] = out[0];
    k.inputs[4] = out[1];
  };
  c.reference = [a, primary](const Case &k) {
    Forward f = [a](const Tensors &in) { return Tensors{forward(a, in)[0]}; };
    Tensors grads;
    for (size_t which : {0, 1, 2})
      grads.push_back(gradient(f, primary(k), which, {k.inputs[5]}));
    return grads;
  };
  c.tolerance = 2e-5;
  return c;
}

} // namespace

std::vector<Case> attentionCases() {
  std::vector<Case> cases;
  const Attention forwardOnly[] = {
      {2, 70, 70, 2, 2, 32, true},  {1, 130, 150, 2, 1, 16, true},
      {1, 150, 130, 1, 1, 8, true}, // the first queries see no key
      {2, 65, 40, 4, 2, 33},        {1, 0, 4, 1, 1, 8},
  };
  for (const Attention &a : forwardOnly)
    cases.push_back(attentionCase(a));
  const Attention both[] = {
      {2, 5, 5, 2, 2, 7},
      {2, 6, 6, 2, 2, 4, true},
      {1, 4, 7, 2, 1, 5, true},
      {1, 7, 4, 2, 2, 3, true},
      {2, 3, 5, 4, 2, 4, false, "bool", {2, 1, 1, 5}},
      {2, 3, 5, 2, 2, 4, false, "bool", {3, 5}},
      {2, 4, 4, 2, 2, 4, true, "float", {2, 1, 4, 4}},
      {1, 3, 6, 3, 1, 4, false, "float", {1, 3, 3, 6}},
      {1, 70, 70, 1, 1, 2, true}, // more than one block of queries
      // parts of the queries: the first, one between, the last, one that sees
      // no key, one with more than a block
      {2, 3, 6, 2, 1, 4, true, "none", {}, 6, 0},
      {1, 2, 7, 2, 2, 4, true, "none", {}, 6, 2},
      {1, 2, 6, 2, 2, 4, true, "float", {1, 1, 2, 6}, 6, 4},
      {1, 2, 4, 1, 1, 3, true, "bool", {2, 1}, 8, 4},
      {1, 2, 4, 2, 1, 3, true, "none", {}, 8, 0},
      {1, 66, 132, 1, 1, 2, true, "none", {}, 132, 66},
  };
  for (const Attention &a : both) {
    cases.push_back(attentionCase(a));
    cases.push_back(attentionGradCase(a));
  }
  // A row without any key.
  Attention dark{2, 3, 5, 2, 2, 4, false, "bool", {2, 1, 3, 5}};
  for (Case c : {attentionCase(dark), attentionGradCase(dark)}) {
    Tensor &mask = c.inputs.back();
    std::fill(mask.v.begin(), mask.v.begin() + 5, 0);
    c.name += " dark row";
    cases.push_back(c);
  }
  return cases;
}

} // namespace merak::conformance
