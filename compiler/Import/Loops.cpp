// Loop and Scan whose number of iterations is known: their bodies one after
// the other. No more than kMaxTrips iterations and kMaxNodes nodes are made.
#include "compiler/Import/Attributes.h"
#include "compiler/Import/GraphImporter.h"
#include "passes/Graph/HostTensor.h"

using namespace mlir;
using namespace merak;

namespace {
constexpr int64_t kMaxTrips = 1024, kMaxNodes = 65536;

const onnx::AttributeProto *find(const onnx::NodeProto &node, StringRef name) {
  for (const onnx::AttributeProto &attribute : node.attribute())
    if (attribute.name() == name)
      return &attribute;
  return nullptr;
}

// Entry `i` of a list of axes or directions; 0 without the list.
int64_t entry(const onnx::NodeProto &node, StringRef name, int i) {
  const onnx::AttributeProto *list = find(node, name);
  return list && i < list->ints_size() ? list->ints(i) : 0;
}

// A node that the importer makes itself.
onnx::NodeProto made(const onnx::NodeProto &of, StringRef type,
                     ArrayRef<std::string> inputs, const std::string &output) {
  onnx::NodeProto node;
  node.set_op_type(type.str());
  node.set_name(of.name());
  for (const std::string &input : inputs)
    node.add_input(input);
  node.add_output(output);
  return node;
}

void setAxis(onnx::NodeProto &node, const char *name, int64_t axis) {
  onnx::AttributeProto *attribute = node.add_attribute();
  attribute->set_name(name);
  bool isList = StringRef(name) == "axes";
  attribute->set_type(isList ? onnx::AttributeProto::INTS
                             : onnx::AttributeProto::INT);
  if (isList)
    attribute->add_ints(axis);
  else
    attribute->set_i(axis);
}
} // namespace

bool GraphImporter::refuse(const onnx::NodeProto &node, Location loc,
                           const Twine &message) {
  emitError(loc) << node.op_type() << ": " << message;
  ok = false;
  return true;
}

bool GraphImporter::importInitializers(const onnx::GraphProto &body,
                                       const onnx::NodeProto &node,
                                       Location loc) {
  for (const onnx::TensorProto &proto : body.initializer()) {
    OnnxTensor tensor;
    std::string error;
    DenseElementsAttr value;
    if (decodeTensor(proto, tensor, error))
      value = attributeOf(tensor, tensor.owned, &context);
    if (!value) {
      refuse(node, loc,
             "initializer '" + proto.name() + "': " +
                 (error.empty() ? "expected a dense numeric value" : error));
      return false;
    }
    values[proto.name()] = constant(value, loc);
  }
  return true;
}

void GraphImporter::importMade(const onnx::NodeProto &node, int index) {
  ++consumers[node.output(0)];
  importNode(node, index);
}

// The values of all iterations along a new dimension.
void GraphImporter::stack(const onnx::NodeProto &node,
                          const std::vector<Value> &parts,
                          const std::string &output, int64_t axis, int index) {
  std::vector<std::string> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = output + "#" + std::to_string(i);
    values[part] = parts[i];
    names.push_back(part + "#wide");
    onnx::NodeProto wide = made(node, "Unsqueeze", {part}, names.back());
    setAxis(wide, "axes", axis);
    importMade(wide, index);
  }
  onnx::NodeProto joined = made(node, "Concat", names, output);
  setAxis(joined, "axis", axis);
  importMade(joined, index);
}

// One iteration: the values of the body's outputs, none after an error.
std::vector<Value> GraphImporter::iterate(const onnx::GraphProto &body,
                                          const onnx::NodeProto &node,
                                          const std::vector<Value> &inputs,
                                          Location loc, int index) {
  unrolled += body.node_size();
  if (unrolled > kMaxNodes) {
    refuse(node, loc,
           "expected at most " + Twine(kMaxNodes) +
               " nodes in the iterations of all loops");
    return {};
  }
  for (int i = 0; i < body.input_size(); ++i)
    values[body.input(i).name()] = inputs[i];
  if (!importInitializers(body, node, loc))
    return {};
  for (const onnx::NodeProto &inner : body.node())
    importNode(inner, index);
  std::vector<Value> outputs;
  for (int i = 0; ok && i < body.output_size(); ++i)
    outputs.push_back(operand(body.output(i).name(), loc, node, i));
  return ok ? outputs : std::vector<Value>();
}

bool GraphImporter::tooLong(const onnx::NodeProto &node, int64_t trips,
                            Location loc) {
  if (trips >= 0 && trips <= kMaxTrips)
    return false;
  return refuse(node, loc,
                "expected at most " + Twine(kMaxTrips) + " iterations, found " +
                    Twine(trips));
}

