// Parameters that were merged or removed: each use gets its own again.
#include "onnx/Import/RestoreProgram.h"

#include "onnx/Import/NewerFields.h"
#include "onnx/Import/SharedSlots.h"
#include "onnx/Import/Trainable.h"

#include "llvm/ADT/StringExtras.h"

using namespace merak;
using llvm::StringRef;

// The exporter merges initializers of at most so many elements.
static constexpr int64_t kMaxMerged = 1024;
static constexpr const char *kRemedy = "export with optimize=False";

static std::string moduleOfParameter(StringRef name) {
  return name.contains('.') ? name.rsplit('.').first.str() : "";
}

ProgramRestorer::ProgramRestorer(OnnxFile &file, const ExportedProgram &program,
                                 const ImportOptions &options,
                                 const std::vector<std::string> &outputs,
                                 int64_t batch, ImportReport &report)
    : file(file), graph(file.mutableGraph()), program(program),
      options(options), batch(batch), report(report),
      feeding(nodesFeeding(graph, outputs)),
      reached(gradientReaches(graph, outputs, /*settings=*/true)) {
  for (const onnx::NodeProto &node : graph.node())
    calls.push_back(program.callOf(node));
  nameSplits();
}

// The exporter notes nothing at the nodes that split a tensor: they belong to
// the module of all that reads the parts.
void ProgramRestorer::nameSplits() {
  std::map<std::string, std::set<std::string>> readers; // by value
  for (const onnx::NodeProto &node : graph.node())
    for (const std::string &input : node.input())
      readers[input].insert(moduleOf(node));
  for (int i = 0; i < graph.node_size(); ++i) {
    if (graph.node(i).op_type() != "Split" || !calls[i].name.empty())
      continue;
    std::set<std::string> modules;
    for (const std::string &part : graph.node(i).output())
      modules.insert(readers[part].begin(), readers[part].end());
    if (modules.size() == 1 && !modules.begin()->empty()) {
      calls[i] = program.callOfModule(*modules.begin());
      inferred.insert(i);
    }
  }
}

std::vector<RestoreError> ProgramRestorer::run() {
  index();
  findSources();
  if (!options.keepShared)
    separateMerged();
  restoreBiases();
  judgeFolds();
  if (options.train)
    findLost();
  llvm::append_range(added, related);
  if (!added.empty()) {
    // Their operands are initializers, so that they may stand first.
    auto &nodes = *graph.mutable_node();
    const int before = nodes.size();
    for (onnx::NodeProto &node : added)
      *nodes.Add() = std::move(node);
    std::rotate(nodes.pointer_begin(), nodes.pointer_begin() + before,
                nodes.pointer_end());
  }
  return std::move(errors);
}

void ProgramRestorer::fail(const std::string &place, const std::string &what,
                           const std::string &help) {
  if (failed.insert(place + what).second)
    errors.push_back({place, what, help});
}

// --freeze takes names of the program, too.
bool ProgramRestorer::isFrozen(const std::string &name) const {
  return llvm::any_of(options.freeze, [&](const std::string &pattern) {
    return matchesGlob(pattern, name);
  });
}

std::string ProgramRestorer::freeName(std::string wanted) const {
  std::string name = wanted;
  for (int i = 1; names.contains(name); ++i)
    name = wanted + "." + std::to_string(i);
  return name;
}

//===----------------------------------------------------------------------===//
// What the file holds
//===----------------------------------------------------------------------===//

static bool isFloat(const OnnxTensor &tensor) {
  return tensor.dataType == onnx::TensorProto::FLOAT ||
         tensor.dataType == onnx::TensorProto::DOUBLE ||
         tensor.dataType == onnx::TensorProto::FLOAT16 ||
         tensor.dataType == onnx::TensorProto::BFLOAT16;
}

