// einsum: all product forms that training emits, odd and empty sizes, types.
#include "test/unit/conformance/Harness.h"
#include "test/unit/core/Float8Numbers.h"

#include "runtime/core/DType.h"

#include <cmath>
#include <fmt/format.h>

namespace merak::conformance {
namespace {

struct Equation {
  std::string a, b, out;
};

Equation split(const std::string &text) {
  size_t comma = text.find(','), arrow = text.find("->");
  return {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1),
          text.substr(arrow + 2)};
}

Tensors roundedFirst(const Case &c);

Tensors naive(const Case &c) {
  if (c.attrs.count("rounds"))
    return roundedFirst(c);
  Equation e = split(c.attrs.at("equation"));
  double alpha = c.attrs.count("alpha") ? std::stod(c.attrs.at("alpha")) : 1.0;
  // The letters with their sizes and their steps in a, b and out.
  struct Letter {
    int64_t size = 0, at = 0, steps[3] = {0, 0, 0};
  };
  std::map<char, Letter> table;
  auto read = [&](const std::string &letters, const Tensor &tensor, int which) {
    int64_t step = 1;
    for (size_t d = letters.size(); d-- > 0; step *= tensor.shape[d]) {
      table[letters[d]].size = tensor.shape[d];
      table[letters[d]].steps[which] = step;
    }
  };
  Tensor out = zeros(c.outputs[0].shape, c.outputs[0].dtype);
  read(e.a, c.inputs[0], 0);
  read(e.b, c.inputs[1], 1);
  read(e.out, out, 2);
  std::vector<Letter> letters;
  int64_t points = 1, position[3] = {0, 0, 0};
  for (auto &[name, letter] : table) {
    letters.push_back(letter);
    points *= letter.size;
  }
  for (int64_t i = 0; i < points; ++i) {
    out.v[position[2]] +=
        alpha * c.inputs[0].v[position[0]] * c.inputs[1].v[position[1]];
    for (Letter &letter : letters) { // the next point
      bool wraps = ++letter.at == letter.size;
      for (int o = 0; o < 3; ++o)
        position[o] +=
            wraps ? -(letter.size - 1) * letter.steps[o] : letter.steps[o];
      if (!wraps)
        break;
      letter.at = 0;
    }
  }
  return {out};
}

Case make(const std::string &equation, std::map<char, int64_t> sizes,
          planpb::DType dtype = planpb::F32, const char *alpha = nullptr) {
  Equation e = split(equation);
  auto shape = [&](const std::string &letters) {
    Shape s;
    for (char letter : letters)
      s.push_back(sizes[letter]);
    return s;
  };
  Case c;
  c.name = fmt::format("einsum {} {}", equation, runtime::dtypeName(dtype));
  for (auto [letter, n] : sizes)
    c.name += fmt::format(" {}{}", letter, n);
  c.op = "einsum";
  c.attrs["equation"] = equation;
  if (alpha)
    c.attrs["alpha"] = alpha;
  bool whole = dtype == planpb::I64 || dtype == planpb::I32;
  double range = whole ? 10 : 1;
  c.inputs = {random(shape(e.a), 1, -range, range, dtype),
              random(shape(e.b), 2, -range, range, dtype)};
  c.outputs = {random(shape(e.out), 3, -range, range, dtype)};
  c.reference = naive;
  c.exact = whole;
  return c;
}

// What the product's result goes through: a bias along its last dimensions,
// GELU's tanh form or its slope.
Tensors finished(const Case &c) {
  Tensors out = naive(c);
  const bool biased = c.attrs.count("bias");
  const auto found = c.attrs.find("gelu");
  const std::string gelu = found == c.attrs.end() ? "none" : found->second;
  const double slopeOfInner = std::sqrt(2 / M_PI);
  Tensor before = out[0];
  for (int64_t i = 0; i < out[0].size(); ++i) {
    if (biased)
      before.v[i] += c.inputs[2].v[i % c.inputs[2].size()];
    const double x = gelu == "gradient" ? c.inputs.back().v[i] : before.v[i];
    const double t = std::tanh(slopeOfInner * (x + 0.044715 * x * x * x));
    out[0].v[i] = before.v[i];
    if (gelu == "gradient")
      out[0].v[i] *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slopeOfInner *
                                         (1 + 3 * 0.044715 * x * x);
    else if (gelu != "none")
      out[0].v[i] = 0.5 * x * (1 + t);
  }
  if (gelu == "keep")
    out.push_back(before);
  return out;
}

// The product of factors that are rounded with the largest power of two that
// leaves them in the range.
Tensors roundedFirst(const Case &c) {
  Case exact = c;
  exact.attrs.erase("rounds");
  const std::string &types = c.attrs.at("rounds");
  for (int o : {0, 1}) {
    const std::vector<double> numbers = runtime::numbersOf(
        (o == 0 ? types.substr(0, 4) : types.substr(5)) == "e4m3"
            ? runtime::kE4M3
            : runtime::kE5M2);
    double largest = 0, scale = 1;
    for (double value : c.inputs[o].v)
      largest =
          std::isfinite(value) ? std::max(largest, std::fabs(value)) : INFINITY;
    if (largest > 0 && std::isfinite(largest)) {
      while (largest * scale > numbers.back())
        scale /= 2;
      while (largest * scale * 2 <= numbers.back())
        scale *= 2;
    }
    for (double &value : exact.inputs[o].v)
      value = runtime::nearest(value * scale, numbers) / scale;
  }
  return naive(exact);
}

// Factors of many magnitudes, so that some numbers are the least there are.
Case round(Case c, const char *types) {
  c.name += fmt::format(" rounds {}", types);
  c.attrs["rounds"] = types;
  for (int o : {0, 1})
    for (int64_t i = 0; i < c.inputs[o].size(); ++i)
      c.inputs[o].v[i] = std::ldexp(c.inputs[o].v[i], int(-(i * 7 % 25)));
  for (int o : {0, 1})
    roundToType(c.inputs[o]);
  return c;
}

Case finish(Case c, const Shape &bias, const std::string &gelu) {
  c.name += fmt::format(" bias {} gelu {}", bias.size(), gelu);
  if (!bias.empty()) {
    c.attrs["bias"] = "1";
    c.inputs.push_back(random(bias, 7));
  }
  if (gelu != "none")
    c.attrs["gelu"] = gelu;
  if (gelu == "gradient")
    c.inputs.push_back(random(c.outputs[0].shape, 8, -3, 3));
  if (gelu == "keep")
    c.outputs.push_back(random(c.outputs[0].shape, 9));
  c.reference = finished;
  return c;
}

// The product, and what is left of a factor when all that the product lacks of
// it is summed: the gradient of a bias beside that of a weight.
Tensors summed(const Case &c) {
  Tensors out = naive(c);
  const int which = c.attrs.at("sum") == "0" ? 0 : 1;
  const Equation e = split(c.attrs.at("equation"));
  const std::string letters = which == 0 ? e.a : e.b;
  const Tensor &x = c.inputs[which];
  Tensor sums = c.outputs[1];
  std::fill(sums.v.begin(), sums.v.end(), 0);
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = i, to = 0, step = 1;
    for (size_t d = letters.size(); d-- > 0;) {
      if (e.out.find(letters[d]) != std::string::npos) {
        to += rest % x.shape[d] * step;
        step *= x.shape[d];
      }
      rest /= x.shape[d];
    }
    sums.v[to] += x.v[i];
  }
  out.push_back(sums);
  return out;
}

