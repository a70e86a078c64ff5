// Initializers that the exporter computed from others that the file holds too,
// or from states of zeros: they are computed again, as the program does. That
// they are what the notes say is checked by their values, bit by bit.
#include "onnx/Import/FoldedFunctions.h"
#include "onnx/Import/RestoreProgram.h"
#include "runtime/layout/Strides.h"

#include "llvm/ADT/StringExtras.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

using namespace merak;
using llvm::StringRef;

static constexpr const char *kRemedy = "export with optimize=False";

std::vector<float> ProgramRestorer::floatsIn(const std::string &name) {
  const OnnxTensor &tensor = tensorOf(name);
  auto bytes = file.bytes(tensor);
  std::vector<float> values;
  if (!bytes || tensor.dataType != onnx::TensorProto::FLOAT)
    return values;
  values.resize(bytes->size() / sizeof(float));
  std::memcpy(values.data(), bytes->data(), values.size() * sizeof(float));
  return values;
}

static bool isRecurrent(const onnx::NodeProto &node) {
  return node.op_type() == "GRU" || node.op_type() == "LSTM" ||
         node.op_type() == "RNN";
}

static bool allZero(const std::vector<float> &values) {
  return llvm::all_of(values, [](float value) { return value == 0; });
}

// Whether the call of a node names an initializer as often as the node reads
// it.
bool ProgramRestorer::isNamedAt(const std::string &name, const Use &use) const {
  const auto reads = llvm::count_if(
      uses.at(name), [&](const Use &other) { return other.node == use.node; });
  return llvm::count(calls[use.node].operands, originOf(name)) >= reads;
}

// A node whose call names another value reads another tensor, which had equal
// values when the model was exported.
bool ProgramRestorer::isNamedByReaders(const std::string &name) const {
  return llvm::all_of(uses.at(name),
                      [&](const Use &use) { return isNamedAt(name, use); });
}

// The uses of a fold whose calls name something else that the graph does not
// have.
std::vector<ProgramRestorer::Use>
ProgramRestorer::readersOfOthers(const std::string &name) const {
  std::vector<Use> others;
  if (copyOf.count(name) || isInternal(name))
    return others;
  for (const Use &use : uses.at(name)) {
    const ExportedCall &call = calls[use.node];
    const std::vector<std::string> missing = program.unresolved(call, true);
    const std::vector<std::string> read = program.parametersOf(call);
    if (!missing.empty() && !isNamedAt(name, use) &&
        llvm::none_of(read, [&](const std::string &parameter) {
          return sources.at(name).count(parameter);
        }))
      others.push_back(use);
  }
  return others;
}

static bool isNear(const std::vector<float> &a, const std::vector<float> &b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i)
    same = std::fabs(a[i] - b[i]) <= 1e-5 * (1 + std::fabs(b[i]));
  return same;
}

// The two were equal when the model was exported: the same part of the same
// parameter if no other has its values, and if these are not one number, which
// could be any part.
void ProgramRestorer::judgeMerged(const std::string &name,
                                  const std::vector<Use> &readers) {
  const auto found = sources.find(name);
  if (found == sources.end() || failed.count(name))
    return;
  const std::string &parameter = *found->second.begin();
  const std::string holder = names.contains(parameter) ? parameter : name;
  auto isHolder = [&](const OnnxTensor &tensor) {
    return tensor.name == holder;
  };
  if (!llvm::any_of(file.initializers(), isHolder))
    return;
  const std::vector<float> values = floatsIn(holder);
  bool doubtful = values.empty() || llvm::all_equal(values);
  for (const OnnxTensor &tensor : file.initializers())
    doubtful |= tensor.name != holder && trainedNames.count(tensor.name) &&
                tensor.elements() == static_cast<int64_t>(values.size()) &&
                isNear(floatsIn(tensor.name), values);
  if (doubtful)
    fail(name,
         "expected one use of parameter '" + parameter +
             "' of the exported program, found that '" +
             graph.node(readers[0].node).name() + "' reads '" + name +
             "' in place of another value that was equal to it when the model "
             "was exported",
         kRemedy);
}

// The exporter leaves out sums with 0 and products with 1.
void ProgramRestorer::noteVanishing(const std::string &name) {
  const std::vector<float> values = floatsIn(name);
  const bool ones =
      llvm::all_of(values, [](float value) { return value == 1; });
  if (ones || allZero(values))
    vanishing = name;
}

