// The training step that a model brings along (TrainingInfoProto, IR 7): its
// algorithm graph, joined with the model's, holds a loss, a Gradient node and
// optimizer nodes; bindings say which initializers their results replace. Here
// it is read as what this compiler does itself: a loss and one optimizer.
#pragma once

#include "onnx/Import/ImportOptions.h"

#include <optional>
#include <string>
#include <vector>

namespace onnx {
class GraphProto;
class ModelProto;
} // namespace onnx

namespace merak {

class OnnxFile;

struct ModelTraining {
  std::string loss;                 // what Gradient differentiates
  std::vector<std::string> trained; // initializers that the optimizer updates
  // The operator (Adam, Adagrad or Momentum) and its attributes, one for all
  // parameters; `firstCount` is the T of the first step.
  std::string optimizer;
  double rate = 0, alpha = 0.9f, beta = 0.999f, epsilon = 1e-6f;
  double norm = 0, normPost = 0, decay = 0;
  bool nesterov = false;
  int64_t firstCount = 0;
  std::string rateProgram; // if the rate changes; `rate` is that of step 0
  StateValues states;      // those that do not begin with zeros
  // What keeps the loss and the update from being read so, one sentence each.
  std::vector<std::string> lossProblems, updateProblems;
};

// Puts the algorithm's graph behind the model's and gives initializers the
// values that the initialization graph computes. Returns the indices of
// initializers that have new values; appends one sentence a problem.
std::vector<int> joinTraining(onnx::ModelProto &model,
                              std::vector<std::string> &errors);

// Appends what a Gradient node differentiates to its inputs (xs, zs, y), so
// that it is read like any other operand.
void nameGradientOperands(onnx::GraphProto &graph);

// Of a joined model whose Gradient nodes name their operands. Nothing if it
// brings no algorithm.
std::optional<ModelTraining> readTraining(OnnxFile &file);

} // namespace merak
