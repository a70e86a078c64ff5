// Sequences and optionals: lists of values that only import knows. What reads a
// position, a length or a presence needs it ahead of time, so that nothing is
// left of them but the values themselves.
#include "onnx/Import/Attributes.h"
#include "onnx/Import/GraphImporter.h"
#include "passes/Graph/HostTensor.h"

using namespace mlir;
using namespace merak;

// Values in one sequence, and in all that a graph makes.
static constexpr size_t kMaxParts = 4096, kMaxAllParts = size_t(1) << 20;

static int64_t integerAttribute(const onnx::NodeProto &node, StringRef name,
                                int64_t fallback) {
  const onnx::AttributeProto *attribute = findAttribute(node, name);
  return attribute ? attribute->i() : fallback;
}

static void addInteger(onnx::NodeProto &node, const char *name, int64_t value) {
  onnx::AttributeProto *attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(onnx::AttributeProto::INT);
  attribute->set_i(value);
}

// Binds a name to a sequence; a loop may bind it to another value before.
bool GraphImporter::bindSequence(const std::string &name,
                                 std::vector<Value> parts,
                                 const onnx::NodeProto &node, Location loc) {
  allParts += parts.size();
  if (parts.size() > kMaxParts || allParts > kMaxAllParts)
    return refuse(node, loc,
                  "expected at most " + llvm::Twine(kMaxParts) +
                      " parts of a sequence and " + llvm::Twine(kMaxAllParts) +
                      " of all, found " + llvm::Twine(parts.size()) + " and " +
                      llvm::Twine(allParts));
  values.erase(name);
  sequences[name] = std::move(parts);
  return true;
}

// The constant position in operand `slot`, from 0 to `last`; negative ones
// count from the end of `size` parts.
std::optional<int64_t> GraphImporter::positionIn(const onnx::NodeProto &node,
                                                 int slot, int64_t size,
                                                 int64_t last, Location loc) {
  Value given = operand(node.input(slot), loc, node, slot);
  if (!given)
    return std::nullopt;
  std::optional<Shape> number = integersOf(constantOf(given));
  if (!number || number->size() != 1) {
    refuse(node, loc,
           "expected a constant position, found data computed from the "
           "model's inputs or parameters");
    return std::nullopt;
  }
  int64_t at = number->front() + (number->front() < 0 ? size : 0);
  if (at < 0 || at > last) {
    refuse(node, loc,
           "expected a position in a sequence of " + llvm::Twine(size) +
               ", found " + llvm::Twine(number->front()));
    return std::nullopt;
  }
  return at;
}

// True if the node was handled here, an error told included.
bool GraphImporter::importSequence(const onnx::NodeProto &node, Location loc,
                                   int index) {
  StringRef type = node.op_type();
  if (node.output_size() < 1 ||
      !(node.domain().empty() || node.domain() == "ai.onnx"))
    return false;
  if (type == "SequenceMap")
    return importSequenceMap(node, loc, index);
  if (node.output_size() != 1)
    return false;
  if (type.starts_with("Optional"))
    return importOptional(node, loc);
  const std::string &name = node.output(0);
  if (type == "SequenceEmpty")
    return bindSequence(name, {}, node, loc);
  if (node.input_size() < 1)
    return false;
  if (type == "SplitToSequence")
    return importSplit(node, loc, index);
  if (type == "SequenceConstruct") {
    std::vector<Value> parts;
    for (int i = 0; i < node.input_size(); ++i)
      parts.push_back(operand(node.input(i), loc, node, i));
    return !ok || bindSequence(name, std::move(parts), node, loc);
  }
  if (type == "Identity") {
    auto from = sequences.find(node.input(0));
    if (from == sequences.end())
      return false;
    std::vector<Value> parts = from->second;
    return bindSequence(name, std::move(parts), node, loc);
  }
  if (type != "SequenceAt" && type != "SequenceInsert" &&
      type != "SequenceErase" && type != "SequenceLength" &&
      type != "ConcatFromSequence")
    return false;
  auto from = sequences.find(node.input(0));
  if (from == sequences.end())
    return missing.contains(node.input(0)) ||
           refuse(node, loc,
                  "expected a sequence made by the model, found '" +
                      node.input(0) + "'");
  std::vector<Value> parts = from->second;
  const auto size = static_cast<int64_t>(parts.size());
  auto has = [&](int slot) {
    return node.input_size() > slot && !node.input(slot).empty();
  };
  if (type == "SequenceLength") {
    sequences.erase(name);
    values[name] =
        constant(DenseElementsAttr::get(
                     RankedTensorType::get({}, builder.getI64Type()), size),
                 loc);
    return true;
  }
  if (type == "ConcatFromSequence")
    return importConcat(node, parts, loc, index);
  if (type == "SequenceInsert") {
    if (node.input_size() < 2)
      return false;
    Value value = operand(node.input(1), loc, node, 1);
    std::optional<int64_t> at =
        has(2) ? positionIn(node, 2, size, size, loc) : std::optional(size);
    if (!value || !at)
      return true;
    parts.insert(parts.begin() + *at, value);
    return bindSequence(name, std::move(parts), node, loc);
  }
  if (size == 0)
    return refuse(node, loc,
                  "expected a sequence with a part, found an empty "
                  "one");
  if (type == "SequenceAt" && !has(1))
    return false;
  std::optional<int64_t> at = has(1) ? positionIn(node, 1, size, size - 1, loc)
                                     : std::optional(size - 1);
  if (!at)
    return true;
  if (type == "SequenceAt") {
    sequences.erase(name);
    values[name] = parts[*at];
    return true;
  }
  parts.erase(parts.begin() + *at);
  return bindSequence(name, std::move(parts), node, loc);
}

