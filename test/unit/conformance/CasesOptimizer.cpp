// sgd_update, adamw_update, adagrad_update, the same with _rows, the steps that
// rows were left out of (_replay), square_sum, clip_factor, scale.
#include "test/unit/conformance/Harness.h"

#include "runtime/core/DType.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <set>

namespace merak::conformance {
namespace {

using runtime::ScalarValue;

Case sgdCase(const Shape &shape, double momentum, bool nesterov,
             double dampening, bool clip, int64_t step,
             std::optional<int64_t> first = std::nullopt) {
  Case c;
  c.op = "sgd_update";
  c.name =
      fmt::format("sgd_update [{}] momentum {}{} dampening {}{} step {}",
                  fmt::join(shape, " "), momentum, nesterov ? " nesterov" : "",
                  dampening, clip ? " clip" : "", step);
  if (first)
    c.name += fmt::format(" count {}", *first + step - 1);
  const double decay = 0.1, lr = 0.05;
  // Without a count the momentum begins as the gradient.
  const bool begins = !first && step == 1;
  const double rest = first && *first + step <= 1 ? 1 : 1 - dampening;
  c.attrs = {{"momentum", fmt::format("{}", momentum)},
             {"nesterov", nesterov ? "1" : "0"},
             {"dampening", fmt::format("{}", dampening)},
             {"weight_decay", fmt::format("{}", decay)},
             {"clip", clip ? "1" : "0"}};
  if (first)
    c.attrs["first_count"] = fmt::format("{}", *first);
  c.inputs = {random(shape, 1)};
  if (clip)
    c.inputs.push_back(random({1}, 2, 0.2, 0.9));
  c.outputs = {random(shape, 3)};
  if (momentum != 0)
    c.outputs.push_back(random(shape, 4));
  c.scalars = {ScalarValue::real(lr), ScalarValue::integer(step)};
  c.updates = true;
  c.reference = [=](const Case &k) {
    Tensors out = k.outputs;
    for (int64_t i = 0; i < out[0].size(); ++i) {
      double &p = out[0].v[i];
      double g = k.inputs[0].v[i] * (clip ? k.inputs[1].v[0] : 1) + decay * p;
      if (momentum != 0) {
        double &b = out[1].v[i];
        b = begins ? g : momentum * b + rest * g;
        g = nesterov ? g + momentum * b : b;
      }
      p -= lr * g;
    }
    return out;
  };
  c.tolerance = 1e-6;
  return c;
}

Case adamWCase(const Shape &shape, bool clip, int64_t step) {
  Case c;
  c.op = "adamw_update";
  c.name = fmt::format("adamw_update [{}]{} step {}", fmt::join(shape, " "),
                       clip ? " clip" : "", step);
  const double b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1, lr = 0.01;
  c.attrs = {{"beta1", "0.9"},
             {"beta2", "0.95"},
             {"eps", "1e-8"},
             {"weight_decay", "0.1"},
             {"clip", clip ? "1" : "0"}};
  c.inputs = {random(shape, 1)};
  if (clip)
    c.inputs.push_back(random({}, 2, 0.2, 0.9));
  c.outputs = {random(shape, 3), random(shape, 4), random(shape, 5, 0, 1)};
  c.scalars = {ScalarValue::real(lr), ScalarValue::integer(step)};
  c.updates = true;
  c.reference = [=](const Case &k) {
    Tensors out = k.outputs;
    for (int64_t i = 0; i < out[0].size(); ++i) {
      double g = k.inputs[0].v[i] * (clip ? k.inputs[1].v[0] : 1);
      double &p = out[0].v[i], &m = out[1].v[i], &v = out[2].v[i];
      p *= 1 - lr * decay;
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      double t = static_cast<double>(step);
      p -= lr * (m / (1 - std::pow(b1, t))) /
           (std::sqrt(v / (1 - std::pow(b2, t))) + eps);
    }
    return out;
  };
  c.tolerance = 1e-6;
  return c;
}

// Adam as torch.optim and as ONNX computes it: the decay goes into the
// gradient.
Case adamCase(const Shape &shape, bool onnx, int64_t first, int64_t step) {
  Case c;
  c.op = "adamw_update";
  c.name =
      fmt::format("adamw_update [{}] as Adam{} count {} step {}",
                  fmt::join(shape, " "), onnx ? " of ONNX" : "", first, step);
  const double b1 = 0.9, b2 = 0.95, eps = 1e-3, l2 = 0.1, lr = 0.01;
  const double post = onnx ? 0.05 : 0;
  c.attrs = {{"beta1", "0.9"},
             {"beta2", "0.95"},
             {"eps", "1e-3"},
             {"weight_decay", "0"},
             {"l2", "0.1"},
             {"plain_root", onnx ? "1" : "0"},
             {"clip", "0"},
             {"first_count", fmt::format("{}", first)},
             {"post_decay", fmt::format("{}", post)}};
  c.inputs = {random(shape, 1)};
  c.outputs = {random(shape, 3), random(shape, 4), random(shape, 5, 0, 1)};
  c.scalars = {ScalarValue::real(lr), ScalarValue::integer(step)};
  c.updates = true;
  c.reference = [=](const Case &k) {
    Tensors out = k.outputs;
    const double t = static_cast<double>(first + step - 1);
    const double c1 = t > 0 ? 1 - std::pow(b1, t) : 1;
    const double c2 = t > 0 ? std::sqrt(1 - std::pow(b2, t)) : 1;
    for (int64_t i = 0; i < out[0].size(); ++i) {
      double &p = out[0].v[i], &m = out[1].v[i], &v = out[2].v[i];
      double g = k.inputs[0].v[i] + l2 * p;
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      p -= onnx ? lr * c2 / c1 * m / (std::sqrt(v) + eps)
                : lr / c1 * m / (std::sqrt(v) / c2 + eps);
      p *= 1 - post;
    }
    return out;
  };
  c.tolerance = 1e-6;
  return c;
}

Case adagradCase(const Shape &shape, bool clip, int64_t first, int64_t step) {
  Case c;
  c.op = "adagrad_update";
  c.name = fmt::format("adagrad_update [{}]{} count {} step {}",
                       fmt::join(shape, " "), clip ? " clip" : "", first, step);
  const double eps = 1e-3, decay = 0.1, lr = 0.05, lrDecay = 0.5;
  c.attrs = {{"eps", "1e-3"},
             {"weight_decay", "0.1"},
             {"lr_decay", "0.5"},
             {"first_count", fmt::format("{}", first)},
             {"clip", clip ? "1" : "0"}};
  c.inputs = {random(shape, 1)};
  if (clip)
    c.inputs.push_back(random({1}, 2, 0.2, 0.9));
  c.outputs = {random(shape, 3), random(shape, 4, 0, 1)};
  c.scalars = {ScalarValue::real(lr), ScalarValue::integer(step)};
  c.updates = true;
  c.reference = [=](const Case &k) {
    Tensors out = k.outputs;
    for (int64_t i = 0; i < out[0].size(); ++i) {
      double &p = out[0].v[i], &sum = out[1].v[i];
      double g = k.inputs[0].v[i] * (clip ? k.inputs[1].v[0] : 1) + decay * p;
      sum += g * g;
      p -= lr / (1 + lrDecay * double(first + step - 1)) * g /
           (std::sqrt(sum) + eps);
    }
    return out;
  };
  c.tolerance = 1e-6;
  return c;
}

// An update of a table [rows, columns...] by the rows that ids name, each once:
// what the update does, on these rows alone. Negative ids and those of other
// ranks, which begin at `first`, name none.
Case rowsCase(Case whole, const Shape &idShape, int64_t first,
              planpb::DType idType) {
  const Shape table = whole.outputs[0].shape;
  const bool clip = whole.attrs.at("clip") == "1";
  const int64_t columns = elements({table.begin() + 1, table.end()});
  Case c = whole;
  c.op = whole.op + "_rows";
  c.name =
      fmt::format("{} rows [{}] from {} {}", whole.name,
                  fmt::join(idShape, " "), first, runtime::dtypeName(idType));
  std::vector<double> ids;
  for (int64_t i = 0; i < elements(idShape); ++i)
    ids.push_back(static_cast<double>(i % 3 == 2 ? -1 : first - 1 + 2 * i));
  Shape rows = idShape;
  rows.insert(rows.end(), table.begin() + 1, table.end());
  c.inputs = {random(rows, 1)};
  if (clip)
    c.inputs.push_back(whole.inputs[1]);
  c.inputs.push_back(integers(idShape, ids, idType));
  c.scalars.push_back(ScalarValue::integer(first));
  c.reference = [=](const Case &k) {
    Tensors out = k.outputs;
    const Tensor &named = k.inputs.back();
    for (int64_t i = 0; i < named.size(); ++i) {
      const auto id = static_cast<int64_t>(named.v[i]);
      const int64_t row = id - first;
      if (id < 0 || row < 0 || row >= table[0])
        continue;
      auto of = [&](const Tensor &tensor, int64_t at) {
        return Tensor{tensor.dtype,
                      {columns},
                      {tensor.v.begin() + at * columns,
                       tensor.v.begin() + (at + 1) * columns}};
      };
      Case one = whole;
      one.inputs = {of(k.inputs[0], i)};
      if (clip)
        one.inputs.push_back(k.inputs[1]);
      for (size_t s = 0; s < out.size(); ++s)
        one.outputs[s] = of(out[s], row);
      const Tensors stepped = whole.reference(one);
      for (size_t s = 0; s < out.size(); ++s)
        std::copy(stepped[s].v.begin(), stepped[s].v.end(),
                  out[s].v.begin() + row * columns);
    }
    return out;
  };
  // What a layout repeats names a row twice.
  c.derive = [](Case &k) {
    std::set<double> seen;
    for (double &id : k.inputs.back().v)
      if (!seen.insert(id).second)
        id = -1;
  };
  return c;
}

// The same, and the new parameter in 16 bits beside it.
Case copiedCase(const Case &whole, planpb::DType half) {
  Case c = whole;
  c.name += fmt::format(" copied to {}", runtime::dtypeName(half));
  c.outputs.push_back(random(whole.outputs[0].shape, 9, -1, 1, half));
  roundToType(c.outputs.back());
  c.reference = [whole, half](const Case &k) {
    Case without = k;
    without.outputs.pop_back();
    Tensors out = whole.reference(without);
    out.push_back({half, out[0].shape, out[0].v});
    return out;
  };
  return c;
}

// A rows case whose rows reach the step, which is noted as `numbers`.
Case reachingCase(Case c, const std::vector<double> &numbers) {
  constexpr int64_t kSteps = 4;
  const Case before = c;
  const int64_t rows = c.outputs[0].shape[0], step = c.scalars[1].asInteger(),
                first = c.scalars[2].asInteger();
  c.name += " reaches";
  c.attrs["reaches"] = "1";
  c.outputs.push_back(random({rows}, 7, 0, 3, planpb::I32));
  c.outputs.push_back(random({kSteps, 4}, 8));
  c.reference = [=](const Case &k) {
    Case without = k;
    without.outputs.resize(before.outputs.size());
    Tensors out = before.reference(without);
    Tensor reached = k.outputs[out.size()], history = k.outputs[out.size() + 1];
    for (double id : k.inputs.back().v)
      if (const auto row = static_cast<int64_t>(id) - first;
          id >= 0 && row >= 0 && row < rows)
        reached.v[row] = static_cast<double>(step);
    for (size_t i = 0; i < numbers.size(); ++i)
      history.v[step % kSteps * 4 + i] = numbers[i];
    out.push_back(reached);
    out.push_back(history);
    return out;
  };
  return c;
}

// Steps with gradients of zero, of rows that ids name (several times, from the
// end, of other ranks) or of one stripe of the table.
Case replayCase(const Case &whole, bool named, planpb::DType idType,
                int64_t first, int64_t stripes) {
  constexpr int64_t kSteps = 5, kStep = 9;
  const Shape table = whole.outputs[0].shape;
  const int64_t columns = elements({table.begin() + 1, table.end()});
  const std::string kind = whole.op.substr(0, whole.op.find('_'));
  Case c = whole;
  c.op = kind + "_replay";
  c.name = fmt::format("{} replay {} {} {} {}", whole.name, named, first,
                       stripes, runtime::dtypeName(idType));
  c.attrs.erase("clip");
  Tensor history = random({kSteps, 4}, 11, 0.5, 0.99);
  for (int64_t s = 0; s < kSteps; ++s) // one changed nothing
    history.v[s * 4] = s == 2 ? 0 : 1;
  if (kind == "sgd")
    for (int64_t s = 0; s < kSteps; ++s)
      history.v[s * 4 + 3] = s == 1;
  c.inputs = {history};
  c.scalars = {ScalarValue::integer(kStep)};
  const int64_t global = table[0] + 2 * first;
  if (named) {
    std::vector<double> ids;
    for (int64_t i = 0; i < 9; ++i)
      ids.push_back(static_cast<double>(i == 4 ? -1 - first : i % 4 + i / 4));
    c.inputs.push_back(integers({3, 3}, ids, idType));
    c.scalars.push_back(ScalarValue::integer(first));
    c.attrs["rows_global"] = fmt::format("{}", global);
  } else {
    c.attrs["stripes"] = fmt::format("{}", stripes);
  }
  std::vector<double> reached;
  for (int64_t row = 0; row < table[0]; ++row)
    reached.push_back(static_cast<double>(4 + row % 6));
  c.outputs.push_back(integers({table[0]}, reached, planpb::I32));
  const auto real = [=](const char *name) {
    const auto found = whole.attrs.find(name);
    return found == whole.attrs.end() ? 0.0 : std::stod(found->second);
  };
  const auto step = [=](const double *noted, double &p, double *a, double *b) {
    if (kind == "adamw") {
      const double g = real("l2") * p;
      *a = real("beta1") * *a + (1 - real("beta1")) * g;
      *b = real("beta2") * *b + (1 - real("beta2")) * g * g;
      p = p * noted[1] -
          noted[2] * (*a / (std::sqrt(*b) / noted[3] + real("eps")));
      p *= 1 - real("post_decay");
    } else if (kind == "sgd") {
      double g = real("weight_decay") * p;
      if (a) {
        *a = noted[3] != 0 ? g : real("momentum") * *a + noted[2] * g;
        g = real("nesterov") != 0 ? g + real("momentum") * *a : *a;
      }
      p -= noted[1] * g;
    } else {
      const double g = real("weight_decay") * p;
      *a += g * g;
      p -= noted[1] * g / (std::sqrt(*a) + real("eps"));
    }
  };
  c.reference = [=](const Case &k) {
    Tensors out = k.outputs;
    Tensor &at = out.back();
    std::set<int64_t> rows;
    const int64_t size = (table[0] + stripes - 1) / stripes;
    if (named)
      for (double id : k.inputs[1].v)
        rows.insert(static_cast<int64_t>(id < 0 ? id + double(global) : id) -
                    first);
    else
      for (int64_t row = 0; row < size; ++row)
        rows.insert(kStep % stripes * size + row);
    const int64_t until = named ? kStep - 1 : kStep;
    for (int64_t row : rows) {
      if (row < 0 || row >= table[0])
        continue;
      for (auto s = static_cast<int64_t>(at.v[row]) + 1; s <= until; ++s) {
        const double *noted = &k.inputs[0].v[s % kSteps * 4];
        for (int64_t i = row * columns;
             noted[0] != 0 && i < (row + 1) * columns; ++i)
          step(noted, out[0].v[i], out.size() > 2 ? &out[1].v[i] : nullptr,
               out.size() > 3 ? &out[2].v[i] : nullptr);
      }
      at.v[row] = std::max(at.v[row], static_cast<double>(until));
    }
    return out;
  };
  c.derive = {};
  return c;
}

Case squareSumCase(const Shape &shape) {
  Case c;
  c.op = "square_sum";
  c.name = fmt::format("square_sum [{}]", fmt::join(shape, " "));
  c.inputs = {random(shape, 1)};
  c.outputs = {random({}, 2)};
  c.reference = [](const Case &k) {
    Tensor out = zeros({});
    for (double x : k.inputs[0].v)
      out.v[0] += x * x;
    return Tensors{out};
  };
  c.tolerance = 2e-7;
  return c;
}

// Of squares of gradients times `scale`, if it is not 1.
Case clipFactorCase(const std::vector<double> &squares, double maxNorm,
                    double scale = 1) {
  Case c;
  c.op = "clip_factor";
  c.name =
      fmt::format("clip_factor {} of {} by {}", maxNorm, squares.size(), scale);
  if (scale != 1)
    c.scalars = {runtime::ScalarValue::real(scale)};
  c.attrs["max_norm"] = fmt::format("{}", maxNorm);
  c.inputs = {
      integers({static_cast<int64_t>(squares.size())}, squares, planpb::F32)};
  c.outputs = {random({}, 1), random({1}, 2)};
  c.reference = [maxNorm, scale](const Case &k) {
    double sum = 0;
    for (double x : k.inputs[0].v)
      sum += x;
    double norm = std::sqrt(sum) / scale;
    return Tensors{
        {planpb::F32, {}, {norm}},
        {planpb::F32, {1}, {std::min(1.0, maxNorm / (norm + 1e-6)) / scale}}};
  };
  c.tolerance = 1e-6;
  return c;
}

Case scaleCase(const Shape &shape, double factor) {
  Case c;
  c.op = "scale";
  c.name = fmt::format("scale [{}] by {}", fmt::join(shape, " "), factor);
  c.inputs = {random(shape, 1)};
  c.outputs = {random(shape, 2)};
  c.scalars = {runtime::ScalarValue::real(factor)};
  c.reference = [factor](const Case &k) {
    Tensor out = k.inputs[0];
    for (double &x : out.v)
      x *= factor;
    return Tensors{out};
  };
  return c;
}

} // namespace

std::vector<Case> optimizerCases() {
  std::vector<Case> cases;
  for (const Shape &shape :
       {Shape{7, 33}, Shape{}, Shape{0, 3}, Shape{40000}, Shape{3, 4, 5}}) {
    cases.push_back(sgdCase(shape, 0, false, 0, false, 3));
    cases.push_back(sgdCase(shape, 0.9, false, 0.2, true, 3));
    cases.push_back(adamWCase(shape, false, 1));
    cases.push_back(adamWCase(shape, true, 7));
    cases.push_back(adagradCase(shape, false, 0, 1));
    cases.push_back(adagradCase(shape, true, 1, 5));
    cases.push_back(squareSumCase(shape));
  }
  for (bool onnx : {false, true})
    for (int64_t first : {0, 1})
      for (int64_t step : {1, 4})
        cases.push_back(adamCase({5, 9}, onnx, first, step));
  for (bool nesterov : {false, true})
    for (int64_t step : {1, 2})
      cases.push_back(sgdCase({5, 9}, 0.9, nesterov, 0, false, step));
  for (int64_t first : {0, 1})
    for (int64_t step : {1, 2})
      cases.push_back(
          sgdCase({5, 9}, 0.9, first == 1, 0.25, false, step, first));
  for (planpb::DType ids : {planpb::I64, planpb::I32})
    for (const Case &whole :
         {sgdCase({11, 5}, 0, false, 0, false, 3),
          sgdCase({11, 5}, 0.9, false, 0.2, true, 3),
          adamWCase({11, 3, 4}, true, 7), adamWCase({11, 40}, false, 1),
          adagradCase({11, 5}, true, 1, 5), adamWCase({0, 4}, false, 2)}) {
      cases.push_back(rowsCase(whole, {5}, 0, ids));
      cases.push_back(rowsCase(whole, {1, 8}, 3, ids));
    }
  cases.push_back(
      reachingCase(rowsCase(sgdCase({11, 5}, 0.9, false, 0.2, true, 3), {1, 8},
                            3, planpb::I64),
                   {1, 0.05, 0.8, 0}));
  cases.push_back(
      reachingCase(rowsCase(adamWCase({11, 40}, false, 1), {5}, 0, planpb::I32),
                   {1, 0.999, 0.01 / (1 - 0.9), std::sqrt(1 - 0.95)}));
  cases.push_back(reachingCase(
      rowsCase(adagradCase({11, 5}, true, 1, 5), {5}, 0, planpb::I64),
      {1, 0.05 / 3.5, 0, 0}));
  for (const Case &whole :
       {sgdCase({11, 5}, 0, false, 0, false, 3),
        sgdCase({11, 5}, 0.9, false, 0.2, false, 3),
        sgdCase({11, 3, 4}, 0.9, true, 0, false, 3),
        adamWCase({11, 3, 4}, false, 7), adamWCase({11, 200}, false, 7),
        adamCase({11, 9}, false, 1, 4), adamCase({11, 40}, true, 1, 4),
        adagradCase({11, 5}, false, 1, 5), adamWCase({0, 4}, false, 2)}) {
    cases.push_back(replayCase(whole, true, planpb::I64, 0, 1));
    cases.push_back(replayCase(whole, true, planpb::I32, 3, 1));
    cases.push_back(replayCase(whole, false, planpb::I64, 0, 1));
    cases.push_back(replayCase(whole, false, planpb::I64, 0, 4));
  }
  for (planpb::DType half : {planpb::BF16, planpb::F16})
    for (const Case &whole :
         {sgdCase({7, 33}, 0, false, 0, true, 3),
          sgdCase({7, 33}, 0.9, false, 0.2, false, 3), adamWCase({}, true, 2),
          adamWCase({0, 3}, false, 2), adamWCase({3, 4, 5}, false, 7),
          adamWCase({4103}, true, 7), adagradCase({3, 45}, true, 1, 5)})
      cases.push_back(copiedCase(whole, half));
  cases.push_back(squareSumCase({300000}));
  // More than a chunk of a device's kernels, and no whole number of packs.
  cases.push_back(adamWCase({4103}, true, 7));
  cases.push_back(sgdCase({4103}, 0.9, false, 0, true, 2));
  cases.push_back(sgdCase({4103}, 0, false, 0, false, 2));
  cases.push_back(squareSumCase({3, 70000}));
  cases.push_back(clipFactorCase({3, 4, 9}, 1));   // norm 4: clipped
  cases.push_back(clipFactorCase({3, 4, 9}, 100)); // within the bound
  cases.push_back(clipFactorCase({0}, 1));
  cases.push_back(clipFactorCase({3, 4, 9}, 1, 0.25)); // norm 16
  cases.push_back(clipFactorCase({3, 4, 9}, 1, 16));   // norm 0.25
  cases.push_back(scaleCase({}, 4));
  cases.push_back(scaleCase({7, 33}, -0.5));
  cases.push_back(scaleCase({0, 3}, 2));
  return cases;
}

} // namespace merak::conformance
