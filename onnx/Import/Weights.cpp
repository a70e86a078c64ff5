// Initializers: what is trained, what is tied, what was merged by accident.
#include "dialects/Train/FirstStates.h"
#include "onnx/Import/Attributes.h"
#include "onnx/Import/GraphImporter.h"
#include "onnx/Import/SharedSlots.h"
#include "passes/Graph/HostTensor.h"

#include <map>
#include <set>

using namespace mlir;
using namespace merak;

// Larger shared vectors are ties; smaller ones may have been merged because
// they had equal values when the model was exported.
static constexpr int64_t kMaxMerged = 1024;

std::string GraphImporter::uniqueSymbol(std::string wanted) {
  std::string name = wanted;
  for (int i = 1; !taken.insert(name).second; ++i)
    name = wanted + "." + std::to_string(i);
  return name;
}

// Initializers that batch norm in training mode tracks. One that several tell
// apart by their scales was merged: it would hold the average of neither.
llvm::StringSet<> GraphImporter::runningStatistics() {
  llvm::StringSet<> names;
  std::map<std::string, std::string> scaleOf;
  for (const onnx::NodeProto &node : graph.node()) {
    bool training = false;
    for (const onnx::AttributeProto &attribute : node.attribute())
      training |= attribute.name() == "training_mode" && attribute.i();
    if (node.op_type() != "BatchNormalization" || !training ||
        node.input_size() < 5)
      continue;
    for (int k : {3, 4}) {
      names.insert(node.input(k));
      auto [it, fresh] = scaleOf.try_emplace(node.input(k), node.input(1));
      if (!fresh && it->second != node.input(1) && options.train)
        fail("expected running statistics of one batch norm, found '" +
             node.input(k) +
             "' in several; export without merging "
             "initializers (optimize=False)");
    }
  }
  return names;
}

// Whether a pattern stands for an initializer or a parameter of the exported
// program.
bool GraphImporter::namesWeight(StringRef pattern) const {
  return llvm::any_of(file.initializers(),
                      [&](const OnnxTensor &tensor) {
                        return matchesGlob(pattern, tensor.name);
                      }) ||
         llvm::any_of(programParameters, [&](const std::string &name) {
           return matchesGlob(pattern, name);
         });
}

void GraphImporter::decideWeights() {
  llvm::StringSet<> reached = gradientReaches(
      graph, outputs, file.model().producer_name() == "pytorch");
  std::set<std::string> absent;
  llvm::StringSet<> statistics = runningStatistics();
  std::vector<std::string> doubtful;
  for (const OnnxTensor &tensor : file.initializers()) {
    Type element = elementTypeOf(tensor.dataType, &context);
    auto weight = std::make_unique<Weight>();
    weight->tensor = &tensor;
    weight->decision = decideTrainable(file, tensor, reached, options,
                                       program ? &*program : nullptr);
    TrainableDecision &decision = weight->decision;
    if (statistics.contains(tensor.name))
      decision = {false, false, "a running statistic"};
    if (decision.trained && decision.reason.empty() && !program &&
        !options.updated && options.trainable.empty() &&
        !isModuleParameter(tensor.name) && !isExporterName(tensor.name))
      doubtful.push_back(tensor.name);
    weight->type = RankedTensorType::get(tensor.dims, element);
    if (weightOf.count(tensor.name))
      fail("expected initializers with distinct names, found two of '" +
           tensor.name + "'");
    // What the functions of a module are called (Differentiate.cpp).
    if (tensor.name == "model" || tensor.name == "step")
      fail("expected another name for initializer '" + tensor.name +
           "': the compiler calls functions of its own so");
    weight->symbol = uniqueSymbol(tensor.name);
    weightOf[tensor.name] = weight.get();
    weights.push_back(std::move(weight));
    if (tensor.absent)
      absent.insert(tensor.path);
  }
  report.absentFiles.assign(absent.begin(), absent.end());
  for (const auto &[option, patterns] :
       {std::pair("--freeze", &options.freeze),
        std::pair("--trainable", &options.trainable)})
    for (const std::string &pattern : *patterns)
      if (!namesWeight(pattern))
        fail(llvm::Twine(option) + " names no initializer of the model: '" +
             pattern + "'");
  report.doubtful = std::move(doubtful);
  if (!options.keepShared && !program)
    findMerged();
}

static bool isSplat(OnnxFile &file, const OnnxTensor &tensor) {
  std::optional<StringRef> bytes = file.bytes(tensor);
  size_t size = onnxElementSize(tensor.dataType);
  if (!bytes)
    return false;
  for (size_t i = size; i < bytes->size(); ++i)
    if ((*bytes)[i] != (*bytes)[i - size])
      return false;
  return true;
}