// Parts of a parameter that have no value in common have no element in common.
bool ProgramRestorer::sharesElements(const std::string &one,
                                     const std::string &other) {
  std::vector<float> a = floatsIn(one), b = floatsIn(other), both;
  llvm::sort(a);
  llvm::sort(b);
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                        std::back_inserter(both));
  return a.empty() || b.empty() || !both.empty();
}

// Where an operand's samples are: first states have their layers before them.
int64_t ProgramRestorer::batchAxisOf(const std::string &name) const {
  const std::vector<Use> &readers = uses.at(name);
  return !readers.empty() && llvm::all_of(readers, [&](const Use &use) {
    return isRecurrent(graph.node(use.node)) && use.slot >= 5;
  });
}

//===----------------------------------------------------------------------===//
// A number that makes one tensor of another
//===----------------------------------------------------------------------===//

namespace {
// Numbers between which rounding makes no difference.
struct Interval {
  double low = -INFINITY, high = INFINITY;
  void meet(double a, double b) {
    low = std::max(low, std::min(a, b));
    high = std::min(high, std::max(a, b));
  }
};

// A number of a program, and how many bits it takes to write it.
struct Written {
  float value = 0;
  int bits = 0;
};
} // namespace

// The shortest float in an interval.
static std::optional<Written> shortest(const Interval &in) {
  if (!(in.low <= in.high) || !std::isfinite(in.low) || !std::isfinite(in.high))
    return std::nullopt;
  if (in.low <= 0 && in.high >= 0)
    return Written{0, 0};
  int exponent = 0;
  const double middle = in.low + (in.high - in.low) / 2;
  const double fraction = std::frexp(middle, &exponent);
  for (int bits = 1; bits <= 24; ++bits) {
    const double value =
        std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
    if (value >= in.low && value <= in.high)
      return Written{static_cast<float>(value), bits};
  }
  return std::nullopt;
}

// Half of the distance to the next float.
static double halfStep(float value) {
  const float next = std::nextafter(std::fabs(value), INFINITY);
  return (double(next) - std::fabs(double(value))) / 2;
}

// c in y = sign * x + c, rounded.
static std::optional<Written> addedNumber(const std::vector<float> &x,
                                          const std::vector<float> &y,
                                          int sign) {
  Interval interval;
  for (size_t i = 0; i < x.size(); ++i) {
    const double c = double(y[i]) - sign * double(x[i]);
    interval.meet(c - halfStep(y[i]), c + halfStep(y[i]));
  }
  auto found = shortest(interval);
  for (size_t i = 0; found && i < x.size(); ++i)
    if (float(sign * double(x[i]) + found->value) != y[i])
      return std::nullopt;
  return found;
}

// c in y = c * x, rounded.
static std::optional<Written> factor(const std::vector<float> &x,
                                     const std::vector<float> &y) {
  Interval interval;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] != 0)
      interval.meet((y[i] - halfStep(y[i])) / x[i],
                    (y[i] + halfStep(y[i])) / x[i]);
  auto found = shortest(interval);
  for (size_t i = 0; found && i < x.size(); ++i)
    if (float(double(x[i]) * found->value) != y[i])
      return std::nullopt;
  return found;
}

static std::string withNumber(const char *type, float number) {
  char text[32];
  auto [end, error] = std::to_chars(text, text + sizeof(text), number);
  return std::string(type) + ":" + std::string(text, end);
}

using Functions = std::vector<std::string>;

