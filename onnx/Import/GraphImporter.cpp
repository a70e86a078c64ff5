// Walks the nodes of a graph in order: names to values, types, folding.
#include "onnx/Import/GraphImporter.h"

#include "onnx/Import/Attributes.h"
#include "onnx/Import/FoldNode.h"
#include "onnx/Import/NodeFacts.h"
#include "onnx/Import/RestoreProgram.h"
#include "passes/Graph/HostTensor.h"

using namespace mlir;
using namespace merak;

// Of all nodes of a graph; a node without operands counts as one.
static constexpr int64_t kMaxOperands = 131072;

GraphImporter::GraphImporter(OnnxFile &file, const ImportOptions &options,
                             MLIRContext &context, ImportReport &report)
    : file(file), graph(file.model().graph()), options(options),
      context(context), report(report),
      fileLoc(FileLineColLoc::get(&context, file.fileName(), 0, 0)),
      builder(&context) {}

void GraphImporter::fail(const llvm::Twine &message) {
  emitError(fileLoc) << message;
  ok = false;
}

Location GraphImporter::locationOf(const onnx::NodeProto &node, int index) {
  std::string name = node.name();
  if (name.empty() && node.output_size())
    name = node.output(0);
  if (name.empty())
    name = node.op_type() + "_" + std::to_string(index);
  return NameLoc::get(builder.getStringAttr(name), fileLoc);
}

int64_t GraphImporter::opsetOf(StringRef domain) const {
  auto standard = [](StringRef d) { return d.empty() || d == "ai.onnx"; };
  for (const auto &entry : file.model().opset_import())
    if (entry.domain() == domain ||
        (standard(entry.domain()) && standard(domain)))
      return entry.version();
  return 1;
}

FailureOr<OwningOpRef<ModuleOp>> GraphImporter::run() {
  module = ModuleOp::create(fileLoc);
  builder.setInsertionPointToEnd(module->getBody());
  function = func::FuncOp::create(builder, fileLoc, "model",
                                  builder.getFunctionType({}, {}));
  builder.setInsertionPointToEnd(function.addEntryBlock());
  report.opset = opsetOf("");
  report.nodes = graph.node_size();
  // What later phases do is about linear in it: about a minute for the most.
  int64_t operands = 0;
  for (const onnx::NodeProto &node : graph.node())
    operands += std::max(node.input_size(), 1);
  if (operands > kMaxOperands) {
    fail("expected at most " + llvm::Twine(kMaxOperands) +
         " operands of nodes, found " + llvm::Twine(operands));
    return failure();
  }

  if (!chooseOutputs() || !bindInputs() || !restoreProgram())
    return failure();
  countUses(graph);
  for (const std::string &output : outputs)
    ++consumers[output];
  feeding = nodesFeeding(graph, outputs);
  decideWeights();
  if (!ok)
    return failure();
  for (int i = 0; i < graph.node_size(); ++i) {
    if (feeding[i])
      importNode(graph.node(i), i);
    else
      ++report.unreached;
  }
  if (!finish() || !ok) {
    // `legalize-onnx` will not be there to say it.
    for (const auto &[loc, message] : unknown)
      emitError(loc) << message;
    return failure();
  }
  return std::move(module);
}

static int64_t trainingNorms(const onnx::GraphProto &graph) {
  return llvm::count_if(graph.node(), [](const onnx::NodeProto &node) {
    const onnx::AttributeProto *mode = findAttribute(node, "training_mode");
    return node.op_type() == "BatchNormalization" && mode && mode->i();
  });
}

// What the exporter did to the program's parameters is undone, and what it has
// no operators for is taken from its notes.
bool GraphImporter::restoreProgram() {
  const int64_t before = trainingNorms(graph);
  for (const auto &[place, problem] : readNodeFacts(file.mutableGraph())) {
    emitError(NameLoc::get(builder.getStringAttr(place), fileLoc)) << problem;
    ok = false;
  }
  if (int64_t more = trainingNorms(graph) - before; more > 0 && options.train)
    report.restored.push_back(
        std::to_string(more) +
        " batch norms that normalize by their batch, as the exported program "
        "says");
  const ExportedProgram exported(graph);
  if (!exported.isKnown() || options.updated)
    return true;
  programParameters = exported.parameters();
  ProgramRestorer restorer(file, exported, options, outputs, report.globalBatch,
                           report);
  for (const RestoreError &error : restorer.run()) {
    if (!options.train)
      continue;
    emitError(NameLoc::get(builder.getStringAttr(error.place), fileLoc))
        << error.what << " (" << error.help << ")";
    ok = false;
  }
  program.emplace();
  program->trained = restorer.trained();
  program->buffers.insert(exported.buffers().begin(), exported.buffers().end());
  return ok;
}