static std::string keyOfUse(const onnx::NodeProto &node, int slot) {
  return node.name() + "\n" + node.output(0) + "\n" + std::to_string(slot);
}

// Gives one use of `from` a parameter of its own.
GraphImporter::Weight *GraphImporter::splitUse(Weight &from,
                                               const onnx::NodeProto &node,
                                               int slot, Weight *into,
                                               const std::string &wanted) {
  if (!into) {
    auto own = std::make_unique<Weight>(from);
    own->symbol = uniqueSymbol(wanted);
    own->declared = false;
    own->uses = 0;
    into = own.get();
    weights.push_back(std::move(own));
  }
  splitUses[keyOfUse(node, slot)] = into;
  report.splitUses.push_back(
      {into->symbol, from.tensor->name, node.output(0), slot});
  return into;
}

// The module that PyTorch's TorchScript exporter writes into a node's name:
// "/h.1/ln_2/LayerNormalization_1" -> "h.1.ln_2", and "/up/up.0/Conv" ->
// "up.0".
static std::string moduleOfName(const onnx::NodeProto &node) {
  if (!StringRef(node.name()).starts_with("/"))
    return "";
  SmallVector<StringRef> parts;
  StringRef(node.name()).rsplit('/').first.ltrim('/').split(parts, '/');
  std::string module;
  for (size_t i = 0; i < parts.size(); ++i)
    if (i + 1 == parts.size() ||
        !parts[i + 1].starts_with((parts[i] + ".").str()))
      module += (module.empty() ? "" : ".") + parts[i].str();
  return module;
}

// "encoder.1_1" is how the exporter calls "encoder.1" when it runs again.
static bool isAgain(StringRef module, StringRef owner) {
  SmallVector<StringRef> parts, owned;
  module.split(parts, '.');
  owner.split(owned, '.');
  if (parts.size() != owned.size())
    return false;
  for (auto [part, own] : llvm::zip(parts, owned)) {
    StringRef suffix = part;
    if (part != own &&
        !(suffix.consume_front(own) && suffix.consume_front("_") &&
          !suffix.empty() &&
          suffix.find_first_not_of("0123456789") == StringRef::npos))
      return false;
  }
  return true;
}

// In evaluation mode that exporter merges vectors of equal values, and other
// tools remove the Identity that it leaves: such a vector in the scale or bias
// slot of a norm of another module was a parameter of that module. A module
// that is used twice keeps its own.
void GraphImporter::findMerged() {
  if (file.model().producer_name() != "pytorch")
    return;
  struct Use {
    int node, slot;
    std::string module;
  };
  std::map<std::string, std::vector<Use>> uses;
  for (int i = 0; i < graph.node_size(); ++i)
    for (int k = 0; feeding[i] && k < graph.node(i).input_size(); ++k)
      if (weightOf.count(graph.node(i).input(k)) && slotKind(graph.node(i), k))
        uses[graph.node(i).input(k)].push_back(
            {i, k, moduleOfName(graph.node(i))});
  std::map<std::string, std::string> names; // of what was split off
  for (const auto &[name, list] : uses) {
    Weight &weight = *weightOf[name];
    const std::string owner = StringRef(name).rsplit('.').first.str();
    if (!isModuleParameter(name) || !weight.decision.trained ||
        weight.type.getNumElements() > kMaxMerged ||
        !isSplat(file, *weight.tensor) ||
        llvm::none_of(
            list, [&](const Use &use) { return isAgain(use.module, owner); }))
      continue;
    std::map<std::string, Weight *> made;
    for (const Use &use : list) {
      const onnx::NodeProto &node = graph.node(use.node);
      const std::string wanted =
          use.module + (slotKind(node, use.slot) == 2 ? ".bias" : ".weight");
      if (use.module.empty() || isAgain(use.module, owner) ||
          weightOf.count(wanted))
        continue;
      Weight *&own = made[wanted];
      const bool isNew = !own;
      own = splitUse(weight, node, use.slot, own, wanted);
      if (isNew)
        names[name] += (names[name].empty() ? "" : ", ") + own->symbol;
    }
  }
  for (const auto &[name, list] : names)
    report.unmerged.push_back(name + " into " + list +
                              " (equal values; --keep-shared leaves it)");
}