// x + c, c * x, x - c or c - x; nothing if it is none of these, or if it could
// be two of them.
static std::optional<Functions> withOneNumber(StringRef function,
                                              const std::vector<float> &x,
                                              const std::vector<float> &y) {
  if (function == "mul") {
    auto c = factor(x, y);
    return c ? std::optional(Functions{withNumber("Mul", c->value)})
             : std::nullopt;
  }
  auto plus = addedNumber(x, y, 1), minus = addedNumber(x, y, -1);
  if (function == "add")
    return plus ? std::optional(Functions{withNumber("Add", plus->value)})
                : std::nullopt;
  // Of a single number both fit: a program's constant is short, the difference
  // of two weights is not.
  constexpr int kShort = 12, kLong = 18;
  if (plus && minus) {
    if (plus->bits > kLong && minus->bits <= kShort)
      plus.reset();
    else if (minus->bits > kLong && plus->bits <= kShort)
      minus.reset();
    else
      return std::nullopt;
  }
  if (plus)
    return Functions{withNumber("Add", plus->value)};
  if (minus)
    return Functions{"Neg", withNumber("Add", minus->value)};
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// The same elements elsewhere
//===----------------------------------------------------------------------===//

// Whether `to` is `from` with its axes permuted.
static bool isPermuted(llvm::ArrayRef<int64_t> fromDims,
                       const std::vector<float> &from,
                       llvm::ArrayRef<int64_t> toDims,
                       const std::vector<float> &to,
                       const std::vector<int64_t> &permutation) {
  const size_t rank = toDims.size();
  for (size_t d = 0; d < rank; ++d)
    if (toDims[d] != fromDims[permutation[d]])
      return false;
  const std::vector<int64_t> strides = layout::denseStrides(fromDims);
  std::vector<int64_t> at(rank, 0);
  for (float value : to) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d)
      offset += at[d] * strides[permutation[d]];
    if (from[offset] != value)
      return false;
    for (size_t d = rank; d-- > 0 && ++at[d] == toDims[d];)
      at[d] = 0;
  }
  return true;
}

