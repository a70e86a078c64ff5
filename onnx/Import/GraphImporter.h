// One import, from an opened file to a module.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "onnx/Conversion/OnnxNode.h"
#include "onnx/Import/Importer.h"
#include "onnx/Import/OnnxFile.h"
#include "onnx/Import/Trainable.h"

#include <map>

namespace merak {

class GraphImporter {
public:
  GraphImporter(OnnxFile &file, const ImportOptions &options,
                mlir::MLIRContext &context, ImportReport &report);

  mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> run();

private:
  using Parts = std::vector<mlir::Value>; // of a sequence

  // An initializer as the graph uses it. Several names may mean one symbol
  // (ties), one initializer may have several symbols (un-merged).
  struct Weight {
    const OnnxTensor *tensor = nullptr;
    TrainableDecision decision;
    std::string symbol;
    mlir::RankedTensorType type;
    mlir::Value constant; // once made, for tables
    bool declared = false;
    unsigned uses = 0;
  };

  void fail(const llvm::Twine &message);
  mlir::Location locationOf(const onnx::NodeProto &node, int index);

  bool chooseOutputs();
  bool bindInputs();
  bool bindDim(const onnx::ValueInfoProto &input, int dim,
               const llvm::SmallVector<int64_t> *given, int64_t &size);
  bool restoreProgram();
  llvm::StringSet<> runningStatistics();
  bool namesWeight(llvm::StringRef pattern) const;
  void decideWeights();
  void findMerged();
  Weight *splitUse(Weight &from, const onnx::NodeProto &node, int slot,
                   Weight *into, const std::string &wanted);
  void importNode(const onnx::NodeProto &node, int index);
  void importKnown(const onnx::NodeProto &node, int index);
  bool importIdentity(const onnx::NodeProto &node);
  bool importSequence(const onnx::NodeProto &node, mlir::Location loc,
                      int index);
  bool bindSequence(const std::string &name, std::vector<mlir::Value> parts,
                    const onnx::NodeProto &node, mlir::Location loc);
  std::optional<int64_t> positionIn(const onnx::NodeProto &node, int slot,
                                    int64_t size, int64_t last,
                                    mlir::Location loc);
  bool importSplit(const onnx::NodeProto &node, mlir::Location loc, int index);
  bool importConcat(const onnx::NodeProto &node,
                    const std::vector<mlir::Value> &parts, mlir::Location loc,
                    int index);
  bool importSequenceMap(const onnx::NodeProto &node, mlir::Location loc,
                         int index);
  bool importFlexAttention(const onnx::NodeProto &node, mlir::Location loc,
                           int index);
  bool importOptional(const onnx::NodeProto &node, mlir::Location loc);
  bool importConstant(const onnx::NodeProto &node, mlir::Location loc);
  bool importIf(const onnx::NodeProto &node, mlir::Location loc, int index);
  bool importGradient(const onnx::NodeProto &node, mlir::Location loc);
  bool importLoop(const onnx::NodeProto &node, mlir::Location loc, int index);
  bool importScan(const onnx::NodeProto &node, mlir::Location loc, int index);
  struct ScanInput {
    mlir::Value whole;
    int64_t axis = 0;
    bool backwards = false;
  };
  bool scan(const onnx::GraphProto &body, const onnx::NodeProto &node,
            std::vector<mlir::Value> &state, llvm::ArrayRef<ScanInput> scans,
            int64_t trips, std::vector<Parts> &scanned, mlir::Location loc,
            int index);
  void importPart(const onnx::NodeProto &node, mlir::Value whole, int64_t axis,
                  int64_t at, const std::string &output, mlir::Location loc,
                  int index);
  // Reports at the node; true, so that callers can say they have handled it.
  bool refuse(const onnx::NodeProto &node, mlir::Location loc,
              const llvm::Twine &message);
  bool importInitializers(const onnx::GraphProto &body,
                          const onnx::NodeProto &node, mlir::Location loc);
  void importMade(const onnx::NodeProto &node, int index);
  void stack(const onnx::NodeProto &node, const std::vector<mlir::Value> &parts,
             const std::string &output, int64_t axis, int index);
  std::vector<mlir::Value> iterate(const onnx::GraphProto &body,
                                   const onnx::NodeProto &node,
                                   const std::vector<mlir::Value> &inputs,
                                   mlir::Location loc, int index);
  bool tooLong(const onnx::NodeProto &node, int64_t trips, mlir::Location loc);
  void countUses(const onnx::GraphProto &graph);
  bool typeAndFold(OnnxNode &view, const onnx::NodeProto &node,
                   llvm::SmallVectorImpl<mlir::Type> &types, bool &folded);
  // As evaluate(). What all layers compute of the same constants, as a mask, is
  // computed once.
  mlir::DenseElementsAttr
  evaluateOnce(mlir::Operation &op,
               llvm::ArrayRef<mlir::DenseElementsAttr> operands);
  bool finish();

  mlir::Value operand(const std::string &name, mlir::Location loc,
                      const onnx::NodeProto &node, int slot);
  mlir::Value read(Weight &weight, mlir::Location loc);
  mlir::Attribute bytesOf(const OnnxTensor &tensor);
  mlir::DictionaryAttr firstStates(const std::string &initializer);
  mlir::Value constant(mlir::DenseElementsAttr value, mlir::Location loc);
  std::string uniqueSymbol(std::string wanted);
  mlir::Type declaredType(const std::string &name);
  int64_t opsetOf(llvm::StringRef domain) const;

  OnnxFile &file;
  const onnx::GraphProto &graph;
  const ImportOptions &options;
  mlir::MLIRContext &context;
  ImportReport &report;
  mlir::Location fileLoc;
  mlir::OpBuilder builder;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  mlir::func::FuncOp function;
  bool ok = true;
  // Ops without a conversion; told here if the next phase does not get to them.
  std::vector<std::pair<mlir::Location, std::string>> unknown;
  std::vector<std::string> outputs;
  // By the op's name, attributes and type, and the operands.
  std::map<std::vector<const void *>, mlir::DenseElementsAttr> evaluated;
  int64_t unrolled = 0; // nodes of iterations made so far
  std::vector<bool> feeding;
  // Of a file that says what its program's parameters are.
  std::optional<ProgramWeights> program;
  std::vector<std::string> programParameters; // also those it does not hold
  llvm::StringMap<llvm::StringMap<int64_t>> unused;
  llvm::StringMap<int64_t> symbols; // symbolic dimension -> size
  llvm::StringMap<mlir::Value> values;
  std::vector<std::unique_ptr<Weight>> weights;
  llvm::StringMap<Weight *> weightOf; // by value name
  llvm::StringMap<unsigned> consumers;
  llvm::StringMap<Parts> sequences;
  size_t allParts = 0;       // of all sequences made so far
  llvm::StringSet<> absent;  // optionals without a value
  llvm::StringSet<> taken;   // symbol names
  llvm::StringSet<> missing; // outputs of nodes that were refused
  // (initializer name, node index, slot) that get a parameter of their own.
  llvm::StringMap<Weight *> splitUses;
};

} // namespace merak
