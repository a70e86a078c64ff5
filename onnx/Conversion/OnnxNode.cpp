#include "onnx/Conversion/OnnxNode.h"
#include "passes/Graph/HostTensor.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace merak;

namespace merak {
void addQuantizedConversions(OnnxTable &table);
void addRandomConversions(OnnxTable &table);
} // namespace merak

bool OnnxNode::has(size_t index) const {
  return index < inputs.size() && !isa<NoneType>(inputs[index].getType());
}

Value OnnxNode::in(size_t index) const {
  return has(index) && isa<RankedTensorType>(inputs[index].getType())
             ? inputs[index]
             : Value();
}

bool OnnxNode::isTyped() const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (has(i) && !isa<RankedTensorType>(inputs[i].getType()))
      return false;
  return true;
}

int64_t OnnxNode::integer(StringRef name, int64_t fallback) const {
  auto attr = attributes.getAs<IntegerAttr>(name);
  return attr ? attr.getInt() : fallback;
}

double OnnxNode::real(StringRef name, double fallback) const {
  auto attr = attributes.getAs<FloatAttr>(name);
  return attr ? attr.getValueAsDouble() : fallback;
}

StringRef OnnxNode::string(StringRef name, StringRef fallback) const {
  auto attr = attributes.getAs<StringAttr>(name);
  return attr ? attr.getValue() : fallback;
}

std::optional<Shape> OnnxNode::integers(StringRef name) const {
  if (auto attr = attributes.getAs<DenseI64ArrayAttr>(name))
    return Shape(attr.asArrayRef());
  return std::nullopt;
}

LogicalResult OnnxNode::integersAt(size_t input, StringRef attribute,
                                   GraphBuilder &b,
                                   std::optional<Shape> &result) const {
  result = integers(attribute);
  if (!has(input))
    return success();
  result = integersOf(constantOf(in(input)));
  if (result)
    return success();
  b.fail("expected constant " + attribute +
         ", found data computed from the "
         "model's inputs or parameters");
  return failure();
}

std::string merak::describeNode(const OnnxNode &node) {
  std::string text = node.type.str() + " (";
  if (!node.domain.empty())
    text += node.domain.str() + " ";
  return text + "opset " + std::to_string(node.opset) + "): ";
}

std::optional<int64_t> merak::wrapAxis(int64_t axis, int64_t rank,
                                       GraphBuilder &b) {
  if (axis < -rank || axis >= rank) {
    b.fail("expected an axis of a tensor of rank " + std::to_string(rank) +
           ", found " + std::to_string(axis));
    return std::nullopt;
  }
  return axis < 0 ? axis + rank : axis;
}

LogicalResult merak::wrapAxes(Shape &axes, int64_t rank, GraphBuilder &b) {
  for (int64_t &axis : axes) {
    std::optional<int64_t> wrapped = wrapAxis(axis, rank, b);
    if (!wrapped)
      return failure();
    axis = *wrapped;
  }
  return success();
}

static SmallVector<OnnxEntry> makeEntries() {
  OnnxTable table;
  addTrainingConversions(table);
  for (OnnxEntry &entry : table.entries)
    entry.domain = kTrainingDomain.data();
  addElementwiseConversions(table);
  addShapeConversions(table);
  addMathConversions(table);
  addIndexConversions(table);
  addResizeConversions(table);
  addRecurrentConversions(table);
  addGridConversions(table);
  addReductionConversions(table);
  addNetworkConversions(table);
  addWindowConversions(table);
  addLossConversions(table);
  addAttentionConversions(table);
  addSignalConversions(table);
  addVisionConversions(table);
  addQuantizedConversions(table);
  addRandomConversions(table);
  setOnnxGradients(table);
  llvm::stable_sort(table.entries, [](const OnnxEntry &a, const OnnxEntry &b) {
    return std::make_tuple(StringRef(a.type), StringRef(a.domain), a.since) <
           std::make_tuple(StringRef(b.type), StringRef(b.domain), b.since);
  });
  return std::move(table.entries);
}

ArrayRef<OnnxEntry> merak::onnxEntries() {
  static const SmallVector<OnnxEntry> table = makeEntries();
  return table;
}

