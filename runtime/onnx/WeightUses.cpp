#include "runtime/onnx/WeightUses.h"

#include "support/ReadFile.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace merak::runtime {
namespace {

bool readName(const nlohmann::json &entry, const char *key, std::string &out) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_string())
    return false;
  out = *found;
  return true;
}

bool readFunctions(const nlohmann::json &entry, std::vector<std::string> &out) {
  for (const auto &type : entry.value("functions", nlohmann::json::array())) {
    if (!type.is_string() || !isFoldedFunction(type))
      return false;
    out.push_back(type);
  }
  return true;
}

bool readAxes(const nlohmann::json &entry, std::vector<int64_t> &out) {
  for (const auto &axis : entry.value("permutation", nlohmann::json::array())) {
    if (!axis.is_number_unsigned())
      return false;
    out.push_back(axis);
  }
  return true;
}

} // namespace

Result<WeightUses> readWeightUses(const std::string &dir) {
  WeightUses uses;
  std::string text;
  if (!readFile(dir + "/weights.json", text).empty())
    return uses;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  auto bad = [&] {
    return Status::error(fmt::format(
        "\"{}/weights.json\": expected the uses of parameters", dir));
  };
  if (!json.is_object() || !json.contains("split_uses") ||
      !json["split_uses"].is_array())
    return bad();
  for (const auto &entry : json["split_uses"]) {
    SplitUse use;
    if (!entry.is_object() || !readName(entry, "parameter", use.parameter) ||
        !readName(entry, "initializer", use.initializer) ||
        !readName(entry, "output", use.output) ||
        !entry.value("input", nlohmann::json()).is_number_unsigned() ||
        !readFunctions(entry, use.functions))
      return bad();
    use.input = entry["input"];
    readName(entry, "copy", use.copy);
    uses.splits.push_back(use);
  }
  for (const auto &entry : json.value("folded_uses", nlohmann::json::array())) {
    FoldedUse use;
    if (!entry.is_object() || !readName(entry, "parameter", use.parameter) ||
        !readName(entry, "initializer", use.initializer) ||
        !readFunctions(entry, use.functions) ||
        !readAxes(entry, use.permutation))
      return bad();
    if (entry.value("transposed", nlohmann::json()) == true) // of older plans
      use.permutation = {1, 0};
    uses.folds.push_back(use);
  }
  return uses;
}

} // namespace merak::runtime
