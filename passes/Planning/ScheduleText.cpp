// Schedules as text: cells, tables, and the file a user hands in.
#include "passes/Planning/Schedule.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace merak::planning {

std::string stageStr(const Schedule &schedule, int stage) {
  return str(schedule.order[stage]);
}

std::string tableStr(const Schedule &schedule) {
  std::string text;
  for (int stage = 0; stage < schedule.stages; ++stage)
    text += fmt::format("S{}: {}\n", stage, stageStr(schedule, stage));
  return text;
}

std::string toJson(const Schedule &schedule) {
  nlohmann::ordered_json json;
  json["name"] = schedule.name;
  json["microbatches"] = schedule.microbatches;
  json["chunks"] = schedule.chunks;
  json["stages"] = nlohmann::ordered_json::array();
  for (int stage = 0; stage < schedule.stages; ++stage)
    json["stages"].push_back(stageStr(schedule, stage));
  return json.dump(1) + "\n";
}

namespace {

class ScheduleReader {
public:
  explicit ScheduleReader(const std::string &file) : file(file) {}

  Result<Schedule> read(const std::string &text) {
    nlohmann::json json =
        nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object())
      return Status::error(file + ": expected a JSON object");
    for (const auto &[key, value] : json.items())
      if (key != "name" && key != "microbatches" && key != "chunks" &&
          key != "stages")
        problem(fmt::format("unknown field '{}'", key));
    Schedule schedule;
    schedule.name = file;
    if (json.contains("name")) {
      if (json["name"].is_string())
        schedule.name = json["name"];
      else
        problem("'name' is not a string");
    }
    schedule.microbatches = count(json, "microbatches", true);
    schedule.chunks = count(json, "chunks", false);
    if (!json.contains("stages") || !json["stages"].is_array() ||
        json["stages"].empty())
      problem("'stages' is not a list of one string per stage");
    else
      for (const auto &line : json["stages"])
        readStage(line, schedule);
    schedule.stages = int(schedule.order.size());
    if (!status.ok())
      return status;
    return schedule;
  }

private:
  void problem(const std::string &text) {
    status.merge(Status::error(file + ": " + text));
  }

  int count(const nlohmann::json &json, const char *key, bool required) {
    if (!json.contains(key)) {
      if (required)
        problem(fmt::format("'{}' is missing", key));
      return 1;
    }
    const nlohmann::json &value = json[key];
    if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
        value.get<int64_t>() > 1'000'000) {
      problem(fmt::format("'{}' is {}, expected a whole number of at least 1",
                          key, value.dump()));
      return 1;
    }
    return int(value.get<int64_t>());
  }

  void readStage(const nlohmann::json &line, Schedule &schedule) {
    int stage = int(schedule.order.size());
    schedule.order.emplace_back();
    if (!line.is_string())
      return problem(fmt::format("stage {} is not a string", stage));
    std::vector<std::string> cells = splitCells(line.get<std::string>());
    std::vector<CellProblem> problems;
    std::vector<Step> &steps = schedule.order.back();
    steps = parseCells(cells, problems);
    // When shared gradients are exchanged is not the user's choice.
    for (int i = 0; i < int(steps.size()); ++i)
      if (steps[i].action == Action::S)
        problems.push_back({i, noActionText(cells[i])});
    for (const CellProblem &found : problems)
      problem(fmt::format("stage {}, position {}: {}", stage, found.position,
                          found.text));
  }

  std::string file;
  Status status;
};

} // namespace

Result<Schedule> parseSchedule(const std::string &json,
                               const std::string &fileName) {
  return ScheduleReader(fileName).read(json);
}

} // namespace merak::planning
