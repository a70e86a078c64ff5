#include "passes/CostModel/Describe.h"
#include "runtime/layout/Strides.h"

namespace merak::costmodel {

static double product(Sizes sizes) {
  double all = 1;
  for (int64_t size : sizes)
    all *= double(size);
  return all;
}

void describeProduct(const std::string &equation, Sizes sizesA, Sizes sizesB,
                     Kernel &kernel) {
  size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos)
    return;
  std::string a = equation.substr(0, comma);
  std::string b = equation.substr(comma + 1, arrow - comma - 1);
  std::string out = equation.substr(arrow + 2);
  if (a.size() != sizesA.size() || b.size() != sizesB.size())
    return;
  auto has = [](const std::string &indices, char index) {
    return indices.find(index) != std::string::npos;
  };
  kernel.m = kernel.n = kernel.k = 1;
  if (a.empty() || b.empty())
    return;
  auto contracted = [&](char index) {
    return has(a, index) && has(b, index) && !has(out, index);
  };
  kernel.name += contracted(a.back()) ? ":n" : ":t";
  kernel.name += contracted(b.back()) ? "t" : "n";
  for (size_t i = 0; i < a.size(); ++i)
    if (!has(b, a[i]))
      kernel.m *= double(sizesA[i]);
    else if (!has(out, a[i]))
      kernel.k *= double(sizesA[i]);
  for (size_t i = 0; i < b.size(); ++i)
    if (!has(a, b[i]))
      kernel.n *= double(sizesB[i]);
}

void describeRounding(Sizes a, Sizes b, double elementBytes, Kernel &kernel) {
  kernel.dtype = "f8";
  kernel.rounded = product(a) + product(b);
  kernel.bytes -= (elementBytes - 1) * kernel.rounded;
}

void describeAttention(Sizes queries, Sizes keys, Kernel &kernel) {
  if (queries.size() != 4 || keys.size() != 4)
    return;
  kernel.m = double(queries[1]);
  kernel.n = double(keys[1]);
  kernel.k = double(queries[3]);
  if (kernel.flops > 0)
    return;
  // Two products; backward five.
  double products = kernel.name.starts_with("attention_grad") ? 5 : 2;
  kernel.flops = products * 2 * kernel.m * kernel.n * kernel.k *
                 double(queries[0] * queries[2]);
}

void describeConv(Sizes y, Sizes weight, Kernel &kernel) {
  if (y.size() < 3 || weight.size() < 3)
    return;
  kernel.n = double(weight[0]);
  kernel.m = product(y) / double(y[1]);
  kernel.k = product(weight) / kernel.n;
  if (kernel.flops <= 0)
    kernel.flops = 2 * kernel.m * kernel.n * kernel.k;
}

void describeLibrary(const std::string &op, const std::string &equation,
                     const std::vector<Sizes> &inputs,
                     const std::vector<Sizes> &outputs, Kernel &kernel) {
  if (inputs.size() < 2)
    return;
  const std::string group = kernelClass(op);
  if (group == "matmul")
    describeProduct(equation, inputs[0], inputs[1], kernel);
  else if (group == "attention")
    describeAttention(inputs[0], inputs[1], kernel);
  else if (group == "conv" && !outputs.empty())
    describeConv(op == "conv"              ? outputs[0]
                 : op == "conv_grad_input" ? inputs[0]
                                           : inputs[1],
                 op == "conv_grad_weight" ? outputs[0] : inputs[1], kernel);
}

std::string generatedName(double input, double output) {
  return output < input ? "elementwise:sums" : "elementwise";
}

std::string copyName(Sizes shape, Sizes from, Sizes to) {
  return layout::isDense(shape, from) && layout::isDense(shape, to)
             ? "copy"
             : "copy:strided";
}

} // namespace merak::costmodel
