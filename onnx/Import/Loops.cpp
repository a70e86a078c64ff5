// Loop and Scan whose number of iterations is known: their bodies one after
// the other. No more than kMaxTrips iterations and kMaxNodes nodes are made.
#include "onnx/Import/Attributes.h"
#include "onnx/Import/GraphImporter.h"
#include "passes/Graph/HostTensor.h"

using namespace mlir;
using namespace merak;

namespace {
constexpr int64_t kMaxTrips = 1024, kMaxNodes = 65536;

// Entry `i` of a list of axes or directions; 0 without the list.
int64_t entry(const onnx::NodeProto &node, StringRef name, int i) {
  const onnx::AttributeProto *list = findAttribute(node, name);
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
  // Those without a value are sequences, which the caller has bound.
  for (int i = 0; i < body.input_size(); ++i) {
    if (!inputs[i])
      continue;
    sequences.erase(body.input(i).name());
    values[body.input(i).name()] = inputs[i];
  }
  if (!importInitializers(body, node, loc))
    return {};
  for (const onnx::NodeProto &inner : body.node())
    importNode(inner, index);
  std::vector<Value> outputs;
  for (int i = 0; ok && i < body.output_size(); ++i) {
    const std::string &name = body.output(i).name();
    outputs.push_back(sequences.count(name) ? Value()
                                            : operand(name, loc, node, i));
  }
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
  const onnx::AttributeProto *attribute = findAttribute(node, "body");
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
  // What goes from one iteration to the next; a sequence has no value.
  std::vector<Value> state;
  std::vector<Parts> lists(carried);
  for (int i = 0; i < carried; ++i) {
    auto list = sequences.find(node.input(i + 2));
    if (list != sequences.end())
      lists[i] = list->second;
    state.push_back(list != sequences.end()
                        ? Value()
                        : operand(node.input(i + 2), loc, node, i + 2));
  }
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
    for (int i = 0; ok && i < carried; ++i)
      if (!state[i])
        bindSequence(body.input(i + 2).name(), lists[i], node, loc);
    std::vector<Value> outputs;
    if (ok)
      outputs = iterate(body, node, inputs, loc, index);
    if (outputs.empty())
      return true;
    if (!outputs[0] ||
        llvm::is_contained(ArrayRef(outputs).drop_front(1 + carried), Value()))
      return refuse(node, loc,
                    "expected tensors as condition and as what is collected, "
                    "found a sequence");
    for (int i = 0; i < carried; ++i)
      if (!outputs[1 + i])
        lists[i] = sequences[body.output(1 + i).name()];
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
    if (i < carried && !state[i])
      bindSequence(node.output(i), lists[i], node, loc);
    else if (i < carried)
      values[node.output(i)] = state[i];
    else if (scanned[i - carried].empty())
      return refuse(node, loc, "expected at least one iteration");
    else
      stack(node, scanned[i - carried], node.output(i), 0, index);
  }
  return true;
}

// One pass over scan inputs: `state` becomes the last one; the parts of each
// scan output come in the order of the iterations. False after an error.
bool GraphImporter::scan(const onnx::GraphProto &body,
                         const onnx::NodeProto &node, std::vector<Value> &state,
                         ArrayRef<ScanInput> scans, int64_t trips,
                         std::vector<Parts> &scanned, Location loc, int index) {
  for (int64_t k = 0; ok && k < trips; ++k) {
    std::vector<Value> inputs = state;
    unrolled += static_cast<int64_t>(scans.size());
    for (const ScanInput &input : scans) {
      const std::string part = node.output(0) + "#part";
      importPart(node, input.whole, input.axis,
                 input.backwards ? trips - 1 - k : k, part, loc, index);
      inputs.push_back(values.lookup(part));
    }
    std::vector<Value> outputs;
    if (ok)
      outputs = iterate(body, node, inputs, loc, index);
    if (outputs.empty())
      return false;
    if (llvm::is_contained(outputs, Value())) {
      refuse(node, loc, "expected tensors, found a sequence");
      return false;
    }
    state.assign(outputs.begin(), outputs.begin() + state.size());
    for (size_t i = 0; i < scanned.size(); ++i)
      scanned[i].push_back(outputs[state.size() + i]);
  }
  return ok;
}

// Element `at` of an axis, without the axis.
void GraphImporter::importPart(const onnx::NodeProto &node, Value whole,
                               int64_t axis, int64_t at,
                               const std::string &output, Location loc,
                               int index) {
  values[output + "#whole"] = whole;
  values[output + "#at"] =
      constant(DenseElementsAttr::get(
                   RankedTensorType::get({}, builder.getI64Type()), at),
               loc);
  onnx::NodeProto gather =
      made(node, "Gather", {output + "#whole", output + "#at"}, output);
  setAxis(gather, "axis", axis);
  importMade(gather, index);
}

