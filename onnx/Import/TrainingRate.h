// A learning rate that a training algorithm computes: followed from the
// optimizer's operand back to numbers of the file, to counts of steps, and to
// initializers that the algorithm updates from such.
#pragma once

#include "onnx/Import/OnnxFile.h"
#include "runtime/plan/RateProgram.h"

#include <map>
#include <optional>
#include <string>

namespace merak {

// A model joined with its algorithm, by name.
struct TrainingGraph {
  explicit TrainingGraph(OnnxFile &file) : file(file) {}

  OnnxFile &file;
  std::map<std::string, const onnx::NodeProto *> producers;
  std::map<std::string, const OnnxTensor *> initializers;
  std::map<std::string, std::string> updates; // what replaces an initializer

  // The value behind copies.
  std::string behind(std::string name) const;
  struct Number {
    double value;
    int dataType; // FLOAT, DOUBLE, INT64, INT32 or BOOL of onnx::TensorProto
  };
  // A single number that the file holds.
  std::optional<Number> number(const std::string &name) const;
  // The initializer to which `name` adds one; empty: none.
  std::string counted(const std::string &name) const;
};

// "Adam 'step'".
std::string describe(const onnx::NodeProto &node);

struct TrainingRate {
  double first = 0;                // of step 0
  std::string program;             // RateProgram.h; empty if the rate stays
  std::vector<std::string> states; // initializers that it carries along
  std::string problem;             // what cannot be followed; else empty
};

TrainingRate readRate(const TrainingGraph &graph, const std::string &name);

} // namespace merak
