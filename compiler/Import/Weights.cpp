// Initializers: what is trained, what is tied, what was merged by accident.
#include "compiler/Import/Attributes.h"
#include "compiler/Import/Extras.h"
#include "compiler/Import/GraphImporter.h"
#include "dialects/Train/FirstStates.h"
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

void GraphImporter::decideWeights() {
  llvm::StringSet<> reached = gradientReaches(graph, outputs);
  std::set<std::string> absent;
  llvm::StringSet<> statistics = runningStatistics();
  llvm::StringSet<> exported, buffers;
  for (const std::string &name : exportedParameters(graph))
    exported.insert(name);
  for (const std::string &name : exportedBuffers(graph))
    buffers.insert(name);
  for (const OnnxTensor &tensor : file.initializers()) {
    Type element = elementTypeOf(tensor.dataType, &context);
    auto weight = std::make_unique<Weight>();
    weight->tensor = &tensor;
    weight->decision = decideTrainable(file, tensor, reached, options);
    // A dynamo export says what its parameters are. Folded weights have names
    // of their own, and so do numbers.
    TrainableDecision &decision = weight->decision;
    if (decision.trained && decision.reason.empty() && !exported.empty() &&
        !exported.contains(tensor.name)) {
      if (tensor.elements() == 1)
        decision = {false, true, "a number written by the exporter"};
      else if (buffers.contains(tensor.name))
        decision = {false, true, "a buffer of the exported program"};
    }
    if (statistics.contains(tensor.name))
      decision = {false, false, "a running statistic"};
    weight->type = RankedTensorType::get(tensor.dims, element);
    if (weightOf.count(tensor.name))
      fail("expected initializers with distinct names, found two of '" +
           tensor.name + "'");
    weight->symbol = uniqueSymbol(tensor.name);
    weightOf[tensor.name] = weight.get();
    weights.push_back(std::move(weight));
    if (tensor.absent)
      absent.insert(tensor.path);
  }
  report.absentFiles.assign(absent.begin(), absent.end());
  for (const std::string &pattern : options.freeze)
    if (llvm::none_of(file.initializers(), [&](const OnnxTensor &tensor) {
          return matchesGlob(pattern, tensor.name);
        }))
      fail("--freeze names no initializer of the model: '" + pattern + "'");
  if (!options.keepShared)
    findMerged();
}

// "/h.1/ln_2/LayerNormalization", slot 1 -> "h.1.ln_2.weight".
static std::string nameOfUse(const onnx::NodeProto &node, bool isBias) {
  StringRef path = StringRef(node.name()).rsplit('/').first;
  std::string name;
  for (char c : path.ltrim('/'))
    name += c == '/' ? '.' : c;
  return name + (name.empty() ? "" : ".") + (isBias ? "bias" : "weight");
}

