// Initializers that the exporter computed from parameters: elements in another
// order are trained as they are, repeated ones through what repeats them.
#include "onnx/Import/FoldedFunctions.h"
#include "onnx/Import/NewerFields.h"
#include "onnx/Import/RestoreProgram.h"
#include "runtime/layout/Strides.h"

#include <cmath>
#include <cstring>

using namespace merak;
using llvm::StringRef;

static constexpr const char *kRemedy = "export with optimize=False";

static std::string describe(const std::set<std::string> &names) {
  std::string list;
  for (const std::string &name : names)
    list += (list.empty() ? "'" : ", '") + name + "'";
  return list;
}

static std::string shapeOf(const OnnxTensor &tensor) {
  std::string shape;
  for (int64_t dim : tensor.dims)
    shape += (shape.empty() ? "" : ",") + std::to_string(dim);
  return "[" + shape + "]";
}

const OnnxTensor &ProgramRestorer::tensorOf(const std::string &name) const {
  return *llvm::find_if(file.initializers(), [&](const OnnxTensor &tensor) {
    return tensor.name == name;
  });
}

// The program's functions that a folded tensor went through.
std::set<std::string>
ProgramRestorer::functionsOf(const std::string &name) const {
  std::set<std::string> functions;
  std::vector<std::string> values{originOf(name)};
  if (const auto *from = program.foldedFrom(originOf(name)))
    values.insert(values.end(), from->begin(), from->end());
  for (const std::string &value : values)
    if (!program.isParameter(value) && !isInternal(value) &&
        !computed.contains(value) &&
        !llvm::is_contained(program.buffers(), value))
      functions.insert(functionOf(value).str());
  return functions;
}

// Whether the last thing done was to look rows up in the table of a module
// ("position.weight").
bool ProgramRestorer::looksUpLast(const std::string &name,
                                  const Sources &from) const {
  StringRef last = functionOf(originOf(name));
  return from.size() == 1 && StringRef(*from.begin()).ends_with(".weight") &&
         (last == "embedding" || last == "index" || last == "index_select");
}

// Whether every element of the tensor is one element of a parameter, none of
// them twice; with `why` what it is otherwise.
bool ProgramRestorer::isRearranged(const std::string &name, const Sources &from,
                                   std::string &why) const {
  const std::string &origin = originOf(name);
  const std::vector<std::string> *values = program.foldedFrom(origin);
  if (isInternal(origin) || !values)
    for (const Use &use : uses.at(name))
      if (!takesWeightsAsTheyAre(calls[use.node].name)) {
        why = calls[use.node].name;
        return false;
      }
  if (!values)
    return true;
  bool parts = false, joins = false;
  // Of a table that a module looks up in, all else made the positions.
  const bool looksUp = looksUpLast(name, from);
  for (const std::string &function :
       looksUp ? std::set<std::string>{"embedding"} : functionsOf(name)) {
    if (takesPart(function))
      parts = true;
    else if (function == "cat" || function == "stack" || function == "concat")
      joins = true;
    else if (repeatsElements(function) || movesElements(function) ||
             makesIndices(function))
      continue;
    else if (isInternal(origin) && StringRef(function).starts_with("zeros"))
      continue; // first states, of which the shapes are needed
    else
      why += (why.empty() ? "" : ", ") + function;
  }
  if (why.empty() && joins && parts && from.size() == 1)
    why = "parts joined again";
  if (why.empty() && joins && llvm::any_of(*values, [&](const auto &value) {
        return llvm::is_contained(program.buffers(), value);
      }))
    why = "joined with a buffer";
  return why.empty();
}

