// SplitToSequence followed by SequenceAt, as the dynamo exporter writes
// torch.split without optimization: a Split with a result per part.
#include "compiler/Import/GraphImporter.h"
#include "passes/Graph/HostTensor.h"

using namespace mlir;
using namespace merak;

static int64_t integerAttribute(const onnx::NodeProto &node, StringRef name,
                                int64_t fallback) {
  for (const onnx::AttributeProto &attribute : node.attribute())
    if (attribute.name() == name)
      return attribute.i();
  return fallback;
}

// True if the node was one of the two; its results are then known by the names
// "<sequence>#<part>".
bool GraphImporter::importSequence(const onnx::NodeProto &node, Location loc,
                                   int index) {
  bool splits = node.op_type() == "SplitToSequence";
  if ((!splits && node.op_type() != "SequenceAt") || node.output_size() != 1 ||
      node.input_size() < 1)
    return false;
  auto refuse = [&](const llvm::Twine &message) {
    emitError(loc) << node.op_type() << ": " << message;
    ok = false;
    return true;
  };
  if (!splits) {
    auto parts = sequences.find(node.input(0));
    if (parts == sequences.end() || node.input_size() != 2)
      return false;
    Value position = operand(node.input(1), loc, node, 1);
    auto number = position ? integersOf(constantOf(position)) : std::nullopt;
    if (!number || number->size() != 1)
      return refuse("expected a constant position, found data computed from "
                    "the model's inputs or parameters");
    int64_t at = number->front();
    at += at < 0 ? parts->second : 0;
    if (at < 0 || at >= parts->second)
      return refuse("expected a position in a sequence of " +
                    llvm::Twine(parts->second) + ", found " +
                    llvm::Twine(number->front()));
    values[node.output(0)] = values[node.input(0) + "#" + std::to_string(at)];
    return true;
  }
  Value whole = operand(node.input(0), loc, node, 0);
  auto type =
      whole ? dyn_cast<RankedTensorType>(whole.getType()) : RankedTensorType();
  if (!type)
    return false; // what made it is reported
  int64_t rank = type.getRank();
  int64_t axis = integerAttribute(node, "axis", 0);
  axis += axis < 0 ? rank : 0;
  if (axis < 0 || axis >= rank)
    return refuse("expected an axis of a tensor of rank " + llvm::Twine(rank));
  int64_t length = type.getDimSize(axis);
  Shape sizes;
  if (node.input_size() < 2 || node.input(1).empty()) {
    if (!integerAttribute(node, "keepdims", 1))
      return refuse("unsupported keepdims=0");
    sizes.assign(length, 1);
  } else {
    Value given = operand(node.input(1), loc, node, 1);
    auto numbers = given ? integersOf(constantOf(given)) : std::nullopt;
    auto givenType = given ? dyn_cast<RankedTensorType>(given.getType())
                           : RankedTensorType();
    if (!numbers || !givenType)
      return refuse("expected constant sizes, found data computed from the "
                    "model's inputs or parameters");
    if (givenType.getRank() == 0) {
      if (numbers->size() != 1 || numbers->front() < 1)
        return refuse("expected a positive size of the parts");
      for (int64_t rest = length; rest > 0; rest -= numbers->front())
        sizes.push_back(std::min(rest, numbers->front()));
    } else {
      sizes = *numbers;
    }
  }
  constexpr size_t kMaxParts = 4096;
  if (sizes.empty() || sizes.size() > kMaxParts)
    return refuse("expected 1 to " + llvm::Twine(kMaxParts) + " parts, found " +
                  llvm::Twine(sizes.size()));
  onnx::NodeProto split;
  split.set_op_type("Split");
  split.set_name(node.name());
  const std::string sizesName = node.output(0) + "#sizes";
  values[sizesName] =
      constant(DenseElementsAttr::get(
                   RankedTensorType::get({static_cast<int64_t>(sizes.size())},
                                         builder.getI64Type()),
                   ArrayRef<int64_t>(sizes)),
               loc);
  split.add_input(node.input(0));
  split.add_input(sizesName);
  for (size_t i = 0; i < sizes.size(); ++i) {
    split.add_output(node.output(0) + "#" + std::to_string(i));
    ++consumers[split.output(i)];
  }
  onnx::AttributeProto *attribute = split.add_attribute();
  attribute->set_name("axis");
  attribute->set_type(onnx::AttributeProto::INT);
  attribute->set_i(axis);
  sequences[node.output(0)] = static_cast<int64_t>(sizes.size());
  importNode(split, index);
  return true;
}