// The only permutation of axes that makes `to` of `from`. Moving axes of one
// element is none.
static std::optional<std::vector<int64_t>>
onlyPermutation(llvm::ArrayRef<int64_t> fromDims,
                const std::vector<float> &from, llvm::ArrayRef<int64_t> toDims,
                const std::vector<float> &to) {
  constexpr size_t kMaxRank = 5;
  if (fromDims.size() != toDims.size() || fromDims.size() > kMaxRank ||
      from.size() != to.size())
    return std::nullopt;
  std::vector<int64_t> permutation(fromDims.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::optional<std::vector<int64_t>> found;
  std::vector<int64_t> order; // of axes with several elements, in the found one
  do {
    if (!isPermuted(fromDims, from, toDims, to, permutation))
      continue;
    std::vector<int64_t> wide;
    for (int64_t axis : permutation)
      if (fromDims[axis] != 1)
        wide.push_back(axis);
    if (found && wide != order)
      return std::nullopt;
    if (!found)
      found = permutation;
    order = wide;
  } while (std::next_permutation(permutation.begin(), permutation.end()));
  return found;
}

//===----------------------------------------------------------------------===//
// One fold from another
//===----------------------------------------------------------------------===//

bool ProgramRestorer::isOfBuffers(const std::string &name) const {
  const auto *values = program.foldedFrom(originOf(name));
  return values && llvm::any_of(*values, [&](const std::string &value) {
           return llvm::is_contained(program.buffers(), value);
         });
}

// What the exporter computed on the way from `base` to `name`: the results of
// calls, the last one of which gave `name` its name.
std::vector<std::string> ProgramRestorer::callsBetween(const std::string &base,
                                                       const std::string &name,
                                                       int &constants) const {
  std::set<std::string> before{base};
  if (const auto *values = program.foldedFrom(originOf(base)))
    before.insert(values->begin(), values->end());
  std::vector<std::string> between;
  constants = 0;
  for (const std::string &value : *program.foldedFrom(originOf(name)))
    if (isInternal(value))
      constants += !before.count(value);
    else if (!before.count(value) &&
             !functionOf(value).starts_with("scalar_tensor"))
      between.push_back(value);
  between.push_back(originOf(name));
  return between;
}

// The initializer that was computed last among those that `name` was computed
// from, of the same parameter; empty: none, or two. Names of buffers could be
// taken for functions.
std::string ProgramRestorer::baseOf(const std::string &name) const {
  if (isOfBuffers(name))
    return "";
  std::string base;
  size_t most = 0;
  for (const std::string &value : *program.foldedFrom(originOf(name))) {
    const auto found = sources.find(value);
    if (value == name || found == sources.end() || found->second.size() != 1 ||
        found->second != sources.at(name) || !names.contains(value) ||
        !reached.contains(value) || uses.at(value).empty())
      continue;
    const auto *before = program.foldedFrom(value);
    const size_t count = before ? before->size() + 1 : 1;
    if (count == most)
      return "";
    if (count > most)
      base = value;
    most = std::max(most, count);
  }
  return base;
}

// Functions of one number each, told by their names.
static std::optional<Functions>
namedFunctions(const std::vector<std::string> &calls, std::vector<float> x,
               const std::vector<float> &y) {
  // Of three, nobody says which of the first two came first.
  if (calls.size() > 2)
    return std::nullopt;
  Functions functions;
  for (const std::string &call : calls) {
    const Invertible *entry = invertible(functionOf(call));
    if (!entry)
      return std::nullopt;
    functions.push_back(entry->type);
    for (float &value : x)
      value = static_cast<float>(entry->apply(value));
  }
  // Exporters round functions otherwise.
  for (size_t i = 0; i < x.size(); ++i)
    if (!(std::fabs(x[i] - y[i]) <= 1e-6 + 1e-5 * std::fabs(y[i])))
      return std::nullopt;
  return functions;
}

std::optional<ProgramRestorer::Relation>
ProgramRestorer::relationOf(const std::string &base, const std::string &name) {
  Relation relation{name, base, {}, {}};
  int constants = 0;
  const std::vector<std::string> calls = callsBetween(base, name, constants);
  const std::vector<float> x = floatsIn(base), y = floatsIn(name);
  if (x.empty() || x.size() != y.size())
    return std::nullopt;
  const llvm::ArrayRef<int64_t> from = tensorOf(base).dims,
                                to = tensorOf(name).dims;
  if (llvm::all_of(calls, [](const std::string &call) {
        return movesAxes(functionOf(call));
      })) {
    auto permutation = onlyPermutation(from, x, to, y);
    if (permutation)
      relation.permutation = *permutation;
    return permutation ? std::optional(relation) : std::nullopt;
  }
  if (from != to)
    return std::nullopt;
  const StringRef last = functionOf(calls.back());
  const bool takesNumber =
      last == "add" || last == "sub" || last == "rsub" || last == "mul";
  std::optional<Functions> functions =
      !takesNumber                          ? namedFunctions(calls, x, y)
      : calls.size() == 1 && constants == 1 ? withOneNumber(last, x, y)
                                            : std::nullopt;
  if (functions)
    relation.functions = *functions;
  return functions ? std::optional(relation) : std::nullopt;
}

// 1 - sigmoid(gate) beside sigmoid(gate), exp(-w) beside w, the transposed copy
// of a table that was expanded: computed from what it was computed from.
bool ProgramRestorer::relate(const std::string &name) {
  if (copyOf.count(name) || isInternal(name) || !program.foldedFrom(name) ||
      sources[name].size() != 1 || !isNamedByReaders(name))
    return false;
  const std::string base = baseOf(name);
  if (base.empty())
    return false;
  auto relation = relationOf(base, name);
  if (!relation)
    return false;
  noteVanishing(name);
  file.removeInitializer(name);
  uses[name].clear();
  addRelation(*relation);
  relations.push_back(*relation);
  report.restored.push_back("'" + name + "', computed from '" + base +
                            "' as in the exported program");
  return true;
}

// Before the nodes of relations that were found earlier, which may read it.
void ProgramRestorer::addRelation(const Relation &relation) {
  std::vector<onnx::NodeProto> before;
  std::swap(before, added);
  std::string last = relation.base;
  if (!relation.permutation.empty())
    addNode("Transpose", {last}, relation.name, relation.permutation);
  for (size_t i = 0; i < relation.functions.size(); ++i) {
    const auto [type, number] = StringRef(relation.functions[i]).split(':');
    std::vector<std::string> inputs{last};
    if (!number.empty())
      inputs.push_back(addNumber(number, relation.name + ".number"));
    last = i + 1 == relation.functions.size()
               ? relation.name
               : freeName(relation.name + ".inner");
    names.insert(last);
    addNode(type.str().c_str(), inputs, last);
  }
  std::swap(before, added);
  related.insert(related.begin(), before.begin(), before.end());
}

std::string ProgramRestorer::addNumber(StringRef text,
                                       const std::string &name) {
  float value = 0;
  std::from_chars(text.begin(), text.end(), value);
  OnnxTensor tensor;
  tensor.name = freeName(name);
  tensor.dataType = onnx::TensorProto::FLOAT;
  tensor.owned.assign(reinterpret_cast<const char *>(&value), sizeof(value));
  names.insert(tensor.name);
  std::string made = tensor.name;
  file.addInitializer(std::move(tensor));
  return made;
}

// How to compute them from what is trained, for writing them back. The first
// one found may be computed from the others.
void ProgramRestorer::reportRelations() {
  for (const Relation &relation : llvm::reverse(relations)) {
    ImportReport::FoldedUse use{relation.base, relation.name};
    for (const ImportReport::FoldedUse &base : report.foldedUses)
      if (base.initializer == relation.base) {
        use.parameter = base.parameter;
        use.functions = base.functions;
        use.permutation = base.permutation;
      }
    llvm::append_range(use.functions, relation.functions);
    std::vector<int64_t> permutation = relation.permutation;
    if (!permutation.empty() && !use.permutation.empty())
      for (int64_t &axis : permutation)
        axis = use.permutation[axis];
    if (!permutation.empty())
      use.permutation = permutation;
    report.foldedUses.push_back(use);
  }
}

//===----------------------------------------------------------------------===//
// States of zeros
//===----------------------------------------------------------------------===//

// Whether `name` is a product with zeros and nothing else, plus a bias perhaps.
bool ProgramRestorer::multipliesZeros(const std::string &name) const {
  const StringRef last = functionOf(originOf(name));
  bool zeros = false;
  for (const std::string &value : *program.foldedFrom(originOf(name))) {
    const StringRef function = functionOf(value);
    zeros |= makesZeros(function);
    if (!program.isParameter(value) && !isInternal(value) &&
        !makesZeros(function) && !movesElements(function) &&
        !takesPart(function) && !repeatsElements(function))
      return false;
  }
  return zeros && (last == "linear" || last == "matmul" || last == "mm" ||
                   last == "addmm");
}

// Whether a weight that is not zero is trained elsewhere.
bool ProgramRestorer::isTrainedElsewhere(const std::string &parameter,
                                         const std::string &name) {
  for (const auto &[other, from] : sources)
    if (other != name && from.count(parameter) && names.contains(other) &&
        reached.contains(other) && !uses[other].empty())
      return !allZero(floatsIn(other));
  return false;
}

// Whether another call of the function reads the two as weight and bias.
bool ProgramRestorer::isBiasOf(const std::string &bias,
                               const std::string &weight) const {
  return llvm::any_of(calls, [&](const ExportedCall &call) {
    const std::vector<std::string> read = program.parametersOf(call);
    return call.name == "linear" && read.size() == 2 && read[0] == weight &&
           read[1] == bias;
  });
}

// What a product with zeros adds no gradient to is a constant. Others that were
// merged with it may have been parameters of value 0.
bool ProgramRestorer::isConstantZero(const std::string &name) {
  if (!allZero(floatsIn(name)))
    return false;
  if (isNamedByReaders(name))
    return true;
  for (const auto &[other, from] : sources)
    if (other != name && !from.empty() && names.contains(other) &&
        allZero(floatsIn(other)))
      return false;
  return llvm::all_of(program.parameters(), [&](const std::string &parameter) {
    return isHeld(parameter);
  });
}

// linear(0, w, b) of the first step of a recurrent layer is b, for each sample.
bool ProgramRestorer::isOfZeroState(const std::string &name) {
  const Sources from = sources[name];
  const std::vector<float> values = floatsIn(name);
  if (copyOf.count(name) || isInternal(name) || !program.foldedFrom(name) ||
      from.size() > 2 || values.empty() || isOfBuffers(name) ||
      !multipliesZeros(name))
    return false;
  std::string bias, weight;
  for (const std::string &source : from)
    (names.contains(source) && tensorOf(source).dims.size() == 1 ? bias
                                                                 : weight) =
        source;
  if (weight.empty() || !isTrainedElsewhere(weight, name))
    return false;
  if (from.size() == 1) {
    if (!isConstantZero(name))
      return false;
    sources.erase(name);
    return true;
  }
  return !bias.empty() && isNamedByReaders(name) &&
         expandBias(name, bias, weight, values);
}

bool ProgramRestorer::expandBias(const std::string &name,
                                 const std::string &bias,
                                 const std::string &weight,
                                 const std::vector<float> &values) {
  const std::vector<float> row = floatsIn(bias);
  const OnnxTensor tensor = tensorOf(name);
  if (row.empty() || tensor.dims.empty() ||
      tensor.dims.back() != static_cast<int64_t>(row.size()) ||
      uses[bias].empty() || !reached.contains(bias) || !isBiasOf(bias, weight))
    return false;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != row[i % row.size()])
      return false;
  file.removeInitializer(name);
  uses[name].clear();
  std::vector<int64_t> shape(tensor.dims.begin(), tensor.dims.end());
  addNode("Expand", {bias, addShape(shape, name + ".shape")}, name);
  report.foldedUses.push_back({bias, name});
  report.restored.push_back("'" + name + "', which is '" + bias +
                            "': the rest of it was a product with zeros");
  return true;
}