// Shared modules make a transposed copy for each use: they are one parameter.
bool ProgramRestorer::tieToOther(const std::string &name, const Sources &from) {
  const OnnxTensor tensor = tensorOf(name);
  auto bytes = file.bytes(tensor);
  for (const auto &[other, theirs] : sources) {
    if (other == name || theirs != from || failed.count(other) ||
        !names.contains(other))
      continue;
    const OnnxTensor &held = tensorOf(other);
    auto values = file.bytes(held);
    if (!bytes || !values || held.dataType != tensor.dataType ||
        bytes->size() != values->size())
      continue;
    bool equal = held.dims == tensor.dims && *bytes == *values;
    if (equal && other < name) {
      for (const Use &use : uses[name]) {
        graph.mutable_node(use.node)->set_input(use.slot, other);
        uses[other].push_back(use);
      }
      uses[name].clear();
      report.foldedUses.push_back({other, name});
      report.tied.push_back(name + " to " + other +
                            " (folded from one parameter)");
      return true;
    }
    if (!program.isParameter(other) || tensor.dims.size() != 2 ||
        held.dims.size() != 2 || held.dims[0] != tensor.dims[1] ||
        held.dims[1] != tensor.dims[0])
      continue;
    const size_t size = onnxElementSize(tensor.dataType);
    const int64_t rows = tensor.dims[0], columns = tensor.dims[1];
    bool transposed = true;
    for (int64_t r = 0; r < rows && transposed; ++r)
      for (int64_t c = 0; c < columns && transposed; ++c)
        transposed = bytes->substr((r * columns + c) * size, size) ==
                     values->substr((c * rows + r) * size, size);
    if (!transposed)
      continue;
    file.removeInitializer(name);
    names.erase(name);
    uses[name].clear();
    addNode("Transpose", {other}, name, {1, 0});
    report.foldedUses.push_back({other, name, {}, {1, 0}});
    report.tied.push_back(name + " to " + other + " (transposed)");
    return true;
  }
  return false;
}

void ProgramRestorer::addNode(const char *type,
                              const std::vector<std::string> &inputs,
                              const std::string &output,
                              const std::vector<int64_t> &permutation) {
  onnx::NodeProto &node = added.emplace_back();
  node.set_op_type(type);
  node.set_name(output);
  for (const std::string &input : inputs)
    node.add_input(input);
  node.add_output(output);
  if (!permutation.empty()) {
    onnx::AttributeProto &attribute = *node.add_attribute();
    attribute.set_name("perm");
    attribute.set_type(onnx::AttributeProto::INTS);
    for (int64_t axis : permutation)
      attribute.add_ints(axis);
  }
}

std::string ProgramRestorer::addShape(const std::vector<int64_t> &shape,
                                      const std::string &name) {
  OnnxTensor tensor;
  tensor.name = freeName(name);
  tensor.dataType = onnx::TensorProto::INT64;
  tensor.dims = {static_cast<int64_t>(shape.size())};
  tensor.owned.assign(reinterpret_cast<const char *>(shape.data()),
                      shape.size() * sizeof(int64_t));
  names.insert(tensor.name);
  std::string made = tensor.name;
  file.addInitializer(std::move(tensor));
  return made;
}

// Dimensions along which all slices are equal become one slice again. False: no
// such dimension, or the bytes are not there.
bool ProgramRestorer::contract(const std::string &name, const Sources &from) {
  const OnnxTensor tensor = tensorOf(name);
  auto bytes = file.bytes(tensor);
  if (!bytes || tensor.dims.empty())
    return false;
  const size_t size = onnxElementSize(tensor.dataType);
  const int64_t rank = tensor.dims.size();
  std::vector<int64_t> small(tensor.dims.begin(), tensor.dims.end());
  bool same = bytes->drop_front(size) == bytes->drop_back(size);
  std::string repeated;
  const std::vector<int64_t> strides = layout::denseStrides(tensor.dims);
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t inner = strides[d] * size, extent = tensor.dims[d];
    bool equal = extent > 1;
    // Equal elements do not show where they were repeated: along the batch.
    if (same)
      equal = d == batchAxisOf(name) && extent == batch && rank > 1;
    for (uint64_t at = 0; equal && !same && at < bytes->size();
         at += extent * inner)
      for (int64_t k = 1; k < extent && equal; ++k)
        equal =
            bytes->substr(at, inner) == bytes->substr(at + k * inner, inner);
    if (equal) {
      small[d] = 1;
      repeated += (repeated.empty() ? "" : ", ") + std::to_string(d);
    }
  }
  if (repeated.empty())
    return false;
  OnnxTensor one;
  one.dataType = tensor.dataType;
  one.dims.assign(small.begin(), small.end());
  // Under the parameter's name, if it is the parameter as it was.
  bool whole = from.size() == 1;
  for (const std::string &function : functionsOf(name))
    whole &= repeatsElements(function);
  one.name = freeName(whole ? *from.begin() : name + ".once");
  std::vector<int64_t> at(rank, 0);
  for (int64_t i = 0, n = one.elements(); i < n; ++i) {
    int64_t offset = 0;
    for (int64_t d = 0; d < rank; ++d)
      offset += at[d] * strides[d];
    one.owned += bytes->substr(offset * size, size).str();
    for (int64_t d = rank - 1; d >= 0 && ++at[d] == small[d]; --d)
      at[d] = 0;
  }
  const std::string own = one.name;
  names.insert(own);
  sources[own] = from;
  trainedNames.insert(own);
  reached.insert(own);
  file.removeInitializer(name);
  file.addInitializer(std::move(one));
  std::vector<int64_t> shape(tensor.dims.begin(), tensor.dims.end());
  addNode("Expand", {own, addShape(shape, name + ".shape")}, name);
  report.foldedUses.push_back({own, name});
  std::string line = own + " (the exporter wrote it as '" + name + "' " +
                     shapeOf(tensor) + ", repeated along " + repeated + ")";
  if (same)
    report.warnings.push_back(
        "all elements of '" + name + "' " + shapeOf(tensor) +
        " are equal: it is taken for parameter " + describe(from) +
        ", repeated along the batch (optimize=False leaves no doubt)");
  report.restored.push_back(line);
  return true;
}