//===----------------------------------------------------------------------===//
// Outputs and inputs
//===----------------------------------------------------------------------===//

bool GraphImporter::chooseOutputs() {
  std::string known;
  std::vector<std::string> scalars;
  for (const onnx::ValueInfoProto &output : graph.output()) {
    known += (known.empty() ? "'" : ", '") + output.name() + "'";
    const auto &type = output.type().tensor_type();
    int64_t elements = 1;
    for (const auto &dim : type.shape().dim())
      elements *= dim.has_dim_value() ? dim.dim_value() : 2;
    bool isFloat = type.elem_type() == onnx::TensorProto::FLOAT ||
                   type.elem_type() == onnx::TensorProto::DOUBLE ||
                   type.elem_type() == onnx::TensorProto::FLOAT16 ||
                   type.elem_type() == onnx::TensorProto::BFLOAT16;
    if (isFloat && type.has_shape() && elements == 1)
      scalars.push_back(output.name());
    if (!options.train)
      outputs.push_back(output.name());
  }
  if (!options.train)
    return !outputs.empty() || (fail("expected a graph with outputs"), false);
  std::string loss = options.loss;
  if (loss.empty() && scalars.size() == 1)
    loss = scalars[0];
  if (loss.empty()) {
    fail("expected one scalar float output as the loss, found " +
         llvm::Twine(scalars.size()) + " among " +
         (known.empty() ? "no outputs" : known) + " (choose one with --loss)");
    return false;
  }
  bool found = options.updated.has_value();
  for (const onnx::ValueInfoProto &output : graph.output()) {
    found |= output.name() == loss;
    if (output.name() != loss)
      report.unusedOutputs.push_back(output.name());
  }
  if (!found) {
    fail("expected the loss among the outputs " + known + ", found '" + loss +
         "'");
    return false;
  }
  outputs = {loss};
  return true;
}

// The size of one dimension of an input; open dimensions are collected by name.
bool GraphImporter::bindDim(const onnx::ValueInfoProto &input, int index,
                            const SmallVector<int64_t> *given, int64_t &size) {
  const auto &dim = input.type().tensor_type().shape().dim(index);
  std::string where =
      "input '" + input.name() + "' dimension " + std::to_string(index);
  int64_t wanted = given ? (*given)[index] : -1;
  if (wanted < 0 && index == 0 && options.globalBatch > 0)
    wanted = options.globalBatch;
  if (dim.has_dim_value() && dim.dim_value() > 0) {
    size = dim.dim_value();
    if (wanted >= 0 && wanted != size)
      fail(where + ": expected size " + llvm::Twine(size) +
           " as in the model, found " + llvm::Twine(wanted) +
           (index == 0 && !given ? " from --global-batch" : " from --shape"));
    return true;
  }
  std::string symbol = dim.dim_param();
  if (!symbol.empty()) {
    auto it = symbols.find(symbol);
    if (it != symbols.end() && wanted >= 0 && it->second != wanted)
      fail(where + ": expected " + llvm::Twine(it->second) + " for '" + symbol +
           "' as in another input, found " + llvm::Twine(wanted));
    if (wanted < 0 && it != symbols.end())
      wanted = it->second;
    if (wanted >= 0)
      symbols[symbol] = wanted;
  }
  size = wanted;
  return wanted >= 0;
}