void ProgramRestorer::index() {
  for (const OnnxTensor &tensor : file.initializers()) {
    names.insert(tensor.name);
    if (isFloat(tensor))
      uses[tensor.name];
  }
  for (const onnx::ValueInfoProto &input : graph.input())
    if (names.insert(input.name()).second)
      computed.insert(input.name());
  for (int i = 0; i < graph.node_size(); ++i) {
    const onnx::NodeProto &node = graph.node(i);
    for (const std::string &output : node.output()) {
      names.insert(output);
      computed.insert(output);
    }
    computed.insert(calls[i].result);
    for (int k = 0; feeding[i] && k < node.input_size(); ++k)
      if (auto found = uses.find(node.input(k)); found != uses.end())
        found->second.push_back({i, k});
  }
}

// A parameter is itself; a folded tensor says what it was computed from. Files
// of older exporters do not: there a tensor stands for the parameters that the
// calls of its readers name and the file does not hold.
void ProgramRestorer::findSources() {
  for (const auto &[name, readers] : uses)
    if (program.isParameter(name))
      sources[name] = {name};
  bool says = false;
  for (const auto &[name, readers] : uses) {
    const std::vector<std::string> *from = program.foldedFrom(name);
    says |= from != nullptr;
    for (const std::string &source : from ? *from : std::vector<std::string>())
      if (program.isParameter(source))
        sources[name].insert(source);
  }
  separateStates();
  for (const auto &[name, from] : sources)
    held.insert(from.begin(), from.end());
  for (const auto &[name, readers] : uses) {
    if (says || sources.count(name) ||
        llvm::is_contained(program.buffers(), name))
      continue;
    Sources from;
    for (const Use &use : readers)
      for (const std::string &parameter : program.parametersOf(calls[use.node]))
        if (!isHeld(parameter) &&
            parameterOfSlot(graph.node(use.node), use.slot,
                            program.parametersOf(calls[use.node])) == parameter)
          from.insert(parameter);
    if (from.size() == 1)
      sources[name] = from;
  }
  for (const auto &[name, from] : sources)
    held.insert(from.begin(), from.end());
}

//===----------------------------------------------------------------------===//
// Merged initializers
//===----------------------------------------------------------------------===//

static bool isSplat(StringRef bytes, size_t size) {
  return bytes.size() >= size &&
         bytes.drop_front(size) == bytes.drop_back(size);
}

// The call behind a node says which parameters it reads. One that does not name
// what the initializer holds reads another of equal values, or a constant.
std::string ProgramRestorer::ownerOf(const std::string &initializer,
                                     const Use &use, bool &isConstant) {
  const ExportedCall &call = calls[use.node];
  isConstant = false;
  const Sources &own = sources[initializer];
  if (call.name.empty()) {
    if (!own.empty())
      doubtfulUses.push_back(graph.node(use.node).name());
    return "";
  }
  // What was folded, by its own name.
  if (program.parametersOf(call).empty() && isNamedAt(initializer, use))
    return "";
  std::vector<std::string> candidates, lost;
  for (const std::string &name : program.parametersOf(call)) {
    if (own.count(name) || !isHeld(name))
      candidates.push_back(name);
    if (!own.count(name) && !isHeld(name))
      lost.push_back(name);
  }
  std::string named =
      parameterOfSlot(graph.node(use.node), use.slot, candidates);
  if (!named.empty())
    return own.count(named) ? "" : named;
  if (candidates.size() > lost.size())
    return "";
  if (lost.size() > 1) {
    fail(initializer,
         "expected one parameter of the exported program, found that '" +
             graph.node(use.node).name() + "' reads '" + lost[0] + "' or '" +
             lost[1] + "', which the exporter merged",
         kRemedy);
    return "";
  }
  if (lost.size() == 1)
    return lost[0];
  if (std::string twin = twinOf(initializer, use); !twin.empty())
    return twin;
  if (inferred.count(use.node) && !own.empty() && candidates.empty())
    doubtfulUses.push_back(graph.node(use.node).name());
  // Views of a parameter have names of their own, which do not say of which.
  const bool isView = !program.unresolved(call, true).empty();
  if (isView && !own.empty())
    doubtfulUses.push_back(graph.node(use.node).name());
  isConstant = !own.empty() && !isView &&
               !exportedCall(graph.node(use.node)).name.empty();
  return "";
}

