// The small abstract graph that planning decides on: tensors with shapes, and
// ops that declare their iteration factors as an einsum does. Built from the
// training graph by a pass, or by hand in a test; it holds no MLIR type.
//
//   FactorGraph.h     the graph and the rule of an op
//   FactorClasses.h   factors unified over the whole graph into classes
//   Partition.h       what a choice of axes per class means for every op
//   TensorParallel.h  the search for the choice
//
// Example: matmul of x[b,t,d] with w[d,f] has the factors b,t,f (parallel) and
// d (sum): operands {{b},{t},{d}}, {{d},{f}}, results {{b},{t},{f}}, linear
// {{0},{1}}.
#pragma once

#include "dialects/Support/ShardingRule.h"
#include "runtime/core/Status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace merak::planning {

// Where an op runs in a step: forward and backward once a microbatch, update
// once a step, after the gradients have been accumulated.
enum class Phase { Forward, Backward, Update };

struct GraphOp {
  std::string name; // the ONNX node, for reports and errors
  ShardingRule rule;
  std::vector<int> operands, results; // tensor ids
  double flops = 0;                   // of the global batch
  double bytes = 0;                   // read and written, global batch
  // Matmul, convolution, attention, einsum: the flops that tensor parallelism
  // is meant to divide.
  bool contraction = false;
  bool product = false; // a contraction of two tensors, by a matrix product
  // Each result element is made from one element of each operand.
  bool pointwise = false;
  bool viewLike = false; // only moves elements; free where strides allow it
  Phase phase = Phase::Forward;
  // Backward only: the forward op whose gradient it is (-1: of the loss), and
  // whether it is for parameters alone.
  int gradientOf = -1;
  // Forward only: ops with the same number (not negative) are pieces of one op,
  // which share its gradients; they stay on one stage.
  int64_t piece = -1;
  bool weightGradient = false;
  bool view = false;    // never moves data: reshape
  bool looksUp = false; // rows of its first operand by ids: an embedding
  std::string kernel;   // of the cost model: "einsum", "layer_norm"
};

struct GraphTensor {
  std::string name;
  std::vector<int64_t> shape; // of the global batch
  int elementBytes = 4;
  bool parameter = false, input = false, constant = false;
  bool isFloat = true;
  bool output = false; // a result of the step (the loss)
  int64_t elements() const;
  int64_t bytes() const { return elements() * elementBytes; }
};

// Ops are in topological order; a tensor has at most one producer.
struct Graph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOp> ops;

  int addTensor(GraphTensor tensor) {
    tensors.push_back(std::move(tensor));
    return static_cast<int>(tensors.size()) - 1;
  }
  int addOp(GraphOp op) {
    ops.push_back(std::move(op));
    return static_cast<int>(ops.size()) - 1;
  }
  // All rules fit their tensors, ids are in range, order is topological. Every
  // problem is reported, with the op's name.
  Status check() const;
};

} // namespace merak::planning