bool GraphImporter::bindInputs() {
  llvm::StringSet<> initialized;
  for (const OnnxTensor &tensor : file.initializers())
    initialized.insert(tensor.name);
  for (const auto &[name, shape] : options.shapes)
    if (llvm::none_of(graph.input(), [&](const auto &input) {
          return input.name() == name && !initialized.contains(name);
        }))
      fail("--shape names no input of the model: '" + name + "'");
  std::string unbound;
  // Twice: a size given for one input binds the same symbol in earlier ones.
  for (int pass = 0; pass < 2; ++pass) {
    unbound.clear();
    for (const onnx::ValueInfoProto &input : graph.input()) {
      if (initialized.contains(input.name()))
        continue;
      const auto &proto = input.type().tensor_type();
      Type element = elementTypeOf(proto.elem_type(), &context);
      auto it = options.shapes.find(input.name());
      const SmallVector<int64_t> *given =
          it == options.shapes.end() ? nullptr : &it->second;
      int rank = proto.shape().dim_size();
      if (!element || !proto.has_shape() ||
          (given && static_cast<int>(given->size()) != rank)) {
        if (pass == 1)
          fail("input '" + input.name() + "': " +
               (!element ? "unsupported element type " +
                               onnxElementName(proto.elem_type())
                : !proto.has_shape()
                    ? std::string("expected a shape, found none")
                    : "expected " + std::to_string(rank) +
                          " dimensions in --shape, found " +
                          std::to_string(given->size())));
        continue;
      }
      Shape shape(rank);
      for (int i = 0; i < rank; ++i)
        if (!bindDim(input, i, given, shape[i]) && pass == 1) {
          const auto &dim = proto.shape().dim(i);
          unbound +=
              (unbound.empty() ? "" : ", ") + input.name() + "[" +
              std::to_string(i) + "]" +
              (dim.dim_param().empty() ? "" : " '" + dim.dim_param() + "'");
        }
      if (!ok && pass == 0)
        return false;
      if (pass == 0 || llvm::is_contained(shape, -1))
        continue;
      if (!isSaneShape(shape)) {
        fail("input '" + input.name() + "': " + describeShape(shape) +
             " is too large");
        continue;
      }
      unsigned at = function.getNumArguments();
      if (failed(function.insertArgument(
              at, RankedTensorType::get(shape, element),
              builder.getDictionaryAttr(builder.getNamedAttr(
                  kImportNameAttr, builder.getStringAttr(input.name()))),
              NameLoc::get(builder.getStringAttr(input.name()), fileLoc))))
        return false;
      values[input.name()] = function.getArgument(at);
      if (rank && !report.globalBatch)
        report.globalBatch = shape[0];
    }
  }
  if (!unbound.empty())
    fail("expected sizes for the symbolic dimensions " + unbound +
         " (use --shape, and --global-batch for the first dimension)");
  if (report.globalBatch)
    module->getOperation()->setAttr(
        train::kConfigAttr,
        train::ConfigAttr::of(*module).withBatch(report.globalBatch));
  return ok;
}

//===----------------------------------------------------------------------===//
// Nodes
//===----------------------------------------------------------------------===//

Value GraphImporter::constant(DenseElementsAttr value, Location loc) {
  return train::ConstantOp::create(builder, loc, value.getType(),
                                   cast<ElementsAttr>(value));
}

Value GraphImporter::operand(const std::string &name, Location loc,
                             const onnx::NodeProto &node, int slot) {
  if (name.empty())
    return train::NoneOp::create(builder, loc, builder.getNoneType());
  if (auto it = values.find(name); it != values.end())
    return it->second;
  std::string use =
      node.name() + "\n" + node.output(0) + "\n" + std::to_string(slot);
  if (auto it = splitUses.find(use); it != splitUses.end())
    return read(*it->second, loc);
  if (auto it = weightOf.find(name); it != weightOf.end())
    return read(*it->second, loc);
  // What follows from a refusal is not told again.
  if (!missing.contains(name))
    emitError(loc) << node.op_type() << ": input '" << name
                   << "' is made by no earlier node, input or initializer";
  ok = false;
  return {};
}