// The calls exp and exp_1 of two modules were made one, since their parameters
// were equal: a node of the second module names exp_1, and the module's own
// parameter of the same name is nowhere. Ties are not meant: of tied parameters
// the program names the last one.
std::string ProgramRestorer::twinOf(const std::string &initializer,
                                    const Use &use) {
  const Sources &own = sources.at(initializer);
  const ExportedCall &call = calls[use.node];
  if (own.size() != 1 || !program.foldedFrom(initializer))
    return "";
  const std::string &first = *own.begin();
  std::string named;
  bool isFirsts = false;
  for (const std::string &operand : program.unresolved(call, true))
    if (functionOf(operand) == functionOf(initializer))
      named = operand;
  for (const Use &other : uses.at(initializer))
    isFirsts |= llvm::is_contained(calls[other.node].operands, initializer) &&
                moduleOf(graph.node(other.node)) == moduleOfParameter(first);
  const std::string twin = moduleOf(graph.node(use.node)) + "." +
                           StringRef(first).rsplit('.').second.str();
  const auto &order = program.parameters();
  if (named.empty() || !isFirsts || !program.isParameter(twin) ||
      isHeld(twin) || llvm::find(order, first) > llvm::find(order, twin))
    return "";
  explained.insert(named);
  return twin;
}

void ProgramRestorer::giveOwn(const std::string &initializer, const Use &use,
                              const std::string &parameter, bool isConstant,
                              std::map<std::string, std::string> &made) {
  std::string &own = made[parameter];
  if (own.empty()) {
    std::string wanted = parameter;
    if (isConstant)
      wanted = initializer + ".constant";
    else if (!program.isParameter(initializer))
      wanted = moduleOfParameter(parameter) + "." + initializer;
    own = freeName(wanted);
    names.insert(own);
    OnnxTensor copy =
        *llvm::find_if(file.initializers(), [&](const OnnxTensor &tensor) {
          return tensor.name == initializer;
        });
    copy.name = own;
    file.addInitializer(std::move(copy));
    copyOf[own] = initializer;
    if (!isConstant)
      sources[own] = {parameter};
  }
  uses[own].push_back(use);
  graph.mutable_node(use.node)->set_input(use.slot, own);
  if (reached.contains(initializer))
    reached.insert(own);
  if (!isConstant)
    report.splitUses.push_back(
        {own, initializer, graph.node(use.node).output(0), use.slot});
}

void ProgramRestorer::separateMerged() {
  std::vector<std::string> small;
  for (const OnnxTensor &tensor : file.initializers())
    if (uses.count(tensor.name) && tensor.elements() <= kMaxMerged)
      small.push_back(tensor.name);
  // A constant stands for a parameter only if nothing else does.
  std::stable_partition(
      small.begin(), small.end(),
      [&](const std::string &name) { return !sources[name].empty(); });
  for (const std::string &name : small) {
    const OnnxTensor &tensor =
        *llvm::find_if(file.initializers(), [&](const OnnxTensor &other) {
          return other.name == name;
        });
    auto bytes = file.bytes(tensor);
    const bool splat =
        bytes && isSplat(*bytes, onnxElementSize(tensor.dataType));
    struct Other {
      Use use;
      std::string owner;
    };
    std::vector<Other> others;
    std::vector<Use> kept;
    for (const Use &use : uses[name]) {
      bool isConstant = false;
      std::string owner = ownerOf(name, use, isConstant);
      if (owner.empty() && !(isConstant && splat))
        kept.push_back(use);
      else
        others.push_back({use, owner});
    }
    // What was merged keeps one of its own readers. Without one it was moved:
    // into the convolution that a norm was fused into, say.
    if (kept.empty() && !sources[name].empty())
      continue;
    uses[name] = kept;
    std::map<std::string, std::string> made;
    for (const Other &other : others)
      giveOwn(name, other.use, other.owner, other.owner.empty(), made);
    std::string list;
    for (const auto &[parameter, own] : made) {
      held.insert(parameter);
      list += (list.empty() ? "" : ", ") + own;
    }
    if (!list.empty())
      report.unmerged.push_back(name + " into " + list +
                                " (merged by the exporter; --keep-shared "
                                "leaves it)");
  }
}

