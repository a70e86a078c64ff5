// Schedules as text: cells, tables, and the file a user hands in.
#include "passes/Planning/Schedule.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace merak::planning {

char letter(Action action) { return "PFRBWU"[int(action)]; }

std::string str(const Step &step) {
  if (step.action == Action::U)
    return "U";
  char c = letter(step.action);
  if (step.action == Action::R && !step.early)
    c = 'r';
  std::string text = fmt::format("{}{}", c, step.microbatch);
  if (step.chunk)
    text += fmt::format(".{}", step.chunk);
  return text;
}

std::string stageStr(const Schedule &schedule, int stage) {
  std::set<std::pair<int, int>> early;
  for (const Step &step : schedule.order[stage])
    if (step.action == Action::R && step.early)
      early.insert({step.microbatch, step.chunk});
  std::string text;
  for (const Step &step : schedule.order[stage]) {
    std::string cell = str(step);
    if (step.action == Action::F && early.count({step.microbatch, step.chunk}))
      cell[0] = 'f';
    text += (text.empty() ? "" : " ") + cell;
  }
  return text;
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

// Reads one cell: a letter, a microbatch, perhaps ".chunk". False if malformed.
bool parseCell(const std::string &cell, Step &step) {
  static const std::string letters = "PFRBWUfr";
  size_t kind = letters.find(cell.empty() ? '?' : cell[0]);
  if (kind == std::string::npos)
    return false;
  static const Action actions[] = {Action::P, Action::F, Action::R, Action::B,
                                   Action::W, Action::U, Action::F, Action::R};
  step = Step();
  step.action = actions[kind];
  step.early = cell[0] == 'R';
  size_t at = 1;
  auto number = [&](int &value) {
    size_t begin = at;
    value = 0;
    while (at < cell.size() && at - begin < 6 &&
           std::isdigit(static_cast<unsigned char>(cell[at])))
      value = value * 10 + (cell[at++] - '0');
    return at > begin;
  };
  if (step.action == Action::U)
    return cell.size() == 1;
  if (!number(step.microbatch))
    return false;
  if (at < cell.size() && (cell[at++] != '.' || !number(step.chunk)))
    return false;
  return at == cell.size();
}

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
    std::istringstream cells(line.get<std::string>());
    std::string cell;
    std::set<std::pair<int, int>> marked; // written "f"
    for (int position = 0; cells >> cell; ++position) {
      Step step;
      if (!parseCell(cell, step)) {
        problem(
            fmt::format("stage {}, position {}: '{}' is no action; expected "
                        "one like F0, r1, B2.1 or U",
                        stage, position, cell));
        continue;
      }
      if (cell[0] == 'f')
        marked.insert({step.microbatch, step.chunk});
      schedule.order.back().push_back(step);
    }
    for (auto [microbatch, chunk] : marked) {
      bool early = false;
      for (const Step &step : schedule.order.back())
        early |= step.action == Action::R && step.early &&
                 step.microbatch == microbatch && step.chunk == chunk;
      if (!early)
        problem(
            fmt::format("stage {}: f{} announces an early recomputation R{} "
                        "that is not there",
                        stage, microbatch, microbatch));
    }
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
