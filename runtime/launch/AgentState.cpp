#include "runtime/launch/AgentState.h"

#include "runtime/plan/Checksum.h"

#include <nlohmann/json.hpp>

namespace merak::runtime {
namespace {

using Json = nlohmann::json;

// Goes up when a member comes, goes or means something else.
constexpr int kVersion = 2;

// Each member once, for both directions: `each(name, member)`.
template <typename Task, typename Each>
void membersOfTask(Task &task, const Each &each) {
  each("arguments", task.run.arguments);
  each("plan", task.run.plan);
  each("save", task.run.save);
  each("load", task.run.load);
  each("log", task.run.log);
  each("plans", task.run.source.folder);
  each("made", task.run.source.made);
  each("compiler", task.run.source.compiler);
  each("cluster", task.run.source.cluster);
  each("steps", task.run.steps);
  each("replans", task.run.replans);
  each("copies", task.run.copies);
  each("copies_every", task.run.copiesEvery);
  each("trust_plan", task.run.trustPlan);
  each("restarts", task.options.restarts);
  each("launcher", task.options.launcher);
  each("hosts", task.options.hosts);
  each("silence_seconds", task.options.silenceSeconds);
  each("look_seconds", task.options.lookSeconds);
  each("agent_seconds", task.options.agentSeconds);
  each("folder", task.folder);
  each("environment", task.environment);
  each("digest", task.digest);
}

template <typename Situation, typename Each>
void membersOfSituation(Situation &situation, const Each &each) {
  each("leader", situation.leader);
  each("id", situation.id);
  each("next", situation.next);
  each("first", situation.first);
  each("before", situation.before);
  each("last", situation.last);
  each("lost", situation.lost);
  each("plan", situation.plan);
  each("restarts", situation.restarts);
  each("take_overs", situation.takeOvers);
  each("furthest", situation.furthest);
  each("in_vain", situation.inVain);
  each("rates", situation.rates);
  each("left_out", situation.leftOut);
  each("restart", situation.restart);
  each("saver", situation.saver);
}

Json toJson(const AgentPosition &position) {
  return {position.load, position.run, position.step};
}
Json toJson(const std::optional<AgentPosition> &position) {
  return position ? toJson(*position) : Json();
}
Json toJson(const std::vector<LeftOutDevice> &devices) {
  Json json = Json::array();
  for (const LeftOutDevice &device : devices)
    json.push_back({device.number, device.local, device.host, device.rate,
                    device.seconds});
  return json;
}
template <typename T> Json toJson(const T &value) { return value; }

void read(const Json &json, AgentPosition &position) {
  position = {json.at(0).get<std::string>(), json.at(1).get<std::string>(),
              json.at(2).get<int64_t>()};
}
void read(const Json &json, std::optional<AgentPosition> &position) {
  position.reset();
  if (!json.is_null())
    read(json, position.emplace());
}
void read(const Json &json, std::vector<LeftOutDevice> &devices) {
  devices.clear();
  for (const Json &each : json)
    devices.push_back({each.at(0).get<int>(), each.at(1).get<int>(),
                       each.at(2).get<std::string>(), each.at(3).get<double>(),
                       each.at(4).get<double>(), 0});
}
template <typename T> void read(const Json &json, T &value) {
  json.get_to(value);
}

} // namespace

std::string digestOf(const LoadedPlan &plan) {
  return checksumText(plan.file.checksum()); // of its other files, too
}

std::string encodeState(const AgentState &state) {
  Json task, situation;
  membersOfTask(state.task, [&](const char *name, const auto &member) {
    task[name] = toJson(member);
  });
  membersOfSituation(state.situation,
                     [&](const char *name, const auto &member) {
                       situation[name] = toJson(member);
                     });
  return Json{{"version", kVersion}, {"task", task}, {"situation", situation}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<AgentState> decodeState(const std::string &text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("version", 0) != kVersion)
    return Status::error("the agent that leads is of another version of "
                         "merak-run");
  AgentState state;
  // The library throws for what is missing or of another type.
  try {
    membersOfTask(state.task, [&](const char *name, auto &member) {
      read(json.at("task").at(name), member);
    });
    membersOfSituation(state.situation, [&](const char *name, auto &member) {
      read(json.at("situation").at(name), member);
    });
  } catch (const Json::exception &error) {
    return Status::error(std::string("the agent that leads sent what is no "
                                     "state of a run: ") +
                         error.what());
  }
  return state;
}

} // namespace merak::runtime