// An Identity of an initializer is a view of it; a small vector behind one was
// merged by the exporter and becomes a parameter again.
bool GraphImporter::importIdentity(const onnx::NodeProto &node) {
  if (node.op_type() != "Identity" || node.input_size() != 1 ||
      node.output_size() != 1 || findAttribute(node, kStopGradient))
    return false;
  auto it = weightOf.find(node.input(0));
  if (it == weightOf.end())
    return false;
  Weight *weight = it->second;
  const std::string &name = node.output(0);
  bool merged = !options.keepShared && weight->decision.trained &&
                !isExporterName(name) && weight->type.getRank() <= 1 &&
                weight->type.getNumElements() <= kMaxMerged;
  if (!merged) {
    weightOf[name] = weight;
    report.tied.push_back(name + " to " + weight->symbol + " (Identity)");
    return true;
  }
  auto own = std::make_unique<Weight>(*weight);
  own->symbol = uniqueSymbol(name);
  own->declared = false;
  own->uses = 0;
  weightOf[name] = own.get();
  report.splitUses.push_back({own->symbol, weight->tensor->name, name, 0});
  report.unmerged.push_back(weight->symbol + " into " + own->symbol +
                            " (behind Identity; --keep-shared leaves it)");
  weights.push_back(std::move(own));
  return true;
}

// Where the bytes are (SourceAttr), or the values of a model in text form; null
// if they are absent.
Attribute GraphImporter::bytesOf(const OnnxTensor &tensor) {
  if (!tensor.path.empty())
    return train::SourceAttr::get(&context, tensor.path, tensor.offset,
                                  tensor.length);
  if (auto bytes = file.bytes(tensor))
    return attributeOf(tensor, *bytes, &context);
  return {};
}

// Dimensions as large as the batch along which the values repeat.
static SmallVector<int64_t>
repeatedDims(OnnxFile &file, const OnnxTensor &tensor, int64_t batch) {
  SmallVector<int64_t> dims;
  int64_t inner = static_cast<int64_t>(onnxElementSize(tensor.dataType));
  for (size_t d = tensor.dims.size(); d-- > 0; inner *= tensor.dims[d]) {
    std::optional<StringRef> bytes;
    if (batch < 2 || tensor.dims[d] != batch || !(bytes = file.bytes(tensor)))
      continue;
    bool repeats = true;
    for (int64_t i = inner; repeats && i < int64_t(bytes->size()); i += inner)
      repeats = i / inner % batch == 0 ||
                bytes->substr(i, inner) == bytes->substr(i - inner, inner);
    if (repeats)
      dims.insert(dims.begin(), static_cast<int64_t>(d));
  }
  return dims;
}

DictionaryAttr GraphImporter::firstStates(const std::string &initializer) {
  auto found = options.states.find(initializer);
  if (found == options.states.end())
    return {};
  SmallVector<NamedAttribute> states;
  for (const auto &[state, name] : found->second)
    if (Weight *weight = weightOf.lookup(name))
      if (Attribute bytes = bytesOf(*weight->tensor))
        states.push_back(builder.getNamedAttr(state, bytes));
  return builder.getDictionaryAttr(states);
}

Value GraphImporter::read(Weight &weight, Location loc) {
  const OnnxTensor &tensor = *weight.tensor;
  // Tables become constants; a table in an absent file stays a parameter.
  if (weight.constant)
    return weight.constant;
  if (weight.decision.isTable && tensor.elements() <= kMaxEvaluated)
    if (std::optional<StringRef> bytes = file.bytes(tensor))
      if (DenseElementsAttr value = attributeOf(tensor, *bytes, &context)) {
        if (!weight.declared)
          report.frozen.push_back(
              {tensor.name, describeType(weight.type), weight.decision.reason});
        weight.declared = true;
        OpBuilder top = OpBuilder::atBlockBegin(&function.getBody().front());
        return weight.constant = train::ConstantOp::create(
                   top, NameLoc::get(top.getStringAttr(tensor.name), fileLoc),
                   value.getType(), cast<ElementsAttr>(value));
      }
  if (!weight.declared) {
    weight.declared = true;
    OpBuilder outside(function);
    Attribute bytes = bytesOf(tensor);
    auto parameter = train::ParameterOp::create(
        outside, NameLoc::get(outside.getStringAttr(tensor.name), fileLoc),
        weight.symbol, weight.type, weight.decision.trained,
        dyn_cast_or_null<train::SourceAttr>(bytes),
        dyn_cast_or_null<ElementsAttr>(bytes));
    if (SmallVector<int64_t> dims =
            repeatedDims(file, tensor, report.globalBatch);
        weight.decision.trained && !dims.empty())
      parameter->setAttr("train.repeats", outside.getDenseI64ArrayAttr(dims));
    if (DictionaryAttr states = firstStates(tensor.name))
      parameter->setAttr(train::kStatesAttr, states);
    ImportReport::Decision decision{weight.symbol, describeType(weight.type),
                                    weight.decision.reason};
    (weight.decision.trained ? report.trained : report.frozen)
        .push_back(decision);
  }
  if (++weight.uses == 2 && weight.type.getRank() > 1)
    report.tied.push_back(weight.symbol + " (one parameter, several uses)");
  return train::ReadOp::create(builder, loc, weight.type, weight.symbol);
}