// A Split with a result per part.
bool GraphImporter::importSplit(const onnx::NodeProto &node, Location loc,
                                int index) {
  Value whole = operand(node.input(0), loc, node, 0);
  auto type =
      whole ? dyn_cast<RankedTensorType>(whole.getType()) : RankedTensorType();
  if (!type)
    return false; // what made it is reported
  int64_t rank = type.getRank();
  int64_t axis = integerAttribute(node, "axis", 0);
  axis += axis < 0 ? rank : 0;
  if (axis < 0 || axis >= rank)
    return refuse(node, loc,
                  "expected an axis of a tensor of rank " + llvm::Twine(rank));
  int64_t length = type.getDimSize(axis);
  bool squeezes = false;
  Shape sizes;
  if (node.input_size() < 2 || node.input(1).empty()) {
    squeezes = !integerAttribute(node, "keepdims", 1);
    sizes.assign(std::min<int64_t>(length, kMaxParts + 1), 1);
  } else {
    Value given = operand(node.input(1), loc, node, 1);
    auto numbers = given ? integersOf(constantOf(given)) : std::nullopt;
    auto givenType = given ? dyn_cast<RankedTensorType>(given.getType())
                           : RankedTensorType();
    if (!numbers || !givenType)
      return refuse(node, loc,
                    "expected constant sizes, found data computed from the "
                    "model's inputs or parameters");
    if (givenType.getRank() == 0) {
      if (numbers->size() != 1 || numbers->front() < 1)
        return refuse(node, loc, "expected a positive size of the parts");
      for (int64_t rest = length; rest > 0 && sizes.size() <= kMaxParts;
           rest -= numbers->front())
        sizes.push_back(std::min(rest, numbers->front()));
    } else {
      sizes = *numbers;
    }
  }
  if (sizes.empty() || sizes.size() > kMaxParts)
    return refuse(node, loc,
                  "expected 1 to " + llvm::Twine(kMaxParts) + " parts, found " +
                      (sizes.empty() ? "none" : "more"));
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
  addInteger(split, "axis", axis);
  for (size_t i = 0; i < sizes.size(); ++i) {
    split.add_output(node.output(0) + "#" + std::to_string(i));
    ++consumers[split.output(i)];
  }
  importNode(split, index);
  std::vector<Value> parts;
  for (const std::string &part : split.output()) {
    std::string result = part;
    if (squeezes) {
      onnx::NodeProto narrow;
      narrow.set_op_type("Squeeze");
      narrow.set_name(node.name());
      narrow.add_input(part);
      narrow.add_output(result += "#narrow");
      onnx::AttributeProto *axes = narrow.add_attribute();
      axes->set_name("axes");
      axes->set_type(onnx::AttributeProto::INTS);
      axes->add_ints(axis);
      importMade(narrow, index);
    }
    auto made = values.find(result);
    if (made == values.end())
      return true; // reported
    parts.push_back(made->second);
  }
  return bindSequence(node.output(0), std::move(parts), node, loc);
}