//===----------------------------------------------------------------------===//
// Biases of zeros that the exporter removed
//===----------------------------------------------------------------------===//

void ProgramRestorer::restoreBiases() {
  for (int i = 0; i < graph.node_size(); ++i) {
    const StringRef type = graph.node(i).op_type();
    if (feeding[i] && graph.node(i).input_size() == 2 &&
        (type == "Gemm" || type == "Conv" || type == "ConvTranspose"))
      restoreBias(i, calls[i]);
  }
}

static int64_t integerOf(const onnx::NodeProto &node, StringRef name,
                         int64_t fallback) {
  for (const onnx::AttributeProto &attribute : node.attribute())
    if (attribute.name() == name)
      return attribute.i();
  return fallback;
}

void ProgramRestorer::restoreBias(int index, const ExportedCall &call) {
  onnx::NodeProto &node = *graph.mutable_node(index);
  // The one that nothing holds, but for the biases made here.
  std::string bias;
  int lost = 0;
  for (const std::string &name : program.parametersOf(call))
    if (!isHeld(name) || restoredBiases.count(name)) {
      bias = name;
      ++lost;
    }
  if (lost != 1)
    return; // findLost says so
  const auto weight =
      llvm::find_if(file.initializers(), [&](const OnnxTensor &tensor) {
        return tensor.name == node.input(1);
      });
  if (weight == file.initializers().end() || weight->dims.size() < 2)
    return; // findLost says so
  const bool isGemm = node.op_type() == "Gemm";
  int64_t size = weight->dims[isGemm && !integerOf(node, "transB", 0)];
  if (node.op_type() == "ConvTranspose")
    size = weight->dims[1] * integerOf(node, "group", 1);
  if (!names.contains(bias)) {
    OnnxTensor zeros;
    zeros.name = bias;
    zeros.dataType = weight->dataType;
    zeros.dims = {size};
    zeros.owned.assign(size * onnxElementSize(weight->dataType), '\0');
    names.insert(bias);
    held.insert(bias);
    restoredBiases.insert(bias);
    sources[bias] = {bias};
    file.addInitializer(std::move(zeros));
    report.restored.push_back(bias + " (a bias of zeros that the exporter "
                                     "removed)");
  }
  node.add_input(bias);
  uses[bias].push_back({index, 2});
  if (reached.contains(node.input(1)) || reached.contains(node.output(0)))
    reached.insert(bias);
  report.splitUses.push_back({bias, "", node.output(0), 2});
}

//===----------------------------------------------------------------------===//
// What is nowhere
//===----------------------------------------------------------------------===//

// What the exporter leaves out where it changes nothing.
static bool isIdleFunction(StringRef function) {
  return function == "mul" || function == "add" || function == "sub" ||
         function == "div";
}

// Calls that read no parameter.
static bool makesConstant(StringRef function) {
  for (StringRef start :
       {"arange", "bitwise_", "copy", "empty", "eye", "full", "logical_",
        "new_", "ones", "scalar_tensor", "sym_size", "tril", "triu", "zeros"})
    if (function.starts_with(start))
      return true;
  return function == "eq" || function == "ge" || function == "gt" ||
         function == "le" || function == "lt" || function == "ne";
}

// Whether a node of the parameter's module reads the parameter of another: then
// it is one name of a tied parameter.
bool ProgramRestorer::isAlias(const std::string &parameter) const {
  const std::string module = moduleOfParameter(parameter);
  for (int i = 0; i < graph.node_size(); ++i)
    if (moduleOf(graph.node(i)) == module)
      for (const std::string &read : program.parametersOf(calls[i]))
        if (isHeld(read) && moduleOfParameter(read) != module &&
            !StringRef(read).starts_with(module + "."))
          return true;
  return false;
}

