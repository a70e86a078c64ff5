// The search over frontiers: chains of equal blocks and chains of different
// operators, by number of configurations. Costs are random and fixed; the
// counters say how long the result's frontiers are and how many records it
// took.
#include "passes/Planning/FrontierGraph.h"
#include "passes/Planning/FrontierMatrix.h"

#include <benchmark/benchmark.h>
#include <random>

namespace merak::planning {
namespace {

constexpr int kBlocks = 96, kChain = 64;

class Costs {
public:
  Cost cost() { return {next(), next()}; }
  LifeCost lifeCost() { return {next(), 0, 0, next()}; }

private:
  int64_t next() { return int64_t(random() % 1000000); }
  std::mt19937 random{7};
};

// An operator behind an edge.
FrontierMatrix block(FrontierAlgebra &algebra, int configs) {
  Costs costs;
  std::vector<Frontier> nodes;
  for (int i = 0; i < configs; ++i)
    nodes.push_back(algebra.leaf(costs.cost(), 0));
  FrontierMatrix matrix{configs, configs, {}};
  for (int i = 0; i < configs * configs; ++i)
    matrix.entries.push_back(
        algebra.product(algebra.leaf(costs.cost(), 0), nodes[i % configs]));
  return matrix;
}

void report(benchmark::State &state, const FrontierAlgebra &algebra,
            const std::vector<Frontier> &entries) {
  size_t points = 0;
  for (const Frontier &entry : entries)
    points += entry.size();
  state.counters["points"] = double(points) / double(entries.size());
  state.counters["records"] = double(algebra.arena().size());
}

FrontierOptions optionsOf(const benchmark::State &state) {
  return {int(state.range(1)), state.range(2)};
}

// 96 blocks with both ends open: a matrix by squaring.
void equalBlocksPower(benchmark::State &state) {
  for (auto _ : state) {
    FrontierAlgebra algebra(optionsOf(state));
    FrontierMatrix matrix = block(algebra, int(state.range(0)));
    FrontierMatrix power = EqualBlocks(algebra, matrix).power(kBlocks);
    report(state, algebra, power.entries);
  }
}

// All lengths up to 96. With `rows` 1 the begin is chosen by the search, which
// is the chain program; with all of them each configuration is kept apart.
void equalBlocksPrefixes(benchmark::State &state, bool everyBegin) {
  for (auto _ : state) {
    FrontierAlgebra algebra(optionsOf(state));
    int configs = int(state.range(0));
    FrontierMatrix matrix = block(algebra, configs);
    FrontierMatrix start = matrix;
    if (!everyBegin) {
      start.rows = 1;
      start.entries.erase(start.entries.begin() + configs, start.entries.end());
    }
    auto all = EqualBlocks(algebra, matrix).prefixes(start, kBlocks - 1);
    report(state, algebra, all.back().entries);
  }
}

// Operators that have nothing in common, as a graph.
void randomChain(benchmark::State &state) {
  Costs costs;
  FrontierGraph graph;
  int configs = int(state.range(0));
  for (int i = 0; i < kChain; ++i) {
    graph.addNode("op", configs);
    for (int config = 0; config < configs; ++config)
      graph.allow(i, config, costs.lifeCost());
    if (i > 0)
      for (int edge = graph.addEdge(i - 1, i), pair = 0;
           pair < configs * configs; ++pair)
        graph.allow(edge, pair / configs, pair % configs, costs.lifeCost());
  }
  for (auto _ : state) {
    FrontierAlgebra algebra(optionsOf(state));
    Result<FrontierTable> table = solve(algebra, graph);
    report(state, algebra, table->entries);
  }
}

// (configurations, threads, bytes of a bucket)
void cases(benchmark::internal::Benchmark *bench) {
  bench->ArgNames({"configs", "threads", "bucket"})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  for (int configs : {8, 16, 32})
    for (int threads : {1, 2})
      bench->Args({configs, threads, 0});
  bench->Args({16, 1, 100000});
}
BENCHMARK(equalBlocksPower)->Apply(cases);
BENCHMARK_CAPTURE(equalBlocksPrefixes, one, false)->Apply(cases);
BENCHMARK_CAPTURE(equalBlocksPrefixes, every, true)->Apply(cases);
BENCHMARK(randomChain)->Apply(cases);

} // namespace
} // namespace merak::planning
