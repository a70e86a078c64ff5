#include "runtime/plan/Dependences.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>

using namespace merak::planpb;

namespace merak {
namespace {

// An output that is made from the input `only` alone, or from all but `except`.
struct Rule {
  std::string_view op;
  int output, only, except;
};

constexpr int kNone = -1;
constexpr Rule kRules[] = {
    {"layer_norm", 1, 0, kNone},            // mean ← x
    {"layer_norm", 2, 0, kNone},            // rstd ← x
    {"rms_norm", 1, 0, kNone},              // rstd ← x
    {"layer_norm_param_grad", 1, 0, kNone}, // dbias ← dy
    {"softmax_cross_entropy", 1, 0, kNone}, // lse ← logits
    {"attention", 1, kNone, 2},             // lse ← q, k, mask
};

// "sum" of an einsum: the input whose sums are the second output; kNone: none.
int summedInput(const Instruction &instruction) {
  auto sum = instruction.attrs().find("sum");
  if (instruction.op() != "einsum" || sum == instruction.attrs().end())
    return kNone;
  return sum->second == "0" ? 0 : sum->second == "1" ? 1 : kNone;
}

constexpr std::string_view kPrefix = "independent.";

// Numbers with commas between them; false if it is something else.
bool parseList(std::string_view text, std::vector<int> &list) {
  list.clear();
  for (const char *at = text.data(), *end = at + text.size(); at < end; ++at) {
    auto [next, error] = std::from_chars(at, end, list.emplace_back());
    if (error != std::errc() || (next < end && *next != ','))
      return false;
    at = next;
  }
  return !list.empty() && text.back() != ',';
}

} // namespace

std::string independenceAttr(int output) {
  return fmt::format("{}{}", kPrefix, output);
}

std::string independenceText(const std::vector<int> &inputs) {
  return fmt::format("{}", fmt::join(inputs, ","));
}

Status checkIndependence(const Instruction &instruction) {
  Status status;
  for (const auto &[key, text] : instruction.attrs()) {
    if (!key.starts_with(kPrefix))
      continue;
    std::vector<int> outputs, inputs;
    if (instruction.kind() != Instruction::KERNEL)
      status.merge(Status::error(fmt::format(
          "has the attribute \"{}\", but is no generated kernel", key)));
    else if (!parseList(key.substr(kPrefix.size()), outputs) ||
             outputs.size() != 1 || outputs[0] < 0 ||
             outputs[0] >= instruction.outputs_size())
      status.merge(Status::error(fmt::format("has no output of \"{}\"", key)));
    else if (!parseList(text, inputs))
      status.merge(Status::error(
          fmt::format("\"{}\" is \"{}\", which lists no inputs", key, text)));
    for (int input : inputs)
      if (input < 0 || input >= instruction.inputs_size())
        status.merge(
            Status::error(fmt::format("\"{}\" names input {} of {}", key, input,
                                      instruction.inputs_size())));
  }
  return status;
}

bool dependsOn(const Instruction &instruction, int output, int input) {
  if (instruction.kind() == Instruction::KERNEL) {
    if (instruction.attrs().empty())
      return true;
    auto text = instruction.attrs().find(independenceAttr(output));
    std::vector<int> list;
    return text == instruction.attrs().end() ||
           !parseList(text->second, list) ||
           std::find(list.begin(), list.end(), input) == list.end();
  }
  if (instruction.kind() != Instruction::LIBRARY)
    return true;
  if (int summed = summedInput(instruction); output == 1 && summed != kNone)
    return input == summed;
  for (const Rule &rule : kRules)
    if (rule.op == instruction.op() && rule.output == output)
      return rule.only == kNone ? input != rule.except : input == rule.only;
  return true;
}

} // namespace merak