//===----------------------------------------------------------------------===//
// A parameter plus a number
//===----------------------------------------------------------------------===//

// Whether `name` is w + c, w - c or c - w, c a number that the file has not.
bool ProgramRestorer::addsNumber(const std::string &name,
                                 const Sources &from) const {
  const std::string &origin = originOf(name);
  const std::vector<std::string> *values = program.foldedFrom(origin);
  const StringRef last = functionOf(origin);
  if (!values || from.size() != 1 || isOfBuffers(name) ||
      (last != "add" && last != "sub" && last != "rsub"))
    return false;
  int numbers = 0, parameters = 0;
  for (const std::string &value : *values) {
    if (program.isParameter(value))
      ++parameters;
    else if (isInternal(value))
      ++numbers;
    else if (!functionOf(value).starts_with("scalar_tensor"))
      return false;
  }
  return parameters == 1 && numbers == 1;
}

// As long as parameters do not decay, and every optimizer treats each element
// by itself, w + c moves as w does, and c - w the other way, as it should.
bool ProgramRestorer::shift(const std::string &name, const Sources &from) {
  if (!addsNumber(name, from) ||
      (!copyOf.count(name) && !isNamedByReaders(name)))
    return false;
  for (const auto &[other, theirs] : sources)
    if (other != name && theirs.count(*from.begin()) && names.contains(other))
      return false;
  const std::string what = "'" + *from.begin() + "' plus a number as '" + name +
                           "', as the exporter wrote it";
  if (options.decays)
    fail(name,
         "expected parameter '" + *from.begin() +
             "' of the exported program, found " + what +
             ": weight decay would pull it elsewhere",
         std::string(kRemedy) + ", or --optimizer with weight_decay=0");
  noteVanishing(name);
  trainedNames.insert(name);
  report.moved.push_back(what);
  report.warnings.push_back("trained is " + what +
                            ": the same but for weight decay, of which there "
                            "must be none (optimize=False allows it)");
  return true;
}