// From opset 9. The form of opset 8 has lengths, and a batch as the first
// dimension of everything, which is taken apart as well.
bool GraphImporter::importScan(const onnx::NodeProto &node, Location loc,
                               int index) {
  const onnx::AttributeProto *attribute = findAttribute(node, "body");
  const onnx::AttributeProto *count = findAttribute(node, "num_scan_inputs");
  if (node.op_type() != "Scan" || !attribute || !count)
    return false;
  const bool isBatched = opsetOf(node.domain()) < 9;
  const int offset = isBatched ? 1 : 0;
  const onnx::GraphProto &body = attribute->g();
  int64_t given = count->i(), states = node.input_size() - offset - given;
  int64_t outputs = node.output_size() - states;
  if (given < 1 || states < 0 || outputs < 0 ||
      body.input_size() != node.input_size() - offset ||
      body.output_size() != node.output_size())
    return refuse(node, loc, "expected a body with as many values as the scan");
  if (isBatched && !node.input(0).empty())
    return refuse(node, loc, "unsupported lengths of the sequences of a batch");
  std::vector<Value> all; // states, then scan inputs
  int64_t trips = -1, batch = isBatched ? -1 : 1;
  std::vector<ScanInput> scans;
  for (int64_t i = 0; i < states + given; ++i) {
    Value whole = operand(node.input(offset + i), loc, node, offset + i);
    auto type = whole ? dyn_cast<RankedTensorType>(whole.getType())
                      : RankedTensorType();
    if (!type && i < states && !isBatched) {
      all.push_back(whole);
      continue;
    }
    if (!type)
      return false; // what made it is reported
    all.push_back(whole);
    if (isBatched &&
        (type.getRank() < 1 || (batch >= 0 && type.getDimSize(0) != batch)))
      return refuse(node, loc, "expected values with one batch");
    if (isBatched)
      batch = type.getDimSize(0);
    if (i < states)
      continue;
    const int64_t scan = i - states, rank = type.getRank() - offset;
    int64_t axis = isBatched ? 0 : entry(node, "scan_input_axes", scan);
    axis += axis < 0 ? rank : 0;
    if (axis < 0 || axis >= rank)
      return refuse(node, loc,
                    "expected an axis of '" + node.input(offset + i) + "'");
    if (scan && trips != type.getDimSize(axis + offset))
      return refuse(node, loc, "expected scan inputs of one length");
    trips = type.getDimSize(axis + offset);
    const char *name = isBatched ? "directions" : "scan_input_directions";
    scans.push_back({whole, axis, entry(node, name, scan) != 0});
  }
  if (!ok || tooLong(node, trips, loc) || tooLong(node, batch, loc))
    return true;
  if ((trips == 0 && outputs > 0) || batch == 0)
    return refuse(node, loc, "expected at least one iteration");
  // Of each output one value for each element of the batch.
  std::vector<Parts> results(node.output_size());
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<Value> state(all.begin(), all.begin() + states);
    std::vector<ScanInput> inputs = scans;
    auto ofBatch = [&](Value &whole) {
      const std::string part = node.output(0) + "#batch";
      importPart(node, whole, 0, b, part, loc, index);
      whole = values.lookup(part);
    };
    if (isBatched) {
      llvm::for_each(state, ofBatch);
      for (ScanInput &input : inputs)
        ofBatch(input.whole);
    }
    std::vector<Parts> scanned(outputs);
    if (!ok || !scan(body, node, state, inputs, trips, scanned, loc, index))
      return true;
    for (int64_t i = 0; i < states; ++i)
      results[i].push_back(state[i]);
    for (int64_t i = 0; i < outputs; ++i) {
      if (node.output(states + i).empty())
        continue;
      if (!isBatched && entry(node, "scan_output_directions", i))
        std::reverse(scanned[i].begin(), scanned[i].end());
      const std::string name =
          node.output(states + i) + (isBatched ? "#batch" : "");
      stack(node, scanned[i], name,
            isBatched ? 0 : entry(node, "scan_output_axes", i), index);
      results[states + i].push_back(values.lookup(name));
    }
  }
  for (int64_t i = 0; ok && i < node.output_size(); ++i) {
    if (node.output(i).empty())
      continue;
    if (isBatched)
      stack(node, results[i], node.output(i), 0, index);
    else
      values[node.output(i)] = results[i][0];
  }
  return true;
}
