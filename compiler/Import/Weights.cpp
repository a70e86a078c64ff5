// Initializers: what is trained, what is tied, what was merged by accident.
#include "compiler/Import/Attributes.h"
#include "compiler/Import/GraphImporter.h"
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

void GraphImporter::decideWeights() {
  llvm::StringSet<> reached = gradientReaches(graph, outputs);
  std::set<std::string> absent;
  for (const OnnxTensor &tensor : file.initializers()) {
    Type element = elementTypeOf(tensor.dataType, &context);
    auto weight = std::make_unique<Weight>();
    weight->tensor = &tensor;
    weight->decision = decideTrainable(file, tensor, reached, options);
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

// Exporters merge vectors that have equal values (all ones, all zeros). Such a
// vector in scale and bias slots of several ops gets a parameter per op.
void GraphImporter::findMerged() {
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
      auto own = std::make_unique<Weight>(weight);
      own->symbol = uniqueSymbol(nameOfUse(node, use.kind == 2));
      names += (names.empty() ? "" : ", ") + own->symbol;
      splitUses[node.name() + "\n" + node.output(0) + "\n" +
                std::to_string(use.slot)] = own.get();
      weights.push_back(std::move(own));
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
  report.unmerged.push_back(weight->symbol + " into " + own->symbol +
                            " (behind Identity; --keep-shared leaves it)");
  weights.push_back(std::move(own));
  return true;
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
    train::SourceAttr source;
    ElementsAttr value;
    if (!tensor.path.empty())
      source = train::SourceAttr::get(&context, tensor.path, tensor.offset,
                                      tensor.length);
    else if (auto bytes = file.bytes(tensor))
      value = attributeOf(tensor, *bytes, &context);
    train::ParameterOp::create(
        outside, NameLoc::get(outside.getStringAttr(tensor.name), fileLoc),
        weight.symbol, weight.type, weight.decision.trained, source, value);
    ImportReport::Decision decision{weight.symbol, describeType(weight.type),
                                    weight.decision.reason};
    (weight.decision.trained ? report.trained : report.frozen)
        .push_back(decision);
  }
  if (++weight.uses == 2 && weight.type.getRank() > 1)
    report.tied.push_back(weight.symbol + " (one parameter, several uses)");
  return train::ReadOp::create(builder, loc, weight.type, weight.symbol);
}
