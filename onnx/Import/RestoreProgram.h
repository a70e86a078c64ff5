// Undoes what torch.onnx.export(dynamo=True, optimize=True) does to parameters:
// it merges equal ones, removes biases of zeros, expands class tokens to the
// batch, transposes and joins weights. The graph afterwards reads parameters of
// the exported program, each through what was folded; what cannot be traced
// back to them is refused, never trained as a copy.
#pragma once

#include "onnx/Import/ExportedProgram.h"
#include "onnx/Import/ImportOptions.h"
#include "onnx/Import/ImportReport.h"

#include <functional>
#include <map>
#include <optional>
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

  void nameSplits();
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
  // The parameter of another module of the same kind that a use of a folded
  // initializer was computed from; empty: none.
  std::string twinOf(const std::string &initializer, const Use &use);
  // What a slot should read in place of the initializer; empty: it may stay.
  std::string ownerOf(const std::string &initializer, const Use &use,
                      bool &isConstant);
  void giveOwn(const std::string &initializer, const Use &use,
               const std::string &parameter, bool isConstant,
               std::map<std::string, std::string> &made);
  void restoreBiases();
  void restoreBias(int node, const ExportedCall &call);

  const OnnxTensor &tensorOf(const std::string &name) const;
  std::vector<float> floatsIn(const std::string &name); // empty: not f32
  bool isNamedAt(const std::string &name, const Use &use) const;
  bool isNamedByReaders(const std::string &name) const;
  std::vector<Use> readersOfOthers(const std::string &name) const;
  void judgeMerged(const std::string &name, const std::vector<Use> &readers);
  void noteVanishing(const std::string &name);
  bool sharesElements(const std::string &one, const std::string &other);
  int64_t batchAxisOf(const std::string &name) const;

  // An initializer that is functions of another, or that with its axes
  // permuted.
  struct Relation {
    std::string name, base;
    std::vector<std::string> functions;
    std::vector<int64_t> permutation;
  };
  bool relate(const std::string &name);
  std::string baseOf(const std::string &name) const;
  bool isOfBuffers(const std::string &name) const;
  std::vector<std::string> callsBetween(const std::string &base,
                                        const std::string &name,
                                        int &constants) const;
  std::optional<Relation> relationOf(const std::string &base,
                                     const std::string &name);
  void addRelation(const Relation &relation);
  void reportRelations();

  bool isOfZeroState(const std::string &name);
  bool multipliesZeros(const std::string &name) const;
  bool isTrainedElsewhere(const std::string &parameter,
                          const std::string &name);
  bool isBiasOf(const std::string &bias, const std::string &weight) const;
  bool isConstantZero(const std::string &name);
  bool expandBias(const std::string &name, const std::string &bias,
                  const std::string &weight, const std::vector<float> &values);

  bool addsNumber(const std::string &name, const Sources &from) const;
  bool shift(const std::string &name, const Sources &from);
  void separateStates();
  std::set<std::string> recurrentWeights(const ExportedCall &call) const;

  void judgeFolds();
  void judgeFold(const std::string &name);
  bool isRearranged(const std::string &name, const Sources &from,
                    std::string &why) const;
  bool looksUpLast(const std::string &name, const Sources &from) const;
  bool tieToOther(const std::string &name, const Sources &from);
  bool invert(const std::string &name, const Sources &from);
  bool contract(const std::string &name, const Sources &from);
  bool mixesElements(const std::string &name) const;
  bool isDistinct(const std::string &name);
  void failRepeated(const std::string &name, const std::string &what);
  void findLost();
  bool isOfIntegers(const std::string &call) const;
  void failLost(const std::string &call, const std::vector<std::string> &lost);

  std::set<std::string> functionsOf(const std::string &name) const;
  void addNode(const char *type, const std::vector<std::string> &inputs,
               const std::string &output,
               const std::vector<int64_t> &permutation = {});
  std::string addNumber(llvm::StringRef text, const std::string &name);
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
  std::set<int> inferred;          // nodes whose call is one of a module
  // `computed`: results of nodes and inputs, of which folding saw the shapes.
  llvm::StringSet<> reached, names, computed;
  std::map<std::string, std::vector<Use>> uses; // by initializer
  std::map<std::string, Sources> sources;       // of float initializers
  std::map<std::string, std::string> copyOf;    // of what was merged
  std::set<std::string> held; // parameters that some initializer holds
  std::set<std::string> restoredBiases;
  std::set<std::string> besideStates; // weights noted with a first state
  // One that was computed from a parameter, of zeros or ones.
  std::string vanishing;
  std::set<std::string> explained; // removed calls of which one knows enough
  std::set<std::string> trainedNames, failed;
  std::vector<std::string> doubtfulUses; // nodes that read a view of something
  std::vector<onnx::NodeProto> added;    // go before all others
  std::vector<onnx::NodeProto> related;  // those of relations, behind them
  std::vector<Relation> relations;
  std::vector<RestoreError> errors;
};

} // namespace merak