// exp(scale), -exp(decay), sigmoid(gate): the parameter is what gives the value
// again, and is trained through the functions.
bool ProgramRestorer::invert(const std::string &name, const Sources &from) {
  const std::string &origin = originOf(name);
  const std::vector<std::string> *values = program.foldedFrom(origin);
  if (from.size() != 1 || !values || names.contains(*from.begin()))
    return false;
  for (const auto &[other, theirs] : sources)
    if (other != name && theirs.count(*from.begin()) && !uses[other].empty())
      return false;
  std::vector<const Invertible *> chain; // in the order they were computed
  std::vector<std::string> origins(*values);
  origins.push_back(origin);
  for (const std::string &value : origins) {
    const StringRef function = functionOf(value);
    if (program.isParameter(value) || isInternal(value) ||
        movesElements(function))
      continue;
    const Invertible *entry = invertible(function);
    if (!entry)
      return false;
    chain.push_back(entry);
  }
  // Of two, the last one gave the value its name.
  if (chain.empty() || chain.size() > 2 ||
      (chain.size() == 2 && !invertible(functionOf(origin))))
    return false;
  const OnnxTensor tensor = tensorOf(name);
  auto bytes = file.bytes(tensor);
  if (!bytes || tensor.dataType != onnx::TensorProto::FLOAT)
    return false;
  OnnxTensor parameter = tensor;
  parameter.name = *from.begin();
  parameter.path.clear();
  parameter.owned.resize(bytes->size());
  for (size_t at = 0; at < bytes->size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes->data() + at, sizeof(float));
    double undone = value;
    for (const Invertible *entry : llvm::reverse(chain))
      undone = entry->inverse(undone);
    if (!std::isfinite(undone))
      return false;
    value = static_cast<float>(undone);
    std::memcpy(parameter.owned.data() + at, &value, sizeof(float));
  }
  const std::string own = parameter.name;
  names.insert(own);
  sources[own] = from;
  trainedNames.insert(own);
  noteVanishing(name);
  file.removeInitializer(name);
  file.addInitializer(std::move(parameter));
  std::string last = own;
  std::vector<std::string> functions;
  for (const Invertible *entry : chain) {
    const std::string next =
        entry == chain.back() ? name : freeName(name + ".inner");
    names.insert(next);
    addNode(entry->type, {last}, next);
    functions.push_back(entry->type);
    last = next;
  }
  if (!copyOf.count(name))
    report.foldedUses.push_back({own, name, functions});
  for (ImportReport::SplitUse &use : report.splitUses)
    if (use.parameter == name) {
      use.parameter = own;
      use.copy = name;
      use.functions = functions;
    }
  report.restored.push_back(own + " (the exporter wrote '" + name +
                            "', which was computed from it)");
  return true;
}

// Whether what was repeated may lie between other elements.
bool ProgramRestorer::mixesElements(const std::string &name) const {
  static const llvm::StringSet<> kMixes = {
      "_unsafe_view", "cat",   "concat", "flatten",   "repeat",
      "reshape",      "stack", "tile",   "unflatten", "view"};
  return llvm::any_of(functionsOf(name), [](const std::string &function) {
    return kMixes.contains(function);
  });
}

bool ProgramRestorer::isDistinct(const std::string &name) {
  std::vector<float> values = floatsIn(name);
  llvm::sort(values);
  return !values.empty() &&
         std::adjacent_find(values.begin(), values.end()) == values.end();
}