Case withSums(Case c, int which, bool keepDims = false) {
  c.name += fmt::format(" sum {}{}", which, keepDims ? " kept" : "");
  c.attrs["sum"] = std::to_string(which);
  const Equation e = split(c.attrs["equation"]);
  const std::string letters = which == 0 ? e.a : e.b;
  Shape shape;
  for (size_t d = 0; d < letters.size(); ++d)
    if (e.out.find(letters[d]) != std::string::npos)
      shape.push_back(c.inputs[which].shape[d]);
    else if (keepDims)
      shape.push_back(1);
  c.outputs.push_back(random(shape, 11));
  c.reference = summed;
  return c;
}

// Small whole numbers in floats: every order of summation is exact.
Case exact(const std::string &equation, std::map<char, int64_t> sizes) {
  Case c = make(equation, sizes);
  c.name += " exact";
  for (Tensor *tensor : {&c.inputs[0], &c.inputs[1], &c.outputs[0]})
    *tensor = random(tensor->shape, 5, -8, 9, planpb::I64),
    tensor->dtype = planpb::F32;
  c.exact = true;
  return c;
}

} // namespace

std::vector<Case> einsumCases() {
  std::vector<Case> cases;
  // Linear layers: forward, gradient of the input, gradient of the weight.
  for (int64_t k : {1, 7, 40, 300, 600})
    for (int64_t n : {1, 5, 16, 33, 70}) {
      cases.push_back(
          make("btk,kn->btn", {{'b', 3}, {'t', 5}, {'k', k}, {'n', n}}));
      cases.push_back(
          make("btn,kn->btk", {{'b', 3}, {'t', 5}, {'k', k}, {'n', n}}));
      cases.push_back(
          make("btk,btn->kn", {{'b', 3}, {'t', 5}, {'k', k}, {'n', n}}));
    }
  // Wider than one block of columns, deeper than one block of sums.
  cases.push_back(exact("mk,kn->mn", {{'m', 17}, {'k', 530}, {'n', 801}}));
  cases.push_back(exact("mk,nk->mn", {{'m', 29}, {'k', 257}, {'n', 800}}));
  cases.push_back(exact("km,kn->nm", {{'m', 61}, {'k', 513}, {'n', 90}}));
  // Attention on [b, t, h, d].
  std::map<char, int64_t> heads = {
      {'b', 2}, {'i', 9}, {'j', 11}, {'h', 3}, {'d', 20}};
  for (const char *equation :
       {"bihd,bjhd->bhij", "bhij,bjhd->bihd", "bhij,bihd->bjhd",
        "bhid,bhjd->bhij", "bihd,bjhd->bhji"})
    cases.push_back(make(equation, heads));
  // Weights with the head dimensions apart; packed QKV.
  cases.push_back(make("btc,chd->bthd",
                       {{'b', 2}, {'t', 7}, {'c', 24}, {'h', 3}, {'d', 8}}));
  cases.push_back(make("bthd,hdc->btc",
                       {{'b', 2}, {'t', 7}, {'c', 24}, {'h', 3}, {'d', 8}}));
  cases.push_back(
      make("btc,cshd->sbhtd",
           {{'b', 2}, {'t', 7}, {'c', 24}, {'s', 3}, {'h', 2}, {'d', 8}}));
  cases.push_back(make("bthd,btc->hdc",
                       {{'b', 2}, {'t', 7}, {'c', 24}, {'h', 3}, {'d', 8}}));
  // No matrix: products element by element, sums of rows, outer products.
  cases.push_back(make("bt,bt->bt", {{'b', 4}, {'t', 9}}));
  cases.push_back(make("btd,btd->bt", {{'b', 4}, {'t', 9}, {'d', 70}}));
  cases.push_back(make("k,k->", {{'k', 1000}}));
  cases.push_back(make("m,n->mn", {{'m', 17}, {'n', 40}}));
  cases.push_back(make("mk,k->m", {{'m', 33}, {'k', 300}}));
  cases.push_back(make("k,kn->n", {{'k', 300}, {'n', 33}}));
  // A summed letter of one input only.
  cases.push_back(
      make("mkx,kn->mn", {{'m', 6}, {'k', 10}, {'x', 4}, {'n', 8}}));
  cases.push_back(make("m,nk->mn", {{'m', 6}, {'k', 10}, {'n', 8}}));
  // Scale, order of the output.
  cases.push_back(make("mk,kn->mn", {{'m', 20}, {'k', 300}, {'n', 40}},
                       planpb::F32, "0.125"));
  cases.push_back(
      make("abc,cd->dba", {{'a', 3}, {'b', 4}, {'c', 20}, {'d', 19}}));
  // Empty: no sums, no rows, no batch.
  cases.push_back(make("mk,kn->mn", {{'m', 5}, {'k', 0}, {'n', 7}}));
  cases.push_back(make("mk,kn->mn", {{'m', 0}, {'k', 4}, {'n', 7}}));
  cases.push_back(
      make("mxk,kxn->mn", {{'m', 5}, {'k', 3}, {'x', 0}, {'n', 7}}));
  cases.push_back(
      make("bmk,bkn->bmn", {{'b', 0}, {'m', 5}, {'k', 4}, {'n', 7}}));
  // Sums of a factor beside the product: as rows and columns of the result, of
  // several letters, and where no library could do it (two letters that lie
  // apart, a batch).
  std::map<char, int64_t> linear = {{'b', 3}, {'t', 5}, {'k', 7}, {'n', 16}};
  for (int which : {0, 1})
    for (const char *equation : {"btk,btn->kn", "btk,btn->nk", "btn,btk->kn"})
      for (bool keepDims : {false, true})
        cases.push_back(withSums(make(equation, linear), which, keepDims));
  cases.push_back(withSums(
      make("bthd,btc->hdc", {{'b', 2}, {'t', 5}, {'h', 3}, {'d', 8}, {'c', 6}}),
      0));
  cases.push_back(withSums(
      make("htd,htc->hdc", {{'h', 3}, {'t', 5}, {'d', 8}, {'c', 6}}), 1));
  cases.push_back(withSums(
      make("hbtd,btc->hdc", {{'b', 2}, {'t', 5}, {'h', 3}, {'d', 8}, {'c', 6}}),
      0));
  // Of factors in 8 bits: in sizes that libraries take, and others; with all
  // that a product does besides; of zeros, and of what is not finite.
  for (const auto &[types, equation] : {std::pair("e4m3,e4m3", "btk,kn->btn"),
                                        std::pair("e5m2,e4m3", "btn,kn->btk"),
                                        std::pair("e4m3,e5m2", "btk,btn->kn"),
                                        std::pair("e4m3,e5m2", "btk,btn->nk")})
    for (int64_t size : {16, 7}) {
      const Case product =
          make(equation, {{'b', 2}, {'t', size}, {'k', 3 * size}, {'n', 16}});
      cases.push_back(round(product, types));
      if (std::string(equation) == "btk,btn->kn")
        for (int which : {0, 1})
          cases.push_back(withSums(round(product, types), which));
      if (std::string(equation) == "btk,kn->btn")
        cases.push_back(finish(round(product, types), {16}, "keep"));
    }
  cases.push_back(
      round(make("etk,ekn->etn", {{'e', 3}, {'t', 16}, {'k', 32}, {'n', 16}}),
            "e4m3,e4m3"));
  cases.push_back(
      round(make("bthd,hdc->btc",
                 {{'b', 2}, {'t', 8}, {'h', 4}, {'d', 8}, {'c', 32}}),
            "e4m3,e4m3"));
  cases.push_back(
      round(make("bth,hc->bct", {{'b', 2}, {'t', 16}, {'h', 16}, {'c', 16}}),
            "e5m2,e4m3"));
  // More than a tile of what is turned.
  cases.push_back(round(make("km,kn->mn", {{'m', 80}, {'k', 144}, {'n', 16}}),
                        "e4m3,e5m2"));
  cases.push_back(round(make("mk,k->m", {{'m', 33}, {'k', 48}}), "e4m3,e4m3"));
  cases.push_back(round(make("k,k->", {{'k', 48}}), "e4m3,e4m3"));
  cases.push_back(
      round(make("mk,kn->mn", {{'m', 5}, {'k', 0}, {'n', 7}}), "e4m3,e4m3"));
  for (double odd : {0.0, double(INFINITY), double(NAN)}) {
    Case c = round(make("mk,kn->mn", {{'m', 16}, {'k', 16}, {'n', 16}}),
                   "e5m2,e4m3");
    c.name += fmt::format(" with {}", odd);
    c.inputs[0].v[37] = odd;
    c.inputs[0].v[38] = -6e4; // beyond the range without a scale
    if (odd == 0)
      std::fill(c.inputs[1].v.begin(), c.inputs[1].v.end(), 0);
    cases.push_back(c);
  }
  // Products that end with a bias, GELU, or its slope; rows of 16 begin where
  // libraries want them, rows of 5 do not.
  for (int64_t n : {5, 16})
    for (const char *gelu : {"none", "forward", "keep", "gradient"})
      for (const Shape &bias : {Shape{}, Shape{n}}) {
        if (std::string(gelu) == "none" && bias.empty())
          continue;
        cases.push_back(finish(
            make("btk,kn->btn", {{'b', 3}, {'t', 5}, {'k', 7}, {'n', n}}), bias,
            gelu));
      }
  cases.push_back(
      finish(make("btk,nk->btn", {{'b', 2}, {'t', 3}, {'k', 9}, {'n', 8}},
                  planpb::F32, "0.5"),
             {8}, "keep"));
  cases.push_back(
      finish(make("btc,chd->bthd",
                  {{'b', 2}, {'t', 7}, {'c', 24}, {'h', 3}, {'d', 8}}),
             {3, 8}, "forward"));
  cases.push_back(
      finish(make("bmk,bkn->bmn", {{'b', 3}, {'m', 5}, {'k', 4}, {'n', 8}}),
             {8}, "gradient"));
  cases.push_back(
      finish(make("mk,kn->mn", {{'m', 5}, {'k', 0}, {'n', 8}}), {8}, "keep"));
  cases.push_back(finish(make("m,m->m", {{'m', 9}}), {}, "forward"));
  // Other types.
  for (planpb::DType dtype : {planpb::F64, planpb::I64, planpb::I32}) {
    cases.push_back(
        make("btk,kn->btn", {{'b', 2}, {'t', 3}, {'k', 9}, {'n', 5}}, dtype));
    cases.push_back(make("bihd,bjhd->bhij",
                         {{'b', 2}, {'i', 3}, {'j', 4}, {'h', 2}, {'d', 5}},
                         dtype));
    cases.push_back(make("bt,bt->bt", {{'b', 4}, {'t', 9}}, dtype));
  }
  return cases;
}

} // namespace merak::conformance
