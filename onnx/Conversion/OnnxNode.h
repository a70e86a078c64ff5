// One ONNX node as the conversions see it, and the table of conversions. The
// importer types a node by converting it in a scratch block; `legalize-onnx`
// converts it for good. So there is one place that knows what an op means.
#pragma once

#include "passes/Graph/GraphBuilder.h"

namespace merak {

// Forms are known up to this opset of the standard domain.
inline constexpr int64_t kNewestOpset = 28;

// The domain whose text was never given versions.
inline constexpr llvm::StringLiteral kTrainingDomain =
    "ai.onnx.preview.training";

// Attributes for what operators have no place for (docs/Metadata.md).
inline constexpr llvm::StringLiteral kLabelSmoothing =
    "org.merak.label_smoothing";
inline constexpr llvm::StringLiteral kPaddingIndex = "org.merak.padding_idx";
inline constexpr llvm::StringLiteral kStopGradient = "org.merak.stop_gradient";
inline constexpr llvm::StringLiteral kTrainingMode = "org.merak.training_mode";

struct OnnxNode {
  mlir::Location loc;
  llvm::StringRef type, domain;
  int64_t opset = 0;
  mlir::DictionaryAttr attributes;
  llvm::SmallVector<mlir::Value> inputs; // none-typed where missing
  llvm::SmallVector<bool> usedOutputs;
  // Nodes of the same type before this one.
  int64_t number = 0;
  // Whether Dropout drops; else it is the identity.
  bool dropout = true;
  // Whether the model is trained; else it is evaluated.
  bool train = true;

  bool has(size_t index) const;
  // Null if missing.
  mlir::Value in(size_t index) const;
  // False where an input is a tensor of unknown type.
  bool isTyped() const;

  bool hasAttribute(llvm::StringRef name) const {
    return attributes && attributes.contains(name);
  }
  int64_t integer(llvm::StringRef name, int64_t fallback) const;
  double real(llvm::StringRef name, double fallback) const;
  llvm::StringRef string(llvm::StringRef name, llvm::StringRef fallback) const;
  std::optional<Shape> integers(llvm::StringRef name) const;

  // Integers given as an attribute in old versions, as a constant input in new
  // ones. Absent in both: an empty optional in `result`. Fails if the input
  // does not come from the model alone.
  mlir::LogicalResult integersAt(size_t input, llvm::StringRef attribute,
                                 GraphBuilder &b,
                                 std::optional<Shape> &result) const;
};

// Fills one value per output; an output that is not used may stay null. Reports
// at the builder's location when it fails.
using OnnxConversion = llvm::function_ref<mlir::LogicalResult(
    const OnnxNode &, GraphBuilder &, llvm::SmallVectorImpl<mlir::Value> &)>;
using OnnxConversionFn = mlir::LogicalResult (*)(
    const OnnxNode &, GraphBuilder &, llvm::SmallVectorImpl<mlir::Value> &);

// The float inputs to which a gradient goes on, and why not to the others.
struct OnnxGradient {
  static constexpr uint32_t kAll = ~uint32_t{0};
  uint32_t inputs = kAll; // bit i: input i
  const char *why = "";
  // Of the others: those that have a gradient where somebody trains them (the
  // exponent of a power), but are settings in most models.
  uint32_t settings = 0;

  bool passes(size_t input, bool settingsToo = false) const {
    return (inputs | (settingsToo ? settings : 0)) >>
               std::min<size_t>(input, 31) &
           1;
  }
};

// All that is known of one form of an operator; docs/Operators.md is printed
// from it (merakc --operators).
struct OnnxEntry {
  const char *type;
  int64_t since;            // the form starts with this opset ...
  int64_t until;            // ... and is known to hold up to this one
  OnnxConversionFn convert; // null: import computes it away
  OnnxGradient gradient = {};
  const char *domain = ""; // "": the standard one
};

// The table while it is put together.
struct OnnxTable {
  llvm::SmallVector<OnnxEntry> entries;

  void add(const char *type, int64_t since, OnnxConversionFn convert,
           int64_t until = kNewestOpset) {
    entries.push_back({type, since, until, convert});
  }
};

// Every form, by operator and version.
llvm::ArrayRef<OnnxEntry> onnxEntries();
// Of an operator in any version; all inputs where the table has no such one.
OnnxGradient onnxGradient(llvm::StringRef domain, llvm::StringRef type);
// Whether import computes the operator away, if it can.
bool isAtImport(llvm::StringRef domain, llvm::StringRef type);
// Sets what addXConversions left open; `table` holds all forms.
void setOnnxGradients(OnnxTable &table);

void addElementwiseConversions(OnnxTable &table);
void addShapeConversions(OnnxTable &table);
void addTrainingConversions(OnnxTable &table);
void addGridConversions(OnnxTable &table);
void addRecurrentConversions(OnnxTable &table);
void addMathConversions(OnnxTable &table);
void addIndexConversions(OnnxTable &table);
void addResizeConversions(OnnxTable &table);
void addReductionConversions(OnnxTable &table);
void addNetworkConversions(OnnxTable &table);
void addWindowConversions(OnnxTable &table);
void addLossConversions(OnnxTable &table);
void addSignalConversions(OnnxTable &table);
void addVisionConversions(OnnxTable &table);
void addAttentionConversions(OnnxTable &table);

// Null if the table has no form of the op; `reason` then says what was
// expected.
OnnxConversionFn findConversion(const OnnxNode &node, std::string &reason);

// "Gemm (opset 13): ", the start of every message about a node.
std::string describeNode(const OnnxNode &node);

mlir::LogicalResult convertNode(const OnnxNode &node, mlir::OpBuilder &builder,
                                llvm::SmallVectorImpl<mlir::Value> &results);

// `axis` with negative values counted from the end; reports if out of range.
std::optional<int64_t> wrapAxis(int64_t axis, int64_t rank, GraphBuilder &b);
mlir::LogicalResult wrapAxes(Shape &axes, int64_t rank, GraphBuilder &b);

// The element type of an ONNX type code, null if there is none.
mlir::Type onnxElement(int64_t code, mlir::MLIRContext *context);

// A view of the carrier.
OnnxNode nodeOf(train::OnnxNodeOp op);

} // namespace merak
