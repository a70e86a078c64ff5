// Library kernels of the CPU alone: matrix products against the machine's peak,
// and the others against memory. The last argument is the number of threads.
#include "bench/Launcher.h"

#include <benchmark/benchmark.h>
#include <immintrin.h>

namespace merak::bench {
namespace {

// ------------------------------------------------------------ peak

// Independent fused multiply-adds in registers: what the cores can do at most.
__attribute__((target("avx512f"))) float spin512(int64_t rounds) {
  __m512 acc[24];
#pragma GCC unroll 24
  for (__m512 &a : acc)
    a = _mm512_set1_ps(1e-3f);
  __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-6f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (__m512 &a : acc) {
      a = _mm512_fmadd_ps(a, x, y);
      asm volatile("" : "+v"(a)); // keeps each in its register
    }
  }
  __m512 sum = acc[0];
#pragma GCC unroll 24
  for (int i = 1; i < 24; ++i)
    sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}
__attribute__((target("avx2,fma"))) float spin256(int64_t rounds) {
  __m256 acc[12];
#pragma GCC unroll 12
  for (__m256 &a : acc)
    a = _mm256_set1_ps(1e-3f);
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-6f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m256 &a : acc) {
      a = _mm256_fmadd_ps(a, x, y);
      asm volatile("" : "+x"(a));
    }
  }
  __m256 sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i)
    sum = _mm256_add_ps(sum, acc[i]);
  return _mm256_cvtss_f32(sum);
}

void rate(benchmark::State &state, const char *name, double perIteration) {
  state.counters[name] = benchmark::Counter(
      perIteration, benchmark::Counter::kIsIterationInvariantRate,
      benchmark::Counter::kIs1000);
}

void peak(benchmark::State &state) {
  const int threads = static_cast<int>(state.range(0));
  runtime::ThreadPool pool(threads);
  const bool wide = __builtin_cpu_supports("avx512f");
  constexpr int64_t kRounds = 1000000;
  for (auto _ : state)
    pool.parallelFor(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float value = wide ? spin512(kRounds) : spin256(kRounds);
        benchmark::DoNotOptimize(value);
      }
    });
  rate(state, "flops", 2.0 * threads * kRounds * (wide ? 24 * 16 : 12 * 8));
}
BENCHMARK(peak)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// ------------------------------------------------------------ products

// m, n, k, A transposed, B transposed, threads.
void gemm(benchmark::State &state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const bool ta = state.range(3), tb = state.range(4);
  runtime::ThreadPool pool(static_cast<int>(state.range(5)));
  cpu::CpuBackend backend(pool);
  Buffer a(ta ? Shape{k, m} : Shape{m, k}), b(tb ? Shape{n, k} : Shape{k, n});
  Buffer c({m, n});
  std::string equation = std::string(ta ? "km" : "mk") + (tb ? ",nk" : ",kn");
  Launch launch(backend, "einsum", {{"equation", equation + "->mn"}},
                {a.view, b.view}, {c.view});
  for (auto _ : state)
    launch();
  rate(state, "flops", 2.0 * static_cast<double>(m * n * k));
}
void gemmShapes(benchmark::internal::Benchmark *bench) {
  for (int threads : {1, 2}) {
    bench->Args({1024, 1024, 1024, 0, 0, threads});
    // GPT 4 layers d=128: 768 tokens.
    bench->Args({768, 384, 128, 0, 0, threads});
    bench->Args({768, 512, 128, 0, 0, threads});
    bench->Args({768, 128, 512, 0, 0, threads});
    bench->Args({768, 128, 512, 0, 1, threads});
    bench->Args({128, 512, 768, 1, 0, threads});
    bench->Args({512, 128, 768, 1, 0, threads});
    bench->Args({768, 65, 128, 0, 1, threads});
    // GPT-2 124M: 256 tokens.
    bench->Args({256, 2304, 768, 0, 0, threads});
    bench->Args({256, 3072, 768, 0, 0, threads});
    bench->Args({256, 768, 3072, 0, 0, threads});
    bench->Args({256, 768, 3072, 0, 1, threads});
    bench->Args({768, 3072, 256, 1, 0, threads});
    bench->Args({3072, 768, 256, 1, 0, threads});
    bench->Args({256, 50257, 768, 0, 1, threads});
    bench->Args({256, 768, 50257, 0, 0, threads});
    bench->Args({50257, 768, 256, 1, 0, threads});
  }
}
BENCHMARK(gemm)->Apply(gemmShapes)->UseRealTime()->MeasureProcessCPUTime();

