// The library kernels of one training step of a GPT, in order, without the
// generated element-wise ones: where the time goes, kernel by kernel.
#include "bench/Launcher.h"

#include <benchmark/benchmark.h>
#include <deque>

namespace merak::bench {
namespace {

struct Gpt {
  int64_t layers, d, heads, vocab, t, b;
};

// Builds the launches once; buffers of a layer are its own, as in a plan.
class Step {
public:
  Step(cpu::CpuBackend &backend, const Gpt &g) : backend_(backend), g_(g) {
    const int64_t d = g.d, h = g.heads, v = g.vocab;
    View ids = buffer({g.b, g.t}, planpb::I64);
    View wte = parameter({v, d});
    add("gather", {{"axis", "0"}}, {wte, ids}, {stream()});
    for (int64_t layer = 0; layer < g.layers; ++layer) {
      norm();
      linear(d, 3 * d);
      attention(h, d / h);
      linear(d, d);
      norm();
      linear(d, 4 * d);
      linear(4 * d, d);
    }
    norm();
    View x = stream(), logits = buffer({g.b, g.t, v}),
         dlogits = buffer({g.b, g.t, v});
    View loss = buffer({g.b, g.t}), lse = buffer({g.b, g.t});
    add("einsum", {{"equation", "btk,vk->btv"}}, {x, wte}, {logits});
    add("softmax_cross_entropy", {}, {logits, ids}, {loss, lse});
    add("softmax_cross_entropy_grad", {}, {logits, ids, lse, loss}, {dlogits},
        {ScalarValue::integer(0)});
    add("einsum", {{"equation", "btv,vk->btk"}}, {dlogits, wte}, {stream()});
    add("einsum", {{"equation", "btv,btk->vk"}}, {dlogits, x}, {grads_[0]});
    add("scatter_add", {{"axis", "0"}}, {stream(), ids}, {grads_[0]}, {}, true);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      View m = buffer(parameters_[i].shape), s = buffer(parameters_[i].shape);
      for (int64_t j = 0; j < s.elements(); ++j)
        static_cast<float *>(s.data)[j] = 0.1f;
      add("adamw_update", {}, {grads_[i]}, {parameters_[i], m, s},
          {ScalarValue::real(0), ScalarValue::integer(3)});
    }
  }

  void run() {
    for (Launch &launch : launches_)
      launch();
  }
  // The same, only the kernels of this name.
  void run(const std::string &op) {
    for (Launch &launch : launches_)
      if (launch.op() == op)
        launch();
  }

private:
  View buffer(Shape shape, planpb::DType dtype = planpb::F32) {
    return buffers_.emplace_back(std::move(shape), dtype).view;
  }
  View stream() { return buffer({g_.b, g_.t, g_.d}); }
  View parameter(Shape shape) {
    parameters_.push_back(buffer(shape));
    grads_.push_back(buffer(shape));
    return parameters_.back();
  }
  void add(const std::string &op, const Attrs &attrs, std::vector<View> inputs,
           std::vector<View> outputs, std::vector<ScalarValue> scalars = {},
           bool accumulate = false) {
    launches_.emplace_back(backend_, op, attrs, std::move(inputs),
                           std::move(outputs), std::move(scalars), accumulate);
  }
  void linear(int64_t in, int64_t out) {
    View x = buffer({g_.b, g_.t, in}), y = buffer({g_.b, g_.t, out});
    View w = parameter({in, out}), dw = grads_.back();
    View dx = buffer({g_.b, g_.t, in}), dy = buffer({g_.b, g_.t, out});
    add("einsum", {{"equation", "btk,kn->btn"}}, {x, w}, {y});
    add("einsum", {{"equation", "btn,kn->btk"}}, {dy, w}, {dx});
    add("einsum", {{"equation", "btk,btn->kn"}}, {x, dy}, {dw});
    parameter({out});
    add("reduce_sum", {{"axes", "0,1"}}, {dy}, {grads_.back()});
  }
  void norm() {
    View x = stream(), y = stream(), dx = stream(), dy = stream();
    View mean = buffer({g_.b, g_.t}), rstd = buffer({g_.b, g_.t});
    View scale = parameter({g_.d}), dscale = grads_.back();
    View bias = parameter({g_.d}), dbias = grads_.back();
    Attrs attrs = {{"axis", "2"}, {"scale", "1"}, {"bias", "1"}};
    add("layer_norm", attrs, {x, scale, bias}, {y, mean, rstd});
    add("layer_norm_grad", attrs, {dy, x, mean, rstd, scale}, {dx});
    add("layer_norm_param_grad", attrs, {dy, x, mean, rstd}, {dscale, dbias});
  }
  void attention(int64_t h, int64_t hd) {
    Shape packed = {g_.b, g_.t, 3, h, hd};
    View qkv = buffer(packed), dqkv = buffer(packed);
    auto part = [&](View view, int64_t i) {
      view.data = static_cast<float *>(view.data) + i * h * hd;
      view.shape.erase(view.shape.begin() + 2);
      view.strides.erase(view.strides.begin() + 2);
      return view;
    };
    View out = buffer({g_.b, g_.t, h, hd}), dout = buffer({g_.b, g_.t, h, hd});
    View lse = buffer({g_.b, h, g_.t});
    Attrs attrs = {{"scale", "0.125"}, {"causal", "1"}, {"mask", "none"}};
    add("attention", attrs, {part(qkv, 0), part(qkv, 1), part(qkv, 2)},
        {out, lse});
    add("attention_grad", attrs,
        {part(qkv, 0), part(qkv, 1), part(qkv, 2), out, lse, dout},
        {part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)});
  }

  cpu::CpuBackend &backend_;
  Gpt g_;
  std::deque<Buffer> buffers_;
  std::vector<View> parameters_, grads_;
  std::deque<Launch> launches_;
};

void step(benchmark::State &state, Gpt g, const char *op) {
  runtime::ThreadPool pool(static_cast<int>(state.range(0)));
  cpu::CpuBackend backend(pool);
  Step work(backend, g);
  for (auto _ : state)
    op ? work.run(op) : work.run();
}

void registerSteps() {
  const std::pair<const char *, Gpt> models[] = {
      {"gpt4x128", {4, 128, 4, 65, 64, 12}},
      {"gpt2-124m", {12, 768, 12, 50257, 64, 4}}};
  const char *ops[] = {nullptr,
                       "einsum",
                       "attention",
                       "attention_grad",
                       "layer_norm",
                       "layer_norm_grad",
                       "layer_norm_param_grad",
                       "reduce_sum",
                       "softmax_cross_entropy",
                       "softmax_cross_entropy_grad",
                       "gather",
                       "scatter_add",
                       "adamw_update"};
  for (const auto &[name, model] : models)
    for (const char *op : ops)
      benchmark::RegisterBenchmark(
          (std::string("step/") + name + "/" + (op ? op : "all")).c_str(),
          [model = model, op](benchmark::State &state) {
            step(state, model, op);
          })
          ->Arg(1)
          ->Arg(2)
          ->UseRealTime()
          ->MeasureProcessCPUTime()
          ->Unit(benchmark::kMillisecond);
}
const bool kRegistered = (registerSteps(), true);

} // namespace
} // namespace merak::bench
