#include "onnx/Import/TrainingRate.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

#include <cstring>
#include <fmt/format.h>

using namespace merak;
using llvm::StringRef;

namespace {

using onnx::TensorProto;

const onnx::AttributeProto *find(const onnx::NodeProto &node, StringRef name) {
  for (const onnx::AttributeProto &attribute : node.attribute())
    if (attribute.name() == name)
      return &attribute;
  return nullptr;
}

std::optional<TrainingGraph::Number> valueOf(StringRef bytes, int dataType) {
  auto as = [&](auto number) -> std::optional<TrainingGraph::Number> {
    if (bytes.size() != sizeof(number))
      return std::nullopt;
    std::memcpy(&number, bytes.data(), sizeof(number));
    return TrainingGraph::Number{static_cast<double>(number), dataType};
  };
  switch (dataType) {
  case TensorProto::FLOAT:
    return as(float());
  case TensorProto::DOUBLE:
    return as(double());
  case TensorProto::INT64:
    return as(int64_t());
  case TensorProto::INT32:
    return as(int32_t());
  case TensorProto::BOOL:
    return as(int8_t());
  default:
    return std::nullopt;
  }
}

// How an operator becomes tokens: "1 0" are its operands in that order, other
// words are tokens. `rounds`: the result is not exact in its type.
struct Form {
  const char *type, *tokens;
  bool rounds = false, isFlag = false;
};
constexpr Form kForms[] = {
    {"Add", "0 1 add", true},
    {"Sub", "0 1 sub", true},
    {"Mul", "0 1 mul", true},
    {"Div", "0 1 div", true},
    {"Pow", "0 1 pow", true},
    {"Mod", "0 1 mod"},
    {"Neg", "0 neg"},
    {"Abs", "0 abs"},
    {"Relu", "0 #0 max"},
    {"Sqrt", "0 sqrt", true},
    {"Exp", "0 exp", true},
    {"Log", "0 log", true},
    {"Sin", "0 sin", true},
    {"Cos", "0 cos", true},
    {"Reciprocal", "#1 0 div", true},
    {"Floor", "0 floor"},
    {"Ceil", "0 ceil"},
    {"Round", "0 round"},
    {"Less", "0 1 lt", false, true},
    {"LessOrEqual", "0 1 le", false, true},
    {"Greater", "1 0 lt", false, true},
    {"GreaterOrEqual", "1 0 le", false, true},
    {"Equal", "0 1 eq", false, true},
    {"And", "0 1 and", false, true},
    {"Or", "0 1 or", false, true},
    {"Not", "0 not", false, true},
    {"Where", "0 1 2 where"},
};

// A single number in another shape.
bool keepsNumber(StringRef type) {
  return type == "Identity" || type == "Squeeze" || type == "Unsqueeze" ||
         type == "Reshape" || type == "Flatten";
}

class Follower {
public:
  explicit Follower(const TrainingGraph &graph) : graph(graph) {}

  TrainingRate run(const std::string &name) {
    std::optional<Value> rate = follow(name, 0);
    if (rate) {
      std::string text = rate->tokens;
      for (auto &[first, next] : carried)
        text += fmt::format(" | {} {}", first, next);
      auto program = RateProgram::parse(text);
      if (!program.ok()) {
        fail(program.status().str());
      } else {
        result.first = program->at(0);
        if (rate->changes)
          result.program = std::move(text);
      }
    }
    return std::move(result);
  }

private:
  struct Value {
    std::string tokens;
    int dataType = 0;
    size_t count = 1; // of tokens
    bool changes = false;
  };
  // A rate is short; a graph from anywhere need not be.
  static constexpr int kMaxDepth = 256;

  std::optional<Value> fail(const std::string &problem) {
    if (result.problem.empty())
      result.problem = problem;
    return std::nullopt;
  }

  std::optional<Value> follow(const std::string &name, int depth) {
    if (auto known = values.find(name); known != values.end())
      return known->second;
    if (depth > kMaxDepth)
      return fail("'" + name + "', more than " + std::to_string(kMaxDepth) +
                  " operators before it");
    std::optional<Value> value = make(name, depth);
    if (value && value->count > kMaxRateTokens)
      return fail("'" + name + "', which takes more than " +
                  std::to_string(kMaxRateTokens) + " operations");
    if (value)
      values.try_emplace(name, *value);
    return value;
  }

