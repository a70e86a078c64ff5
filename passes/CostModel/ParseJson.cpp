#include "passes/CostModel/ParseJson.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace merak::costmodel {

using Json = nlohmann::ordered_json;

Result<Json> parseJson(const std::string &text, const std::string &file) {
  std::vector<std::set<std::string>> open;
  std::set<std::string> twice;
  const auto watch = [&](int, Json::parse_event_t event, Json &value) {
    if (event == Json::parse_event_t::object_start)
      open.emplace_back();
    else if (event == Json::parse_event_t::object_end)
      open.pop_back();
    else if (event == Json::parse_event_t::key)
      if (!open.back().insert(value.get<std::string>()).second)
        twice.insert(value.get<std::string>());
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::parse_error &error) {
    const size_t at =
        std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0);
    const std::string before = text.substr(0, at);
    const size_t line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t column = at - (before.rfind('\n') + 1) + 1;
    return Status::error(
        fmt::format("{}:{}:{}: expected a JSON object, found a syntax error",
                    file, line, column));
  } catch (const Json::exception &) {
    return Status::error(file + ": holds a number that is too large");
  }
  Status status;
  for (const std::string &key : twice)
    status.merge(Status::error(
        fmt::format("{}: {}: appears twice in one object", file, key)));
  if (!status.ok())
    return status;
  return json;
}

void JsonProblems::problem(const std::string &path, const std::string &text) {
  status.merge(
      Status::error(file + ": " + path + (path.empty() ? "" : ": ") + text));
}

void JsonProblems::problems(const std::string &path, const Status &found) {
  for (const std::string &message : found.messages())
    problem(path, message);
}

void JsonProblems::known(const nlohmann::ordered_json &object,
                         const std::string &path,
                         const std::vector<std::string> &fields) {
  for (const auto &[key, value] : object.items())
    if (std::find(fields.begin(), fields.end(), key) == fields.end())
      problem(path, fmt::format("there is no field '{}'; known are {}", key,
                                fmt::join(fields, ", ")));
}

} // namespace merak::costmodel
