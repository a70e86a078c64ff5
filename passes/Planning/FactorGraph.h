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

#include "dialects/Support/Epilogue.h"
#include "dialects/Support/ShardingRule.h"
#include "passes/Planning/TouchedRows.h"
#include "runtime/core/Status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace merak::planning {

// Loop of a dimension; kNoLoop: always index 0 (size 1, or broadcast).
inline constexpr int kNoLoop = -1;

// The loops of an op that a generated kernel may contain: sizes, which of them
// it reduces for some of its results, and which loop each dimension of an
// operand or result walks.
struct Loops {
  std::vector<int64_t> sizes;
  std::vector<bool> reduced;
  std::vector<std::vector<int>> operands, results;
  bool operator==(const Loops &) const = default;
};

// What lowering makes of an op instead of a kernel: another view of the same
// memory, or parts written into a larger tensor.
enum class Moves { No, Reshape, Transpose, Slice, Expand, Pad, Concat };

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
  // Backward only: adds gradients of two uses of one value; `gradientOf` is one
  // of the uses.
  bool sumOfUses = false;
  bool view = false; // never moves data: reshape
  Moves moves = Moves::No;
  std::vector<int64_t> perm;  // Transpose
  std::vector<int64_t> steps; // Slice
  int64_t axis = 0;           // Concat
  std::optional<Loops> loops; // none: no generated kernel can hold it
  Epilogue epilogue = Epilogue::None;
  std::string equation;      // of a product of two tensors
  bool rounds = false;       // its operands, to 8 bits
  bool widensResult = false; // its kernel can leave 16-bit results in f32
  bool addsInPlace = false;  // its kernel can add to what the output holds
  bool update = false;       // of a parameter, by the optimizer
  bool looksUp = false;      // rows of its first operand by ids: an embedding
  std::string kernel;        // of the cost model: "einsum", "layer_norm"
  // Sums slices of a table by ids, the second operand: which rows they name, if
  // that is known.
  std::optional<TouchedRows> touched;
  // The optimizer's step on a parameter.
  bool isUpdate() const { return phase == Phase::Update && results.empty(); }
  bool operator==(const GraphOp &) const = default;
};

struct GraphTensor {
  std::string name;
  std::vector<int64_t> shape; // of the global batch
  int elementBytes = 4;
  bool parameter = false, input = false, constant = false;
  bool isFloat = true;
  bool output = false; // a result of the step (the loss)
  bool splat = false;  // a constant whose elements are all the same
  int64_t elements() const;
  int64_t bytes() const { return elements() * elementBytes; }
  bool operator==(const GraphTensor &) const = default;
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

// How a strategy names ops, given the nodes of the forward ops in order:
// "node", or "node#2" where the third op of that node is meant.
std::vector<std::string> opNames(const std::vector<std::string> &nodes);
// The same for the ops of a graph; "" for those that are not of the forward
// pass.
std::vector<std::string> forwardNames(const Graph &graph);

} // namespace merak::planning