// 0: the slot holds no scale or bias; 1: scale; 2: bias.
static int slotKind(const onnx::NodeProto &node, int slot) {
  StringRef type = node.op_type();
  if (type == "LayerNormalization" || type == "InstanceNormalization" ||
      type == "GroupNormalization" || type == "BatchNormalization" ||
      type == "RMSNormalization")
    return slot == 1 || slot == 2 ? slot : 0;
  if ((type == "Gemm" || type == "Conv") && slot == 2)
    return 2;
  return 0;
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

// The parameter among `names`, all below the module of the node, that the slot
// stands for. Empty: it cannot be told.
static std::string parameterOfSlot(const onnx::NodeProto &node, int slot,
                                   const std::vector<std::string> &names) {
  StringRef type = node.op_type();
  int kind = slotKind(node, slot);
  StringRef leaf = kind == 2 || type == "Add"                ? "bias"
                   : kind == 1 || type == "Mul" || slot == 1 ? "weight"
                                                             : "";
  for (const std::string &name : names)
    if (StringRef(name).rsplit('.').second == leaf)
      return name;
  return names.size() == 1 ? names[0] : "";
}

// A dynamo export lists all parameters and names the module of every node: a
// listed parameter without an initializer was merged into the one that its
// module's node reads.
bool GraphImporter::findMergedByNotes() {
  const std::vector<std::string> exported = exportedParameters(graph);
  if (exported.empty())
    return false;
  std::map<std::string, std::vector<std::string>> byModule;
  for (const std::string &name : exported)
    byModule[StringRef(name).rsplit('.').first.str()].push_back(name);
  struct Use {
    const onnx::NodeProto *node;
    int slot;
    std::string parameter;
  };
  std::map<std::string, std::vector<Use>> uses;
  for (int i = 0; i < graph.node_size(); ++i) {
    const onnx::NodeProto &node = graph.node(i);
    if (!feeding[i] || node.output_size() == 0)
      continue;
    std::string path;
    for (int k = 0; k < node.input_size(); ++k) {
      auto weight = weightOf.find(node.input(k));
      if (weight == weightOf.end() || !weight->second->decision.trained ||
          weight->second->type.getNumElements() > kMaxMerged)
        continue;
      path = path.empty() ? moduleOf(node) : path;
      std::vector<std::string> names;
      for (const std::string &name : byModule[path])
        if (name == node.input(k) || !weightOf.count(name))
          names.push_back(name);
      uses[node.input(k)].push_back(
          {&node, k, parameterOfSlot(node, k, names)});
    }
  }
  for (const auto &[name, list] : uses) {
    // What was folded (1 + w) has a name of its own; its first use keeps it.
    bool isExported = llvm::is_contained(exported, name);
    std::string kept = isExported ? name : list[0].parameter;
    // A merged initializer keeps the name of one of its own readers. Without
    // one it was moved: into the convolution that a norm was fused into, say.
    if (isExported && llvm::none_of(list, [&](const Use &use) {
          return use.parameter.empty() || use.parameter == name;
        }))
      continue;
    std::map<std::string, Weight *> made;
    std::string names;
    for (const Use &use : list) {
      if (use.parameter.empty() || use.parameter == kept)
        continue;
      std::string wanted =
          isExported
              ? use.parameter
              : StringRef(use.parameter).rsplit('.').first.str() + "." + name;
      bool isNew = !made.count(use.parameter);
      Weight *&own = made[use.parameter];
      own = splitUse(*weightOf[name], *use.node, use.slot, own, wanted);
      if (isNew)
        names += (names.empty() ? "" : ", ") + own->symbol;
    }
    if (!names.empty())
      report.unmerged.push_back(name + " into " + names +
                                " (merged by the exporter; --keep-shared "
                                "leaves it)");
  }
  return true;
}

// Exporters merge vectors that have equal values (all ones, all zeros). Such a
// vector in scale and bias slots of several ops gets a parameter per op.
void GraphImporter::findMerged() {
  if (findMergedByNotes())
    return;
  struct Use {
    int node, slot, kind;
  };
  std::map<std::string, std::vector<Use>> uses;
  std::set<std::string> elsewhere;
  for (int i = 0; i < graph.node_size(); ++i)
    for (int k = 0; feeding[i] && k < graph.node(i).input_size(); ++k) {
      const std::string &name = graph.node(i).input(k);
      if (!weightOf.count(name))
        continue;
      if (int kind = slotKind(graph.node(i), k))
        uses[name].push_back({i, k, kind});
      else if (graph.node(i).op_type() != "Identity")
        elsewhere.insert(name);
    }
  for (const auto &[name, list] : uses) {
    Weight &weight = *weightOf[name];
    if (list.size() < 2 || elsewhere.count(name) || !weight.decision.trained ||
        weight.type.getNumElements() > kMaxMerged ||
        !isSplat(file, *weight.tensor))
      continue;
    std::string names;
    for (const Use &use : llvm::drop_begin(list)) {
      const onnx::NodeProto &node = graph.node(use.node);
      Weight *own = splitUse(weight, node, use.slot, nullptr,
                             nameOfUse(node, use.kind == 2));
      names += (names.empty() ? "" : ", ") + own->symbol;
    }
    report.unmerged.push_back(name + " into " + names +
                              " (equal values; --keep-shared leaves it)");
  }
}

// An Identity of an initializer is a view of it; a small vector behind one was
// merged by the exporter and becomes a parameter again.
bool GraphImporter::importIdentity(const onnx::NodeProto &node) {
  if (node.op_type() != "Identity" || node.input_size() != 1 ||
      node.output_size() != 1)
    return false;
  auto it = weightOf.find(node.input(0));
  if (it == weightOf.end())
    return false;
  Weight *weight = it->second;
  const std::string &name = node.output(0);
  bool merged = !options.keepShared && weight->decision.trained &&
                weight->type.getRank() <= 1 &&
                weight->type.getNumElements() <= kMaxMerged;
  if (!merged) {
    weightOf[name] = weight;
    report.tied.push_back(name + " to " + weight->symbol + " (Identity)");
    return true;
  }
  auto own = std::make_unique<Weight>(*weight);
  std::string wanted = name;
  if (isExporterName(name))
    wanted = nameOfUse(node, StringRef(weight->symbol).ends_with("bias"));
  own->symbol = uniqueSymbol(wanted);
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