  std::optional<Value> make(const std::string &name, int depth) {
    if (graph.initializers.count(name))
      return initializer(name, depth);
    auto made = graph.producers.find(name);
    if (made == graph.producers.end())
      return fail("'" + name + "', which is data");
    if (made->second->op_type() == "Constant") {
      std::optional<TrainingGraph::Number> number = graph.number(name);
      return number ? literal(*number)
                    : fail("'" + name + "', which is no single number");
    }
    return operation(*made->second, name, depth);
  }

  static Value literal(TrainingGraph::Number number) {
    return {fmt::format("{}", number.value), number.dataType};
  }

  std::optional<Value> initializer(const std::string &name, int depth) {
    std::optional<TrainingGraph::Number> number = graph.number(name);
    if (!number)
      return fail("'" + name + "', which is no single number");
    auto update = graph.updates.find(name);
    if (update == graph.updates.end())
      return literal(*number);
    result.states.push_back(name);
    if (number->dataType == TensorProto::INT64 &&
        graph.counted(update->second) == name)
      return Value{fmt::format("t {} add", number->value), number->dataType, 3,
                   true};
    // Known before it is followed: it may be made of itself.
    const size_t index = carried.size();
    carried.emplace_back(number->value, "");
    Value state{"s" + std::to_string(index), number->dataType, 1, true};
    values.try_emplace(name, state);
    std::optional<Value> next = follow(update->second, depth + 1);
    if (!next)
      return std::nullopt;
    if (next->dataType != state.dataType)
      return fail("'" + name + "', whose update is of another type");
    carried[index].second = next->tokens;
    return state;
  }

  // The type's rounding of what was computed in double precision.
  std::optional<Value> rounded(Value value, const std::string &name) {
    if (value.dataType == TensorProto::FLOAT)
      value.tokens += " f32", ++value.count;
    else if (value.dataType == TensorProto::INT64 ||
             value.dataType == TensorProto::INT32)
      value.tokens += " i64", ++value.count;
    else if (value.dataType != TensorProto::DOUBLE)
      return fail("'" + name + "', whose type is not f32, f64 or integer");
    return value;
  }

  std::optional<Value> operation(const onnx::NodeProto &node,
                                 const std::string &name, int depth) {
    const std::string &type = node.op_type();
    auto unknown = [&] { return fail("'" + name + "' of " + describe(node)); };
    const bool isStandard = node.domain().empty() || node.domain() == "ai.onnx";
    if (!isStandard || node.output_size() < 1 || node.output(0) != name ||
        node.input_size() < 1)
      return unknown();
    const int read = keepsNumber(type) ? 1 : node.input_size();
    std::vector<std::optional<Value>> operands;
    for (int i = 0; i < read; ++i) {
      operands.emplace_back();
      if (node.input(i).empty())
        continue;
      // Said of what cannot be computed here, not of what it is made of.
      if (!keepsNumber(type) && !isKnown(type))
        return unknown();
      if (!(operands[i] = follow(node.input(i), depth + 1)))
        return std::nullopt;
    }
    if (!operands[0])
      return unknown();
    if (keepsNumber(type))
      return operands[0];
    if (type == "Cast")
      return cast(node, *operands[0], name);
    if (type == "Clip")
      return clip(node, operands);
    if (type == "Sum" || type == "Mean" || type == "Min" || type == "Max")
      return several(type, operands, name);
    const Form *form =
        llvm::find_if(kForms, [&](const Form &f) { return type == f.type; });
    const onnx::AttributeProto *fmod = find(node, "fmod");
    if (form == std::end(kForms) || (fmod && fmod->i()))
      return unknown();
    return apply(*form, operands, node, name);
  }

  static bool isKnown(StringRef type) {
    return type == "Cast" || type == "Clip" || type == "Sum" ||
           type == "Mean" || type == "Min" || type == "Max" ||
           llvm::any_of(kForms, [&](const Form &f) { return type == f.type; });
  }

  static void append(Value &to, const Value &from) {
    to.tokens += (to.tokens.empty() ? "" : " ") + from.tokens;
    to.count += from.count;
    to.changes |= from.changes;
  }
  static void append(Value &to, StringRef token) {
    to.tokens += (to.tokens.empty() ? "" : " ") + token.str();
    ++to.count;
  }