// All forms of an operator, in the order of versions.
static ArrayRef<OnnxEntry> formsOf(StringRef domain, StringRef type) {
  if (domain == "ai.onnx")
    domain = "";
  ArrayRef<OnnxEntry> table = onnxEntries();
  auto matches = [&](const OnnxEntry &entry) {
    return entry.type == type && entry.domain == domain;
  };
  const OnnxEntry *first = llvm::find_if(table, matches), *last = first;
  while (last != table.end() && matches(*last))
    ++last;
  return {first, last};
}

OnnxGradient merak::onnxGradient(StringRef domain, StringRef type) {
  ArrayRef<OnnxEntry> forms = formsOf(domain, type);
  return forms.empty() ? OnnxGradient() : forms.front().gradient;
}

bool merak::isAtImport(StringRef domain, StringRef type) {
  ArrayRef<OnnxEntry> forms = formsOf(domain, type);
  return !forms.empty() && !forms.front().convert;
}

OnnxConversionFn merak::findConversion(const OnnxNode &node,
                                       std::string &reason) {
  if (!node.domain.empty() && node.domain != "ai.onnx" &&
      node.domain != kTrainingDomain) {
    reason = "unsupported op, expected one of the standard domain";
    return nullptr;
  }
  ArrayRef<OnnxEntry> forms = formsOf(node.domain, node.type);
  if (forms.empty()) {
    reason = "unsupported op";
    return nullptr;
  }
  if (!forms.front().convert) {
    reason = "expected operands that are known ahead of time";
    return nullptr;
  }
  for (const OnnxEntry &entry : forms)
    if (entry.since <= node.opset && node.opset <= entry.until)
      return entry.convert;
  reason = "unsupported version of the op, expected opset";
  for (auto [i, entry] : llvm::enumerate(forms))
    reason += (i ? " or " : " ") + std::to_string(entry.since) + " to " +
              std::to_string(entry.until);
  return nullptr;
}

// Where the exported program lets no gradient through: what was detached, and
// the padding row of an embedding.
static void stopGradients(const OnnxNode &node, GraphBuilder &b,
                          MutableArrayRef<Value> results) {
  if (!node.train)
    return;
  auto isFloat = [](Value value) {
    auto type = value ? dyn_cast<RankedTensorType>(value.getType())
                      : RankedTensorType();
    return type && isa<FloatType>(type.getElementType());
  };
  if (node.integer(kStopGradient, 0))
    for (Value &result : results)
      if (isFloat(result) && !constantOf(result))
        result = b.unary<train::StopGradientOp>(result);
  if (node.hasAttribute(kPaddingIndex) && results.size() == 1 &&
      isFloat(results[0]) && node.integer("axis", 0) == 0 &&
      rankOf(node.in(0)) == 2 && !constantOf(node.in(1))) {
    Value ids = node.in(1), found = results[0];
    Shape rows(shapeOf(ids));
    rows.push_back(1);
    Value isPadding = b.compare(
        train::ComparePredicate::eq, ids,
        b.scalarLike(static_cast<double>(node.integer(kPaddingIndex, 0)), ids));
    results[0] = b.select(b.reshape(isPadding, rows),
                          b.unary<train::StopGradientOp>(found), found);
  }
}

LogicalResult merak::convertNode(const OnnxNode &node, OpBuilder &builder,
                                 SmallVectorImpl<Value> &results) {
  GraphBuilder b(builder, node.loc);
  b.prefix = describeNode(node);
  std::string reason;
  OnnxConversionFn convert = findConversion(node, reason);
  if (!convert) {
    b.fail(reason);
    return failure();
  }
  results.assign(node.usedOutputs.size(), Value());
  if (failed(convert(node, b, results)))
    return failure();
  stopGradients(node, b, results);
  for (auto [used, result] : llvm::zip(node.usedOutputs, results))
    if (used && !result)
      return failure();
  return success();
}

OnnxNode merak::nodeOf(train::OnnxNodeOp op) {
  OnnxNode node{op.getLoc(),
                op.getOpType(),
                op.getDomain(),
                static_cast<int64_t>(op.getOpset()),
                op.getOnnxAttrs(),
                SmallVector<Value>(op.getInputs()),
                {}};
  for (Value output : op.getOutputs())
    node.usedOutputs.push_back(!output.use_empty());
  return node;
}