void ProgramRestorer::failRepeated(const std::string &name,
                                   const std::string &what) {
  fail(name,
       "expected parameter " + describe(sources[name]) +
           " of the exported program, found " + what +
           ", in which the exporter repeated its elements: they would be "
           "trained as copies",
       kRemedy);
}

void ProgramRestorer::judgeFold(const std::string &name) {
  const Sources from = sources[name];
  const OnnxTensor tensor = tensorOf(name);
  std::string why;
  const std::string what = "'" + name + "' " + shapeOf(tensor);
  const bool moved = isRearranged(name, from, why);
  if (!moved && (invert(name, from) || shift(name, from)))
    return;
  if (!moved)
    return fail(name,
                "expected parameter " + describe(from) +
                    " of the exported program, found " + what +
                    ", which the exporter computed from it (" + why +
                    "): training that would be training another model",
                kRemedy);
  bool repeats = false, picks = false, parts = false;
  for (const std::string &function : functionsOf(name)) {
    repeats |= repeatsElements(function) && !besideStates.count(name);
    picks |= function == "embedding" || function == "index_select" ||
             function == "index";
    parts |= takesPart(function);
  }
  // Elements that the file holds twice would be trained apart.
  for (const auto &[other, theirs] : sources) {
    if (other == name || !names.contains(other) || failed.count(other) ||
        !uses.count(other) || uses[other].empty())
      continue;
    for (const std::string &source : theirs)
      if (from.count(source) && (!parts || other == source || picks) &&
          (other == source || sharesElements(name, other)))
        return fail(name,
                    "expected one use of parameter '" + source +
                        "' of the exported program, found that the exporter "
                        "folded it into " +
                        what + " and '" + other + "'",
                    kRemedy);
  }
  if ((repeats || picks) && contract(name, from)) {
    if (repeats && mixesElements(name) &&
        !isDistinct(report.foldedUses.back().parameter))
      failRepeated(name, what);
    return;
  }
  if (repeats && !isDistinct(name))
    return failRepeated(name, what);
  if (picks) {
    // Rows that are looked up twice are equal.
    auto bytes = file.bytes(tensor);
    const int64_t width = tensor.dims.empty() ? 1 : tensor.dims.back();
    const size_t row = width * onnxElementSize(tensor.dataType);
    std::set<std::string> rows;
    bool distinct = bytes && row;
    for (uint64_t at = 0; distinct && at < bytes->size(); at += row)
      distinct = rows.insert(bytes->substr(at, row).str()).second;
    if (!distinct && tensor.elements() > width)
      return fail(name,
                  "expected parameter " + describe(from) +
                      " of the exported program, found " + what +
                      ", which the exporter looked up in it, equal rows "
                      "among them",
                  kRemedy);
  }
  trainedNames.insert(name);
  report.moved.push_back(describe(from) + " as " + what);
}

void ProgramRestorer::judgeFolds() {
  std::vector<std::string> folds;
  for (const auto &[name, from] : sources) {
    if (uses[name].empty() || !reached.contains(name))
      continue;
    if (program.isParameter(name))
      trainedNames.insert(name);
    else if (!isFrozen(name) &&
             !llvm::all_of(from, [&](const std::string &source) {
               return isFrozen(source);
             }))
      folds.push_back(name);
  }
  llvm::erase_if(folds, [&](const std::string &name) {
    std::string why;
    return isRearranged(name, sources[name], why) &&
           tieToOther(name, sources[name]);
  });
  std::map<std::string, std::vector<Use>> merged;
  for (const std::string &name : folds)
    if (std::vector<Use> others = readersOfOthers(name); !others.empty())
      merged[name] = others;
  // What was computed last first: it may be computed from others.
  auto origins = [&](const std::string &name) {
    const auto *values = program.foldedFrom(originOf(name));
    return values ? values->size() : 0;
  };
  llvm::stable_sort(folds, [&](const std::string &a, const std::string &b) {
    return origins(a) > origins(b);
  });
  llvm::erase_if(folds, [&](const std::string &name) {
    return isOfZeroState(name) || relate(name);
  });
  llvm::sort(folds);
  for (const std::string &name : folds)
    judgeFold(name);
  for (const auto &[name, readers] : merged)
    judgeMerged(name, readers);
  reportRelations();
}
