// Runs a small graph on simulated devices and beside it unpartitioned, with
// integers, so that every sum is exact in any order. Every point of the mesh is
// a device here, the microbatch axis included: summing over microbatches is
// then a sum over that axis like any other.
#pragma once

#include "passes/Planning/Partition.h"

#include <functional>

namespace merak::planning::test {

using Values = std::vector<int64_t>; // row major

// What an op computes on shapes that it is given at run time: local or global.
using Kernel = std::function<std::vector<Values>(
    const std::vector<Values> &operands,
    const std::vector<std::vector<int64_t>> &operandShapes,
    const std::vector<std::vector<int64_t>> &resultShapes)>;

struct Program {
  Graph graph;
  std::vector<Kernel> kernels; // one per op

  int source(const std::string &name, std::vector<int64_t> shape,
             bool parameter = false);
  int unary(const std::string &name, int operand,
            std::function<int64_t(int64_t)> function,
            std::vector<std::vector<int>> linear);
  int binary(const std::string &name, int a, int b, char op); // + - *
  int einsum(const std::string &name, const std::string &text,
             std::vector<int> operands, std::vector<int64_t> result);
  int reshape(const std::string &name, int operand, std::vector<int64_t> to);
  int transpose(const std::string &name, int operand,
                std::vector<int64_t> perm);
  int maximum(const std::string &name, int operand, int dim);
  int cumulate(const std::string &name, int operand, int dim); // whole `dim`
};

// Values of all tensors without partitioning.
std::vector<Values> runWhole(const Program &program, unsigned seed);

// Runs the outcome; compares every stored tensor, once its open sums are
// closed, with the reference, and every conversion's bytes with the sizes of
// what is sent. Returns the first difference, empty if there is none.
std::string compareWithWhole(const Program &program,
                             const Assignment &assignment,
                             const Outcome &outcome, unsigned seed);

} // namespace merak::planning::test
