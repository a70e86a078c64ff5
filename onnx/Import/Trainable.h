// Which initializers are trained, and which are tables.
#pragma once

#include "onnx/Import/ImportOptions.h"
#include "onnx/Import/OnnxFile.h"

#include "llvm/ADT/StringSet.h"

#include <set>

namespace merak {

struct TrainableDecision {
  bool trained = false;
  // May be replaced by its value: it is no weight of the user's.
  bool isTable = false;
  std::string reason; // empty for what is trained as a matter of course
};

// Names of values that the gradient of `outputs` reaches. `settings`: also
// through exponents and bounds, of which PyTorch writes none as initializers
// but those that are trained.
llvm::StringSet<> gradientReaches(const onnx::GraphProto &graph,
                                  const std::vector<std::string> &outputs,
                                  bool settings);

// Nodes whose results one of `outputs` depends on.
std::vector<bool> nodesFeeding(const onnx::GraphProto &graph,
                               const std::vector<std::string> &outputs);

// What an exported program says: which initializers hold its parameters, and
// its buffers.
struct ProgramWeights {
  std::set<std::string> trained, buffers;
};

// `program`: null if the file says nothing.
TrainableDecision decideTrainable(OnnxFile &file, const OnnxTensor &tensor,
                                  const llvm::StringSet<> &reached,
                                  const ImportOptions &options,
                                  const ProgramWeights *program);

// Whether a name is one that modules give their parameters: "h.0.weight",
// "rnn.weight_hh_l0".
bool isModuleParameter(llvm::StringRef name);

// Not a name a person gave: "onnx::MatMul_12", "/h.0/Constant_output_0".
bool isExporterName(llvm::StringRef name);

} // namespace merak