// Whether all that reads the call's result computes with integers, which no
// parameter has.
bool ProgramRestorer::isOfIntegers(const std::string &call) const {
  llvm::StringSet<> integers;
  for (const onnx::NodeProto &node : graph.node())
    if (const int64_t type = integerOf(node, "to", 0);
        node.op_type() == "Cast" &&
        (type == onnx::TensorProto::INT64 || type == onnx::TensorProto::INT32))
      integers.insert(node.output(0));
  bool any = false;
  for (int i = 0; i < graph.node_size(); ++i) {
    if (!llvm::is_contained(calls[i].operands, call))
      continue;
    const onnx::NodeProto &node = graph.node(i);
    const StringRef type = node.op_type();
    // Operators with operands of one type.
    any = type == "Add" || type == "Sub" || type == "Mul" || type == "Div";
    if (!any || llvm::none_of(node.input(), [&](const std::string &input) {
          return integers.contains(input);
        }))
      return false;
  }
  return any;
}

// A parameter that a call names must be held by something. One that no call
// names may be unused or an alias of a tied one; but where a call was taken out
// of the graph that could have read it, nobody can tell.
void ProgramRestorer::findLost() {
  std::map<std::string, std::string> named; // parameter -> node
  for (int i = 0; i < graph.node_size(); ++i)
    for (const std::string &name : program.parametersOf(calls[i]))
      if (feeding[i] && !isHeld(name))
        named.try_emplace(name, graph.node(i).name());
  for (const auto &[name, node] : named) {
    if (isFrozen(name))
      continue;
    const bool norm = llvm::is_contained(
        program.buffers(), moduleOfParameter(name) + ".running_mean");
    fail(node,
         "expected parameter '" + name + "' of the exported program, found " +
             (norm ? "that the exporter fused its batch norm into the "
                     "convolution before"
                   : "no initializer that holds it"),
         std::string(kRemedy) + ", or --freeze=" + name +
             " trains what is there without it");
  }
  const std::vector<std::string> removed = program.isOptimized()
                                               ? program.removedCalls(graph)
                                               : std::vector<std::string>();
  // Equal nodes were made one (merged), or the call did nothing with the values
  // that parameters have now (idle): a product with 1, a sum with 0.
  std::vector<std::string> merged, idle;
  for (const std::string &call : removed) {
    if (explained.count(call) || isOfIntegers(call))
      continue;
    if (functionOf(call) == "detach")
      fail(call,
           "expected a node that stops the gradient (detach), found that the "
           "exporter removed it",
           kRemedy);
    else if (isIdleFunction(functionOf(call)))
      idle.push_back(call);
    else if (!makesConstant(functionOf(call)))
      merged.push_back(call);
  }
  llvm::append_range(merged, doubtfulUses);
  std::vector<std::string> lost, unfrozen;
  for (const std::string &name : program.parameters())
    if (!isHeld(name) && !named.count(name) && !isAlias(name)) {
      lost.push_back(name);
      if (!isFrozen(name))
        unfrozen.push_back(name);
    }
  if (!merged.empty() && !lost.empty())
    return failLost(merged[0], lost);
  if (!idle.empty() && !unfrozen.empty())
    return failLost(idle[0], unfrozen);
  if (!idle.empty() && !vanishing.empty())
    return fail(idle[0],
                "expected a node for this call of the exported program, found "
                "that the exporter removed it; it may have used '" +
                    vanishing + "', which is computed from a parameter",
                kRemedy);
  report.lost = unfrozen;
  if (!idle.empty())
    report.warnings.push_back(
        "calls that the exporter removed since they did nothing ('" +
        llvm::join(idle, "', '") +
        "'): if a parameter of value 0 or 1 was in one, it is not trained "
        "there "
        "(optimize=False leaves no doubt)");
}

void ProgramRestorer::failLost(const std::string &call,
                               const std::vector<std::string> &lost) {
  fail(call,
       "expected to find all parameters of the exported program, found nothing "
       "that holds '" +
           llvm::join(lost, "', '") +
           "'; this call, which the exporter removed or merged, may have used "
           "them",
       std::string(kRemedy) + ", or --freeze=" + llvm::join(lost, ",") +
           " if the model does not use them");
}
