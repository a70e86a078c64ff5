// What torch.onnx.export(dynamo=True) notes in a file about the program it was
// made from: the program's parameters and buffers, the call behind every node,
// and what a folded tensor was computed from. All of it is text in
// metadata_props; a file without it has an unknown program.
#pragma once

#include "onnx/Import/OnnxFile.h"

#include "llvm/ADT/StringSet.h"

namespace merak {

// "%linear : [...] = call_function[target=torch.ops.aten.linear.default](args =
// (%x, %p_w, None), kwargs = {})" is result "linear", name "linear", arguments
// {"%x", "%p_w", "None"} and operands {"x", "p_w"}. Empty name: no such note.
struct ExportedCall {
  std::string result, name;
  std::vector<std::string> arguments; // of the call itself, as written
  std::vector<std::string> operands;  // values, those inside of lists too
};
ExportedCall exportedCall(const onnx::NodeProto &node);

// "%a, [%b, 1]" -> {"a", "b"}.
std::vector<std::string> valuesIn(llvm::StringRef text);

// The module of a dynamo export's node, "model.h.0.ln_1"; empty: none.
std::string moduleOf(const onnx::NodeProto &node);

// "mul_12" -> "mul": the program numbers the results of one function.
llvm::StringRef functionOf(llvm::StringRef value);

class ExportedProgram {
public:
  explicit ExportedProgram(const onnx::GraphProto &graph);

  // Whether the file says what the program's parameters are.
  bool isKnown() const { return known; }
  // Whether the exporter rewrote the graph (optimize=True, its default).
  bool isOptimized() const { return optimized; }

  // All parameters and buffers, also those that the file does not hold.
  const std::vector<std::string> &parameters() const { return parameterNames; }
  const std::vector<std::string> &buffers() const { return bufferNames; }
  bool isParameter(llvm::StringRef name) const {
    return parameterSet.contains(name);
  }

  // The call behind a node; where the file has lost it, one with all parameters
  // of the node's module.
  ExportedCall callOf(const onnx::NodeProto &node) const;

  ExportedCall callOfModule(llvm::StringRef module) const;

  // The parameters that a call names as operands, in their order.
  std::vector<std::string> parametersOf(const ExportedCall &call) const;

  // What the exporter computed an initializer from; null: it is not said.
  const std::vector<std::string> *foldedFrom(llvm::StringRef name) const;

  // Operands of the call that the graph does not have; views, which need no
  // node, only if wanted.
  std::vector<std::string> unresolved(const ExportedCall &call,
                                      bool viewsToo = false) const;
  // All of them: what the exporter took out of the graph.
  std::vector<std::string> removedCalls(const onnx::GraphProto &graph) const;

private:
  void readSignature(llvm::StringRef text);
  // Whether the graph has the operand of a call.
  bool resolves(llvm::StringRef operand) const;

  bool known = false, optimized = false;
  std::vector<std::string> parameterNames, bufferNames;
  llvm::StringSet<> parameterSet, values;
  llvm::StringMap<std::string> targets; // operand of calls -> name
  llvm::StringMap<std::vector<std::string>> folded;
};

} // namespace merak
