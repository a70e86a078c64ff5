#include "passes/Graph/OnnxNode.h"
#include "passes/Graph/HostTensor.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace merak;

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

// The domain whose text was never given versions.
static constexpr StringRef kTrainingDomain = "ai.onnx.preview.training";

using ByName = llvm::StringMap<SmallVector<OnnxEntry>>;

static const ByName &trainingConversions() {
  static const ByName table = [] {
    SmallVector<OnnxEntry> entries;
    addTrainingConversions(entries);
    ByName byName;
    for (const OnnxEntry &entry : entries)
      byName[entry.type].push_back(entry);
    return byName;
  }();
  return table;
}

static const ByName &conversions() {
  static const ByName table = [] {
    SmallVector<OnnxEntry> entries;
    addElementwiseConversions(entries);
    addShapeConversions(entries);
    addMathConversions(entries);
    addIndexConversions(entries);
    addResizeConversions(entries);
    addRecurrentConversions(entries);
    addGridConversions(entries);
    addReductionConversions(entries);
    addNetworkConversions(entries);
    addWindowConversions(entries);
    addLossConversions(entries);
    addAttentionConversions(entries);
    ByName byName;
    for (const OnnxEntry &entry : entries)
      byName[entry.type].push_back(entry);
    return byName;
  }();
  return table;
}

OnnxConversionFn merak::findConversion(const OnnxNode &node,
                                       std::string &reason) {
  bool training = node.domain == kTrainingDomain;
  if (!node.domain.empty() && node.domain != "ai.onnx" && !training) {
    reason = "unsupported op, expected one of the standard domain";
    return nullptr;
  }
  const ByName &table = training ? trainingConversions() : conversions();
  auto found = table.find(node.type);
  if (found == table.end()) {
    reason = "unsupported op";
    return nullptr;
  }
  for (const OnnxEntry &entry : found->second)
    if (entry.since <= node.opset && node.opset <= entry.until)
      return entry.convert;
  reason = "unsupported version of the op, expected opset";
  for (auto [i, entry] : llvm::enumerate(found->second))
    reason += (i ? " or " : " ") + std::to_string(entry.since) + " to " +
              std::to_string(entry.until);
  return nullptr;
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