bool GraphImporter::importLoop(const onnx::NodeProto &node, Location loc,
                               int index) {
  const onnx::AttributeProto *attribute = find(node, "body");
  if (node.op_type() != "Loop" || !attribute || node.input_size() < 2)
    return false;
  const onnx::GraphProto &body = attribute->g();
  int carried = node.input_size() - 2;
  if (body.input_size() != carried + 2 ||
      body.output_size() != node.output_size() + 1 ||
      node.output_size() < carried)
    return refuse(node, loc, "expected a body with as many values as the loop");
  // How often at most, and whether at all; null: not known.
  auto number = [&](int i, int64_t missing) -> std::optional<int64_t> {
    if (node.input(i).empty())
      return missing;
    Value value = operand(node.input(i), loc, node, i);
    std::optional<Shape> found =
        value ? integersOf(constantOf(value)) : std::nullopt;
    return found && found->size() == 1 ? std::optional(found->front())
                                       : std::nullopt;
  };
  std::optional<int64_t> trips = number(0, kMaxTrips + 1);
  std::optional<int64_t> goesOn = number(1, 1);
  if (!ok)
    return true;
  if (!trips || !goesOn)
    return refuse(node, loc,
                  "expected a number of iterations and a condition that are "
                  "known ahead of time");
  bool isBounded = !node.input(0).empty();
  if (isBounded && tooLong(node, *trips, loc))
    return true;
  std::vector<Value> state;
  for (int i = 0; i < carried; ++i)
    state.push_back(operand(node.input(i + 2), loc, node, i + 2));
  std::vector<std::vector<Value>> scanned(node.output_size() - carried);
  Type flag = builder.getI1Type(), count = builder.getI64Type();
  for (int64_t k = 0; ok && k < *trips && *goesOn; ++k) {
    if (k == kMaxTrips)
      return tooLong(node, k + 1, loc);
    std::vector<Value> inputs = {
        constant(DenseElementsAttr::get(RankedTensorType::get({}, count), k),
                 loc),
        constant(DenseElementsAttr::get(RankedTensorType::get({}, flag),
                                        Attribute(builder.getBoolAttr(true))),
                 loc)};
    inputs.insert(inputs.end(), state.begin(), state.end());
    std::vector<Value> outputs = iterate(body, node, inputs, loc, index);
    if (outputs.empty())
      return true;
    std::optional<Shape> next = integersOf(constantOf(outputs[0]));
    if (!next || next->size() != 1)
      return refuse(node, loc,
                    "expected a condition that does not depend on data");
    goesOn = next->front();
    state.assign(outputs.begin() + 1, outputs.begin() + 1 + carried);
    for (size_t i = 0; i < scanned.size(); ++i)
      scanned[i].push_back(outputs[1 + carried + i]);
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty())
      continue;
    if (i < carried)
      values[node.output(i)] = state[i];
    else if (scanned[i - carried].empty())
      return refuse(node, loc, "expected at least one iteration");
    else
      stack(node, scanned[i - carried], node.output(i), 0, index);
  }
  return true;
}

bool GraphImporter::importScan(const onnx::NodeProto &node, Location loc,
                               int index) {
  const onnx::AttributeProto *attribute = find(node, "body");
  const onnx::AttributeProto *count = find(node, "num_scan_inputs");
  // The form of opset 8 has a batch and lengths.
  if (node.op_type() != "Scan" || !attribute || !count ||
      opsetOf(node.domain()) < 9)
    return false;
  const onnx::GraphProto &body = attribute->g();
  int64_t given = count->i(), states = node.input_size() - given;
  int64_t scans = node.output_size() - states;
  if (given < 1 || states < 0 || scans < 0 ||
      body.input_size() != node.input_size() ||
      body.output_size() != node.output_size())
    return refuse(node, loc, "expected a body with as many values as the scan");
  std::vector<Value> state;
  for (int64_t i = 0; i < states; ++i)
    state.push_back(operand(node.input(i), loc, node, i));
  int64_t trips = -1;
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < given; ++i) {
    Value whole = operand(node.input(states + i), loc, node, states + i);
    auto type = whole ? dyn_cast<RankedTensorType>(whole.getType())
                      : RankedTensorType();
    if (!type)
      return false; // what made it is reported
    int64_t axis = entry(node, "scan_input_axes", i);
    axis += axis < 0 ? type.getRank() : 0;
    if (axis < 0 || axis >= type.getRank())
      return refuse(node, loc,
                    "expected an axis of '" + node.input(states + i) + "'");
    if (i && trips != type.getDimSize(axis))
      return refuse(node, loc, "expected scan inputs of one length");
    trips = type.getDimSize(axis);
    axes.push_back(axis);
  }
  if (!ok || tooLong(node, trips, loc))
    return true;
  std::vector<std::vector<Value>> scanned(scans);
  for (int64_t k = 0; ok && k < trips; ++k) {
    std::vector<Value> inputs = state;
    for (int64_t i = 0; i < given; ++i) {
      bool backwards = entry(node, "scan_input_directions", i);
      const std::string &name = node.input(states + i);
      const std::string part = node.output(0) + "#" + name;
      values[part + "#at"] =
          constant(DenseElementsAttr::get(
                       RankedTensorType::get({}, builder.getI64Type()),
                       backwards ? trips - 1 - k : k),
                   loc);
      onnx::NodeProto gather = made(node, "Gather", {name, part + "#at"}, part);
      setAxis(gather, "axis", axes[i]);
      importMade(gather, index);
      inputs.push_back(values[part]);
    }
    std::vector<Value> outputs = iterate(body, node, inputs, loc, index);
    if (outputs.empty())
      return true;
    state.assign(outputs.begin(), outputs.begin() + states);
    for (int64_t i = 0; i < scans; ++i)
      scanned[i].push_back(outputs[states + i]);
  }
  for (int64_t i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty())
      continue;
    if (i < states) {
      values[node.output(i)] = state[i];
      continue;
    }
    std::vector<Value> &parts = scanned[i - states];
    if (parts.empty())
      return refuse(node, loc, "expected at least one iteration");
    if (entry(node, "scan_output_directions", i - states))
      std::reverse(parts.begin(), parts.end());
    stack(node, parts, node.output(i),
          entry(node, "scan_output_axes", i - states), index);
  }
  return true;
}