bool GraphImporter::importConstant(const onnx::NodeProto &node, Location loc) {
  if (node.op_type() != "Constant" || node.output_size() != 1)
    return false;
  DictionaryAttr attrs = attributesOf(node, &context);
  DenseElementsAttr value = attrs.getAs<DenseElementsAttr>("value");
  auto scalarType = [](Type type) { return RankedTensorType::get({}, type); };
  if (auto number = attrs.getAs<IntegerAttr>("value_int"))
    value = DenseElementsAttr::get(scalarType(builder.getI64Type()),
                                   number.getInt());
  if (auto number = attrs.getAs<FloatAttr>("value_float"))
    value = DenseElementsAttr::get(scalarType(builder.getF32Type()),
                                   number.getValue());
  if (auto list = attrs.getAs<DenseI64ArrayAttr>("value_ints"))
    value = DenseElementsAttr::get(
        RankedTensorType::get({list.size()}, builder.getI64Type()),
        list.asArrayRef());
  if (auto list = attrs.getAs<DenseF32ArrayAttr>("value_floats"))
    value = DenseElementsAttr::get(
        RankedTensorType::get({list.size()}, builder.getF32Type()),
        list.asArrayRef());
  if (!value) {
    emitError(loc) << "Constant: expected a dense numeric value of matching "
                      "size";
    ok = false;
    return true;
  }
  values[node.output(0)] = constant(value, loc);
  return true;
}

// Every use of a name, in branches too.
void GraphImporter::countUses(const onnx::GraphProto &graph) {
  for (const onnx::NodeProto &node : graph.node()) {
    for (const std::string &input : node.input())
      ++consumers[input];
    for (const onnx::AttributeProto &attribute : node.attribute())
      if (attribute.has_g()) {
        countUses(attribute.g());
        for (const onnx::ValueInfoProto &output : attribute.g().output())
          ++consumers[output.name()];
      }
  }
}

// The branch that a constant condition chooses takes the place of the node.
bool GraphImporter::importIf(const onnx::NodeProto &node, Location loc,
                             int index) {
  if (node.op_type() != "If" || node.input_size() != 1)
    return false;
  Value condition = operand(node.input(0), loc, node, 0);
  if (!condition)
    return true;
  std::optional<Shape> flag = integersOf(constantOf(condition));
  if (!flag || flag->size() != 1)
    return refuse(node, loc,
                  "expected a constant condition, found data computed from "
                  "the model's inputs or parameters");
  const onnx::AttributeProto *chosen =
      findAttribute(node, flag->front() ? "then_branch" : "else_branch");
  const onnx::GraphProto *branch = chosen ? &chosen->g() : nullptr;
  if (!branch || branch->output_size() != node.output_size())
    return refuse(node, loc,
                  "expected a branch with " + llvm::Twine(node.output_size()) +
                      " outputs");
  if (!importInitializers(*branch, node, loc))
    return true;
  for (const onnx::NodeProto &inner : branch->node())
    importNode(inner, index);
  for (int i = 0; ok && i < node.output_size(); ++i) {
    const std::string &name = branch->output(i).name();
    if (auto list = sequences.find(name); list != sequences.end()) {
      Parts parts = list->second;
      bindSequence(node.output(i), std::move(parts), node, loc);
      continue;
    }
    Value value = operand(name, loc, node, i);
    if (value && !node.output(i).empty())
      values[node.output(i)] = value;
  }
  return true;
}

// Its results have the types of the tensors that xs names. There is nothing to
// differentiate yet: legalize-onnx does, from train ops.
bool GraphImporter::importGradient(const onnx::NodeProto &node, Location loc) {
  if (node.op_type() != "Gradient" || node.domain() != kTrainingDomain)
    return false;
  std::vector<std::string> named;
  int count = 0;
  for (const char *list : {"xs", "zs", "y"})
    for (const onnx::AttributeProto &attribute : node.attribute())
      if (attribute.name() == list) {
        named.insert(named.end(), attribute.strings().begin(),
                     attribute.strings().end());
        if (StringRef(list) == "xs")
          count = attribute.strings_size();
        if (StringRef(list) == "y")
          named.push_back(attribute.s());
      }
  if (count == 0 || node.output_size() > count ||
      !std::equal(named.begin(), named.end(), node.input().begin(),
                  node.input().end()))
    return refuse(node, loc,
                  "expected the tensors that xs and zs name as inputs, and a "
                  "result for each of xs");
  SmallVector<Value> inputs;
  SmallVector<Type> types;
  for (int i = 0; i < node.input_size(); ++i) {
    Value value = operand(node.input(i), loc, node, i);
    if (!value)
      return true;
    if (i < count && constantOf(value))
      return refuse(node, loc,
                    "expected xs to be inputs, parameters or computed from "
                    "them, found the constant '" +
                        node.input(i) + "'");
    inputs.push_back(value);
  }
  for (int i = 0; i < node.output_size(); ++i)
    types.push_back(inputs[i].getType());
  auto carrier = train::OnnxNodeOp::create(
      builder, loc, types, inputs, node.op_type(), node.domain(),
      opsetOf(node.domain()), attributesOf(node, &context));
  for (auto [i, output] : llvm::enumerate(node.output()))
    if (!output.empty())
      values[output] = carrier.getOutputs()[i];
  return true;
}