// ------------------------------------------------------------ the others

// b, t, h, d, threads: causal attention on a packed [b, t, 3, h, d] tensor.
void attention(benchmark::State &state, bool grad) {
  const int64_t b = state.range(0), t = state.range(1), h = state.range(2);
  const int64_t d = state.range(3);
  runtime::ThreadPool pool(static_cast<int>(state.range(4)));
  cpu::CpuBackend backend(pool);
  Buffer qkv({b, t, 3, h, d}), dqkv({b, t, 3, h, d});
  auto part = [&](const Buffer &buffer, int64_t i) {
    View view = buffer.view;
    view.data = static_cast<float *>(view.data) + i * h * d;
    view.shape.erase(view.shape.begin() + 2);
    view.strides.erase(view.strides.begin() + 2);
    return view;
  };
  Buffer out({b, t, h, d}), dout({b, t, h, d}), lse({b, h, t});
  Attrs attrs = {{"scale", "0.125"}, {"causal", "1"}, {"mask", "none"}};
  Launch forward(backend, "attention", attrs,
                 {part(qkv, 0), part(qkv, 1), part(qkv, 2)},
                 {out.view, lse.view});
  Launch backward(
      backend, "attention_grad", attrs,
      {part(qkv, 0), part(qkv, 1), part(qkv, 2), out.view, lse.view, dout.view},
      {part(dqkv, 0), part(dqkv, 1), part(dqkv, 2)});
  forward();
  for (auto _ : state)
    grad ? backward() : forward();
}
void attentionShapes(benchmark::internal::Benchmark *bench) {
  for (int threads : {1, 2}) {
    bench->Args({12, 64, 4, 32, threads});
    bench->Args({4, 64, 12, 64, threads});
    bench->Args({1, 1024, 12, 64, threads});
  }
}
BENCHMARK_CAPTURE(attention, forward, false)
    ->Apply(attentionShapes)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(attention, grad, true)
    ->Apply(attentionShapes)
    ->UseRealTime()
    ->MeasureProcessCPUTime();

void adamw(benchmark::State &state) {
  const int64_t n = state.range(0);
  runtime::ThreadPool pool(static_cast<int>(state.range(1)));
  cpu::CpuBackend backend(pool);
  Buffer grad({n}), param({n}), m({n}), v({n});
  for (int64_t i = 0; i < n; ++i)
    static_cast<float *>(v.view.data)[i] = 0.1f;
  Launch launch(backend, "adamw_update", {}, {grad.view},
                {param.view, m.view, v.view},
                {ScalarValue::real(1e-4), ScalarValue::integer(5)});
  for (auto _ : state)
    launch();
  rate(state, "bytes", 28.0 * static_cast<double>(n));
}
BENCHMARK(adamw)
    ->ArgsProduct({{800000, 38597376}, {1, 2}})
    ->UseRealTime()
    ->MeasureProcessCPUTime();

// rows, columns, threads.
void layerNorm(benchmark::State &state) {
  const int64_t rows = state.range(0), n = state.range(1);
  runtime::ThreadPool pool(static_cast<int>(state.range(2)));
  cpu::CpuBackend backend(pool);
  Buffer x({rows, n}), y({rows, n}), mean({rows}), rstd({rows});
  Buffer scale({n}), bias({n});
  Launch launch(
      backend, "layer_norm", {{"axis", "1"}, {"scale", "1"}, {"bias", "1"}},
      {x.view, scale.view, bias.view}, {y.view, mean.view, rstd.view});
  for (auto _ : state)
    launch();
  rate(state, "bytes", 8.0 * static_cast<double>(rows * n));
}
BENCHMARK(layerNorm)
    ->Args({768, 128, 1})
    ->Args({256, 768, 1})
    ->Args({256, 768, 2})
    ->UseRealTime()
    ->MeasureProcessCPUTime();

void transpose(benchmark::State &state) {
  runtime::ThreadPool pool(static_cast<int>(state.range(2)));
  cpu::CpuBackend backend(pool);
  Buffer x({state.range(0), state.range(1)});
  Buffer y({state.range(1), state.range(0)});
  Launch launch(backend, "copy", {}, {permuted(x.view, {1, 0})}, {y.view});
  for (auto _ : state)
    launch();
  rate(state, "bytes",
       8.0 * static_cast<double>(state.range(0) * state.range(1)));
}
BENCHMARK(transpose)
    ->Args({768, 3072, 1})
    ->Args({768, 3072, 2})
    ->UseRealTime()
    ->MeasureProcessCPUTime();

} // namespace
} // namespace merak::bench