bool GraphImporter::importConcat(const onnx::NodeProto &node,
                                 const std::vector<Value> &parts, Location loc,
                                 int index) {
  if (parts.empty())
    return refuse(node, loc,
                  "expected a sequence with a part, found an empty one");
  int64_t axis = integerAttribute(node, "axis", 0);
  sequences.erase(node.output(0));
  if (integerAttribute(node, "new_axis", 0)) {
    stack(node, parts, node.output(0), axis, index);
    return true;
  }
  onnx::NodeProto joined;
  joined.set_op_type("Concat");
  joined.set_name(node.name());
  joined.add_output(node.output(0));
  addInteger(joined, "axis", axis);
  for (size_t i = 0; i < parts.size(); ++i) {
    joined.add_input(node.output(0) + "#" + std::to_string(i));
    values[joined.input(i)] = parts[i];
  }
  importMade(joined, index);
  return true;
}

// The body once for each part of the first sequence.
bool GraphImporter::importSequenceMap(const onnx::NodeProto &node, Location loc,
                                      int index) {
  const onnx::AttributeProto *attribute = findAttribute(node, "body");
  if (!attribute || !attribute->has_g() || node.input_size() < 1)
    return false;
  const onnx::GraphProto *body = &attribute->g();
  if (body->input_size() != node.input_size() ||
      body->output_size() != node.output_size())
    return refuse(node, loc, "expected a body with as many values as the node");
  auto first = sequences.find(node.input(0));
  if (first == sequences.end())
    return missing.contains(node.input(0)) ||
           refuse(node, loc,
                  "expected a sequence made by the model, found '" +
                      node.input(0) + "'");
  const size_t count = first->second.size();
  std::vector<std::vector<Value>> given(node.input_size()),
      made(node.output_size());
  for (int i = 0; i < node.input_size(); ++i) {
    auto from = sequences.find(node.input(i));
    if (from == sequences.end())
      given[i].assign(count, operand(node.input(i), loc, node, i));
    else if (from->second.size() == count)
      given[i] = from->second;
    else
      return refuse(node, loc, "expected sequences of one length");
  }
  for (size_t k = 0; ok && k < count; ++k) {
    std::vector<Value> inputs;
    for (const std::vector<Value> &list : given)
      inputs.push_back(list[k]);
    std::vector<Value> outputs = iterate(*body, node, inputs, loc, index);
    for (size_t i = 0; i < outputs.size(); ++i)
      made[i].push_back(outputs[i]);
  }
  for (int i = 0; ok && i < node.output_size(); ++i)
    bindSequence(node.output(i), std::move(made[i]), node, loc);
  return true;
}

// Whether a value is there is known ahead of time.
bool GraphImporter::importOptional(const onnx::NodeProto &node, Location loc) {
  StringRef type = node.op_type();
  const std::string &name = node.output(0);
  const std::string given = node.input_size() ? node.input(0) : "";
  const bool isAbsent = given.empty() || absent.contains(given);
  if (type == "OptionalHasElement") {
    // An operand that was refused says so itself.
    if (!isAbsent && !sequences.count(given) && !operand(given, loc, node, 0))
      return true;
    values[name] = constant(
        DenseElementsAttr::get(RankedTensorType::get({}, builder.getI1Type()),
                               Attribute(builder.getBoolAttr(!isAbsent))),
        loc);
    return true;
  }
  if (type != "Optional" && type != "OptionalGetElement")
    return false;
  if (isAbsent) {
    if (type == "OptionalGetElement")
      return refuse(node, loc,
                    "expected a value, found an optional that is "
                    "empty");
    absent.insert(name);
    return true;
  }
  if (auto from = sequences.find(given); from != sequences.end()) {
    std::vector<Value> parts = from->second;
    return bindSequence(name, std::move(parts), node, loc);
  }
  if (Value value = operand(given, loc, node, 0))
    values[name] = value;
  return true;
}
