// Training graphs of small models by hand: forward ops with their rules, a tape
// for the backward, one update per parameter.
#pragma once

#include "dialects/Support/Rules.h"
#include "passes/Planning/FactorGraph.h"

#include <functional>

namespace merak::planning::test {

class TrainGraph {
public:
  Graph graph;

  int input(const std::string &name, Shape shape);
  int parameter(const std::string &name, Shape shape);
  const Shape &shape(int id) const { return graph.tensors[id].shape; }

  // Forward ops; `name` is that of the op and of its result.
  int einsum(const std::string &name, const std::string &text, int a, int b,
             Shape result);
  int sum(const std::string &name, const std::string &text, int x,
          Shape result);
  int add(const std::string &name, int a, int b); // b may broadcast
  int unary(const std::string &name, int x);      // not linear: gelu, relu
  int scale(const std::string &name, int x);      // linear
  int divide(const std::string &name, int a, int b);
  int layerNorm(const std::string &name, int x, int gamma, int beta);
  int embedding(const std::string &name, int ids, int table);
  int reshape(const std::string &name, int x, Shape to);
  int transpose(const std::string &name, int x, std::vector<int64_t> perm);
  // [.., n, ..] -> n tensors without the dimension (split of a fused QKV).
  std::vector<int> unstack(const std::string &name, int x, int dim);
  // q [b,h,t,e] or [b,k,g,t,e]; k and v [b,h,t,e].
  int attention(const std::string &name, int q, int k, int v);
  int crossEntropy(const std::string &name, int logits, int labels); // [b,t]
  int convolution(const std::string &name, int x, int w); // same padding

  // x [.., d] times w [d, f] plus bias.
  int linear(const std::string &name, int x, int64_t out, bool bias = true);
  // Mean of all elements; marks it as the output and builds the backward and
  // the updates.
  void train(int loss);

  int find(const std::string &name) const; // tensor by name, -1

private:
  int addOp(const std::string &name, ShardingRule rule,
            std::vector<int> operands, Shape result, double flops = 0);
  int addTensor(const std::string &name, Shape shape);
  void gradient(int tensor, int value);

  Phase phase = Phase::Forward;
  int gradientOf = -1; // forward op of the backward ops being added
  std::vector<int> parameters;
  // Newest last; given the gradient of the op's result.
  std::vector<std::pair<int, std::function<void(int)>>> tape;
  std::vector<int> gradients; // per tensor, -1: none
};

struct GptOptions {
  int layers = 2;
  int64_t batch = 8, tokens = 32, width = 64, heads = 4, vocabulary = 96;
  int64_t kvHeads = 0; // grouped queries if not 0
  bool flat = false;   // [B*T, d] activations in the linear layers
  bool tied = true;
};
TrainGraph makeGpt(const GptOptions &options);
TrainGraph makeMlp(int64_t batch, std::vector<int64_t> widths);
// Encoder and decoder with cross attention, ReLU feed-forward, no biases.
TrainGraph makeT5(int64_t batch, int64_t tokens, int64_t width, int64_t heads);
// Convolutions with ReLU, a residual, global sum and a linear head.
TrainGraph makeConvNet(int64_t batch);

} // namespace merak::planning::test
