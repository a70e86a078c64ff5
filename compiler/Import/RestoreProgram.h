// Undoes what torch.onnx.export(dynamo=True, optimize=True) does to parameters:
// it merges equal ones, removes biases of zeros, expands class tokens to the
// batch, transposes and joins weights. The graph afterwards reads parameters of
// the exported program, each through what was folded; what cannot be traced
// back to them is refused, never trained as a copy.
#pragma once

#include "compiler/Import/ExportedProgram.h"
#include "compiler/Import/ImportOptions.h"
#include "compiler/Import/ImportReport.h"

#include <functional>
#include <map>
#include <set>

namespace merak {

// A sentence about an initializer or a node, and what helps.
struct RestoreError {
  std::string place, what, help;
};

class ProgramRestorer {
public:
  // `outputs`: what the gradient starts from. `batch`: the global batch, 0 if
  // the model has none.
  ProgramRestorer(OnnxFile &file, const ExportedProgram &program,
                  const ImportOptions &options,
                  const std::vector<std::string> &outputs, int64_t batch,
                  ImportReport &report);

  // Rewrites the graph and its initializers in place.
  std::vector<RestoreError> run();

  // Initializers that hold parameters of the program, once run.
  const std::set<std::string> &trained() const { return trainedNames; }

private:
  struct Use {
    int node = 0, slot = 0;
  };
  // The parameters that an initializer holds.
  using Sources = std::set<std::string>;

  void index();
  void findSources();
  bool isSmallFloat(const OnnxTensor &tensor) const;
  bool isHeld(const std::string &parameter) const {
    return held.count(parameter);
  }
  bool isFrozen(const std::string &name) const;
  bool isAlias(const std::string &parameter) const;
  const std::string &originOf(const std::string &name) const {
    auto found = copyOf.find(name);
    return found == copyOf.end() ? name : found->second;
  }

  void separateMerged();
  // What a slot should read in place of the initializer; empty: it may stay.
  std::string ownerOf(const std::string &initializer, const Use &use,
                      bool &isConstant);
  void giveOwn(const std::string &initializer, const Use &use,
               const std::string &parameter, bool isConstant,
               std::map<std::string, std::string> &made);
  void restoreBiases();
  void restoreBias(int node, const ExportedCall &call);

  void judgeFolds();
  void judgeFold(const std::string &name);
  bool isRearranged(const std::string &name, const Sources &from,
                    std::string &why) const;
  bool looksUpLast(const std::string &name, const Sources &from) const;
  bool tieToOther(const std::string &name, const Sources &from);
  bool invert(const std::string &name, const Sources &from);
  bool contract(const std::string &name, const Sources &from);
  void findLost();
  void failLost(const std::string &call, const std::vector<std::string> &lost);

  std::set<std::string> functionsOf(const std::string &name) const;
  void addNode(const char *type, const std::vector<std::string> &inputs,
               const std::string &output,
               const std::vector<int64_t> &permutation = {});
  std::string addShape(const std::vector<int64_t> &shape,
                       const std::string &name);
  std::string freeName(std::string wanted) const;
  void fail(const std::string &place, const std::string &what,
            const std::string &help);

  OnnxFile &file;
  onnx::GraphProto &graph;
  const ExportedProgram &program;
  const ImportOptions &options;
  int64_t batch;
  ImportReport &report;
  std::vector<bool> feeding;
  std::vector<ExportedCall> calls; // by node
  // `computed`: results of nodes and inputs, of which folding saw the shapes.
  llvm::StringSet<> reached, names, computed;
  std::map<std::string, std::vector<Use>> uses; // by initializer
  std::map<std::string, Sources> sources;       // of float initializers
  std::map<std::string, std::string> copyOf;    // of what was merged
  std::set<std::string> held; // parameters that some initializer holds
  std::set<std::string> restoredBiases;
  std::string inverted; // one that was computed from a parameter
  std::set<std::string> trainedNames, failed;
  std::vector<std::string> doubtfulUses; // nodes that read a view of something
  std::vector<onnx::NodeProto> added;    // go before all others
  std::vector<RestoreError> errors;
};

} // namespace merak