// Types the results by converting the node in a scratch block, and replaces
// them by constants if the operands are.
bool GraphImporter::typeAndFold(OnnxNode &view, const onnx::NodeProto &node,
                                SmallVectorImpl<Type> &types, bool &folded) {
  if (DenseElementsAttr value = foldNode(view)) {
    values[node.output(0)] = constant(value, view.loc);
    folded = true;
    return true;
  }
  Block scratch;
  OpBuilder inside(builder.getContext());
  inside.setInsertionPointToEnd(&scratch);
  SmallVector<Value> results;
  bool converted = succeeded(convertNode(view, inside, results));
  llvm::DenseMap<Value, DenseElementsAttr> known;
  auto valueOf = [&](Value value) {
    auto it = known.find(value);
    return it != known.end() ? it->second : constantOf(value);
  };
  bool constantInputs =
      converted && llvm::all_of(view.inputs, [&](Value input) {
        return isa<NoneType>(input.getType()) || constantOf(input);
      });
  if (constantInputs)
    for (Operation &op : scratch) {
      SmallVector<DenseElementsAttr> operands;
      for (Value value : op.getOperands())
        operands.push_back(valueOf(value));
      if (llvm::is_contained(operands, DenseElementsAttr()))
        continue;
      if (DenseElementsAttr value = evaluateOnce(op, operands))
        known[op.getResult(0)] = value;
    }
  folded = converted && constantInputs;
  for (auto [i, result] : llvm::enumerate(results))
    if (converted && result) {
      types[i] = result.getType();
      folded &= static_cast<bool>(valueOf(result));
    }
  if (folded)
    for (auto [i, result] : llvm::enumerate(results))
      if (result && !node.output(i).empty())
        values[node.output(i)] = constant(valueOf(result), view.loc);
  while (!scratch.empty()) {
    scratch.back().dropAllUses();
    scratch.back().erase();
  }
  return converted;
}

DenseElementsAttr
GraphImporter::evaluateOnce(Operation &op,
                            ArrayRef<DenseElementsAttr> operands) {
  std::vector<const void *> key = {
      op.getName().getAsOpaquePointer(),
      op.getAttrDictionary().getAsOpaquePointer(),
      op.getResult(0).getType().getAsOpaquePointer()};
  for (DenseElementsAttr operand : operands)
    key.push_back(operand.getAsOpaquePointer());
  auto [known, isNew] = evaluated.try_emplace(std::move(key));
  if (isNew)
    known->second = evaluate(&op, operands);
  return known->second;
}

// The type the file declares, if it is known under the bound dimensions.
Type GraphImporter::declaredType(const std::string &name) {
  Type unknown = UnrankedTensorType::get(builder.getF32Type());
  auto find = [&](const auto &list) -> const onnx::ValueInfoProto * {
    for (const onnx::ValueInfoProto &info : list)
      if (info.name() == name)
        return &info;
    return nullptr;
  };
  const onnx::ValueInfoProto *info = find(graph.value_info());
  if (!info)
    info = find(graph.output());
  if (!info || !info->type().tensor_type().has_shape())
    return unknown;
  Shape shape;
  for (const auto &dim : info->type().tensor_type().shape().dim()) {
    auto it = symbols.find(dim.dim_param());
    if (dim.has_dim_value() && dim.dim_value() >= 0 &&
        dim.dim_value() < (int64_t(1) << 40))
      shape.push_back(dim.dim_value());
    else if (it != symbols.end())
      shape.push_back(it->second);
    else
      return unknown;
  }
  Type element =
      elementTypeOf(info->type().tensor_type().elem_type(), &context);
  return element && isSaneShape(shape)
             ? Type(RankedTensorType::get(shape, element))
             : unknown;
}