  std::optional<Value> apply(const Form &form,
                             const std::vector<std::optional<Value>> &operands,
                             const onnx::NodeProto &node,
                             const std::string &name) {
    Value made{"", 0, 0};
    llvm::SmallVector<StringRef> words;
    StringRef(form.tokens).split(words, ' ');
    for (StringRef word : words) {
      unsigned operand = 0;
      if (word.getAsInteger(10, operand)) {
        append(made, word.ltrim('#'));
        continue;
      }
      if (operand >= operands.size() || !operands[operand])
        return fail("'" + name + "' of " + describe(node));
      append(made, *operands[operand]);
    }
    const size_t typed = StringRef(form.type) == "Where" ? 1 : 0;
    made.dataType =
        form.isFlag ? int(TensorProto::BOOL) : operands[typed]->dataType;
    if (form.rounds)
      return rounded(made, name);
    return made;
  }

  std::optional<Value> several(StringRef type,
                               std::vector<std::optional<Value>> &operands,
                               const std::string &name) {
    Value made = *operands[0];
    for (size_t i = 1; i < operands.size(); ++i) {
      if (!operands[i])
        return fail("'" + name + "', which lacks an operand");
      append(made, *operands[i]);
      append(made, type == "Min" ? "min" : type == "Max" ? "max" : "add");
    }
    if (type == "Min" || type == "Max")
      return made;
    if (type == "Mean") {
      append(made, std::to_string(operands.size()));
      append(made, "div");
    }
    return rounded(made, name);
  }

  std::optional<Value> clip(const onnx::NodeProto &node,
                            std::vector<std::optional<Value>> &operands) {
    Value made = *operands[0];
    const char *const names[] = {"min", "max"};
    for (size_t i : {0, 1}) {
      if (operands.size() > i + 1 && operands[i + 1])
        append(made, *operands[i + 1]);
      else if (const onnx::AttributeProto *bound = find(node, names[i]))
        append(made, fmt::format("{}", double(bound->f())));
      else
        continue;
      append(made, i == 0 ? "max" : "min");
    }
    return made;
  }

  std::optional<Value> cast(const onnx::NodeProto &node, Value made,
                            const std::string &name) {
    const onnx::AttributeProto *to = find(node, "to");
    made.dataType = to ? static_cast<int>(to->i()) : 0;
    if (made.dataType != TensorProto::BOOL)
      return rounded(made, name);
    append(made, "0");
    append(made, "eq");
    append(made, "not");
    return made;
  }

  const TrainingGraph &graph;
  TrainingRate result;
  llvm::StringMap<Value> values;
  std::vector<std::pair<double, std::string>> carried;
};

} // namespace

std::string merak::describe(const onnx::NodeProto &node) {
  std::string name = node.name();
  if (name.empty() && node.output_size())
    name = node.output(0);
  return node.op_type() + " '" + name + "'";
}

std::string TrainingGraph::behind(std::string name) const {
  for (size_t i = 0; i < producers.size(); ++i) {
    auto it = producers.find(name);
    if (it == producers.end() || it->second->op_type() != "Identity" ||
        it->second->input_size() != 1)
      break;
    name = it->second->input(0);
  }
  return name;
}

std::optional<TrainingGraph::Number>
TrainingGraph::number(const std::string &given) const {
  const std::string name = behind(given);
  if (auto it = initializers.find(name); it != initializers.end()) {
    std::optional<StringRef> bytes = file.bytes(*it->second);
    return bytes ? valueOf(*bytes, it->second->dataType) : std::nullopt;
  }
  auto it = producers.find(name);
  if (it == producers.end() || it->second->op_type() != "Constant")
    return std::nullopt;
  for (const onnx::AttributeProto &attribute : it->second->attribute()) {
    OnnxTensor tensor;
    std::string error;
    if (attribute.name() == "value" && attribute.has_t() &&
        decodeTensor(attribute.t(), tensor, error))
      return valueOf(tensor.owned, tensor.dataType);
    if (attribute.name() == "value_float")
      return Number{attribute.f(), TensorProto::FLOAT};
    if (attribute.name() == "value_int")
      return Number{static_cast<double>(attribute.i()), TensorProto::INT64};
  }
  return std::nullopt;
}

std::string TrainingGraph::counted(const std::string &name) const {
  auto it = producers.find(behind(name));
  if (it == producers.end() || it->second->op_type() != "Add" ||
      it->second->input_size() != 2)
    return "";
  for (int i : {0, 1}) {
    if (!initializers.count(it->second->input(i)) ||
        !updates.count(it->second->input(i)) ||
        updates.count(behind(it->second->input(1 - i))))
      continue;
    std::optional<Number> step = number(it->second->input(1 - i));
    if (step && step->value == 1)
      return it->second->input(i);
  }
  return "";
}

TrainingRate merak::readRate(const TrainingGraph &graph,
                             const std::string &name) {
  return Follower(graph).run(name);
}