//===----------------------------------------------------------------------===//
// Sources that only lent their shape
//===----------------------------------------------------------------------===//

// Parameters in the list of weights of torch's recurrent operators, which is
// the last list among their arguments.
std::set<std::string>
ProgramRestorer::recurrentWeights(const ExportedCall &call) const {
  ExportedCall weights;
  for (const std::string &argument : call.arguments)
    if (StringRef(argument).starts_with("["))
      weights.operands = valuesIn(argument);
  const std::vector<std::string> names = program.parametersOf(weights);
  return {names.begin(), names.end()};
}

// A recurrent operator's weights are not computed from its first states, nor
// these from them: of each other they have shapes.
void ProgramRestorer::separateStates() {
  for (auto &[name, from] : sources) {
    if (!isInternal(name) || from.size() < 2 || uses[name].size() != 1)
      continue;
    const Use &use = uses[name][0];
    if (!isRecurrent(graph.node(use.node)))
      continue;
    const std::set<std::string> weights = recurrentWeights(calls[use.node]);
    const bool isWeight = use.slot >= 1 && use.slot <= 3;
    Sources kept;
    for (const std::string &source : from)
      if (weights.count(source) == isWeight)
        kept.insert(source);
    if (weights.empty() || kept.empty())
      continue;
    if (isWeight && kept != from)
      besideStates.insert(name); // what was repeated is the state
    from = kept;
  }
}