void GraphImporter::importNode(const onnx::NodeProto &node, int index) {
  importKnown(node, index);
  for (const std::string &output : node.output())
    if (!ok && !values.count(output) && !weightOf.count(output))
      missing.insert(output);
}

void GraphImporter::importKnown(const onnx::NodeProto &node, int index) {
  Location loc = locationOf(node, index);
  if (importConstant(node, loc)) {
    ++report.folded;
    return;
  }
  if (importIdentity(node) || importGradient(node, loc) ||
      importIf(node, loc, index) || importSequence(node, loc, index) ||
      importLoop(node, loc, index) || importScan(node, loc, index) ||
      importFlexAttention(node, loc, index))
    return;
  OnnxNode view{loc,
                node.op_type(),
                node.domain(),
                opsetOf(node.domain()),
                attributesOf(node, &context),
                {},
                {}};
  view.dropout = options.train && options.dropout;
  view.train = options.train;
  for (int i = 0; i < node.input_size(); ++i) {
    Value value = operand(node.input(i), loc, node, i);
    if (!value)
      return;
    view.inputs.push_back(value);
  }
  SmallVector<Type> types;
  for (const std::string &output : node.output()) {
    view.usedOutputs.push_back(!output.empty() && consumers.count(output));
    types.push_back(UnrankedTensorType::get(builder.getF32Type()));
  }
  if (node.output_size() == 0)
    return;
  bool folded = false;
  std::string reason;
  if (view.isTyped() && (findConversion(view, reason) || foldNode(view))) {
    if (!typeAndFold(view, node, types, folded))
      ok = false;
  } else {
    for (auto [i, output] : llvm::enumerate(node.output()))
      types[i] = declaredType(output);
    if (!findConversion(view, reason) && !isFoldable(view.type))
      unknown.push_back({loc, describeNode(view) + reason});
  }
  if (folded) {
    ++report.folded;
    return;
  }
  auto carrier =
      train::OnnxNodeOp::create(builder, loc, types, view.inputs, view.type,
                                view.domain, view.opset, view.attributes);
  for (auto [i, output] : llvm::enumerate(node.output()))
    if (!output.empty())
      values[output] = carrier.getOutputs()[i];
}

bool GraphImporter::finish() {
  SmallVector<Value> results;
  for (const std::string &output : outputs) {
    Value value;
    if (auto it = values.find(output); it != values.end())
      value = it->second;
    else if (auto weight = weightOf.find(output); weight != weightOf.end())
      value = read(*weight->second, fileLoc);
    if (!value) {
      if (ok)
        fail("output '" + output +
             (sequences.count(output) || absent.contains(output)
                  ? "': expected a tensor, found a sequence or an optional"
                  : "' is made by no node, input or initializer"));
      return false;
    }
    results.push_back(value);
  }
  func::ReturnOp::create(builder, fileLoc, results);
  SmallVector<Type> types(ValueRange(results).getTypes());
  function.setFunctionType(
      builder.getFunctionType(function.getArgumentTypes(), types));
  for (auto [i, output] : llvm::enumerate(outputs))
    function.setResultAttr(i, kImportNameAttr, builder.getStringAttr(output));
  if (options.train && isa<RankedTensorType>(types[0])) {
    auto type = cast<RankedTensorType>(types[0]);
    if (type.getNumElements() != 1 || !isa<FloatType>(type.getElementType()))
      fail("expected a scalar float loss, found output '" + outputs[0] +
           "' of type " + describeType(type));
    bool trains = llvm::any_of(weights, [](const auto &w) {
      return w->decision.trained && w->declared;
    });
    if (!trains)
      fail("expected parameters to train, found none that the loss '" +
           outputs[0] + "' depends on");
  }
  // Constants and reads that only folded nodes used.
  Block &body = function.getBody().front();
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (op.use_empty() &&
        isa<train::ConstantOp, train::ReadOp, train::NoneOp>(op))
      op.erase();
  return ok;
}
