#include "passes/Stragglers/Description.h"

#include "passes/CostModel/ParseJson.h"
#include "passes/Resharding/Description.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace merak::stragglers {

using Json = nlohmann::ordered_json;

namespace {

constexpr double kMostWhole = 1e15; // exact in a double
// Of a cluster that is described by its size.
constexpr int64_t kMostDevices = 1 << 16;

// Fields of a JSON text; remembers all that is wrong with them.
class Fields : public costmodel::JsonProblems {
public:
  using JsonProblems::JsonProblems;

  // Whether it is an object; what it has besides the known fields is wrong.
  bool object(const Json &json, const std::string &path,
              const std::vector<std::string> &fields) {
    if (!json.is_object()) {
      problem(path, fmt::format("expected an object with {}",
                                fmt::join(fields, ", ")));
      return false;
    }
    known(json, path, fields);
    return true;
  }

  // A number of the field times `unit`, rounded; where it may be absent, that.
  int64_t number(const Json &json, const std::string &path,
                 const std::string &field, double unit,
                 std::optional<int64_t> absent = std::nullopt) {
    const auto at = json.find(field);
    if (at == json.end() && absent)
      return *absent;
    return numberOf(at == json.end() ? Json() : *at, join(path, field), unit);
  }
  int64_t numberOf(const Json &value, const std::string &path, double unit) {
    const double scaled = value.is_number() ? value.get<double>() * unit : -1;
    if (value.is_number() && scaled >= 0 && scaled <= kMostWhole &&
        (unit != 1 || scaled == std::floor(scaled)))
      return std::llround(scaled);
    problem(path, fmt::format("expected a {}number, found {}",
                              unit == 1 ? "whole " : "",
                              value.is_null() ? "nothing" : value.dump()));
    return 0;
  }

  std::vector<int64_t> numbers(const Json &json, const std::string &path,
                               const std::string &field, double unit) {
    std::vector<int64_t> result;
    const auto at = json.find(field);
    if (at == json.end() || !at->is_array() || at->empty()) {
      problem(join(path, field), "expected a list of numbers");
      return result;
    }
    for (size_t i = 0; i < at->size(); ++i)
      result.push_back(numberOf(
          (*at)[i], fmt::format("{}[{}]", join(path, field), i), unit));
    return result;
  }

  std::string text(const Json &json, const std::string &path,
                   const std::string &field) {
    const auto at = json.find(field);
    if (at != json.end() && at->is_string())
      return at->get<std::string>();
    problem(join(path, field),
            fmt::format("expected a string, found {}",
                        at == json.end() ? "nothing" : at->dump()));
    return "";
  }
};

// A number of times longer than normal, or "gone".
std::optional<int64_t> rateOf(const Json &json) {
  if (json == "gone")
    return kFailed;
  const double rate = json.is_number() ? json.get<double>() : 0;
  if (!(rate > 0 && rate <= 10000))
    return std::nullopt;
  return std::max<int64_t>(1, std::llround(rate * kOne));
}

Status setRate(Problem &problem, const std::string &devices, int64_t rate) {
  const Result<std::vector<int64_t>> numbers =
      resharding::parseDevices(devices);
  if (!numbers)
    return numbers.status();
  for (int64_t device : *numbers) {
    if (device >= int64_t(problem.devices.size()))
      return Status::error(
          fmt::format("expected devices between 0 and {}, found {}",
                      int64_t(problem.devices.size()) - 1, device));
    problem.devices[size_t(device)].rate = rate;
  }
  return {};
}

class PlanReader {
public:
  explicit PlanReader(Fields &fields) : fields(fields) {}

  Plan read(const Json &json, const std::string &path) {
    Plan plan;
    if (!fields.object(json, path, {"pipelines"}))
      return plan;
    const auto at = json.find("pipelines");
    const std::string inside = Fields::join(path, "pipelines");
    if (at == json.end() || !at->is_array() || at->empty()) {
      fields.problem(inside, "expected a list of at least one");
      return plan;
    }
    for (size_t i = 0; i < at->size(); ++i)
      plan.pipelines.push_back(
          readPipeline((*at)[i], fmt::format("{}[{}]", inside, i)));
    return plan;
  }

private:
  Pipeline readPipeline(const Json &json, const std::string &path) {
    Pipeline pipeline;
    if (!fields.object(json, path, {"microbatches", "stages"}))
      return pipeline;
    pipeline.microbatches = fields.number(json, path, "microbatches", 1);
    const auto at = json.find("stages");
    if (at == json.end() || !at->is_array() || at->empty()) {
      fields.problem(Fields::join(path, "stages"),
                     "expected a list of at least one");
      return pipeline;
    }
    for (size_t j = 0; j < at->size(); ++j)
      pipeline.stages.push_back(
          readStage((*at)[j], fmt::format("{}.stages[{}]", path, j)));
    return pipeline;
  }

  Stage readStage(const Json &json, const std::string &path) {
    Stage stage;
    if (!fields.object(json, path, {"devices", "layers"}))
      return stage;
    stage.layers = fields.number(json, path, "layers", 1);
    const std::string text = fields.text(json, path, "devices");
    if (text.empty())
      return stage;
    const auto devices = resharding::parseDevices(text);
    fields.problems(Fields::join(path, "devices"), devices.status());
    if (devices)
      stage.devices.assign(devices->begin(), devices->end());
    return stage;
  }

  Fields &fields;
};

class Reader {
public:
  Reader(const std::string &file, const std::string &folder)
      : fields(file), folder(folder) {}

  Result<Description> read(const std::string &text) {
    const Result<Json> parsed = costmodel::parseJson(text, fields.file);
    if (!parsed)
      return parsed.status();
    const Json &json = *parsed;
    if (!json.is_object())
      return Status::error(fields.file + ": expected a JSON object");
    fields.object(json, "",
                  {"notes", "cluster", "devices", "devices_per_node", "mesh",
                   "layers", "microbatches", "rho", "threshold", "memory",
                   "seconds", "stragglers", "situations", "plan"});
    const Problem normal = readProblem(json);
    readSituations(json, normal);
    if (const auto at = json.find("seconds"); at != json.end()) {
      out.seconds = at->is_number() ? at->get<double>() : 0;
      if (!(out.seconds > 0 && out.seconds < 1e9))
        fields.problem("seconds",
                       "expected a positive number, found " + at->dump());
    }
    if (const auto at = json.find("plan"); at != json.end())
      out.plan = PlanReader(fields).read(*at, "plan");
    if (fields.status.ok())
      fields.problems("", check(normal));
    if (!fields.status.ok())
      return fields.status;
    return std::move(out);
  }

private:
  Problem readProblem(const Json &json) {
    Problem problem;
    problem.layers = fields.number(json, "", "layers", 1);
    problem.microbatches = fields.number(json, "", "microbatches", 1);
    problem.shrink = fields.numbers(json, "", "rho", double(kOne));
    problem.threshold =
        fields.number(json, "", "threshold", double(kOne), problem.threshold);
    const Json mesh = json.value("mesh", Json());
    if (fields.object(mesh, "mesh", {"pp", "dp", "tp"})) {
      problem.pp = fields.number(mesh, "mesh", "pp", 1);
      problem.dp = fields.number(mesh, "mesh", "dp", 1);
      problem.tp = fields.number(mesh, "mesh", "tp", 1);
    }
    if (json.contains("memory"))
      readMemory(json["memory"], problem.memory);
    readDevices(json, problem);
    return problem;
  }

  void readMemory(const Json &json, StageMemory &memory) {
    if (!fields.object(json, "memory", {"limit", "fixed", "edge", "layer"}))
      return;
    // Fractions of a byte come from fits.
    constexpr double kBytes = 1.0000000000000002;
    memory.limit = fields.number(json, "memory", "limit", kBytes);
    memory.fixed = fields.number(json, "memory", "fixed", kBytes, 0);
    memory.edge = fields.number(json, "memory", "edge", kBytes, 0);
    memory.layer = fields.numbers(json, "memory", "layer", kBytes);
  }

  void readDevices(const Json &json, Problem &problem) {
    if (json.contains("cluster"))
      return readCluster(json, problem);
    const int64_t count = fields.number(json, "", "devices", 1);
    const int64_t perNode =
        fields.number(json, "", "devices_per_node", 1, count);
    if (count > kMostDevices)
      return fields.problem(
          "devices", fmt::format("at most {}, found {}", kMostDevices, count));
    for (int64_t i = 0; i < count; ++i)
      problem.devices.push_back({i / std::max<int64_t>(1, perNode), kOne});
  }

  void readCluster(const Json &json, Problem &problem) {
    if (json.contains("devices") || json.contains("devices_per_node"))
      fields.problem("cluster", "says how many devices there are: devices and "
                                "devices_per_node contradict it");
    const std::string name = fields.text(json, "", "cluster");
    if (name.empty())
      return;
    const Result<costmodel::Cluster> cluster = costmodel::readCluster(
        name.front() == '/' || folder.empty() ? name : folder + "/" + name);
    fields.status.merge(cluster.status());
    if (cluster)
      problem.devices = devicesOf(*cluster);
  }

  void readSituations(const Json &json, const Problem &normal) {
    if (!json.contains("situations"))
      return readSituation(json, "", "stragglers", normal);
    if (json.contains("stragglers"))
      fields.problem("stragglers", "stand in each of the situations");
    const Json &all = json["situations"];
    if (!all.is_object() || all.empty())
      return fields.problem("situations", "expected an object of at least one");
    for (const auto &[name, rates] : all.items())
      readSituation(all, "situations", name, normal);
  }

  void readSituation(const Json &json, const std::string &path,
                     const std::string &name, const Problem &normal) {
    Situation situation{name, normal};
    const Json rates = json.value(name, Json::object());
    const std::string inside = Fields::join(path, name);
    if (!rates.is_object())
      return fields.problem(inside, "expected rates by device");
    for (const auto &[devices, rate] : rates.items()) {
      const std::string where = Fields::join(inside, devices);
      fields.problems(
          where, setRate(situation.problem, devices, readRate(rate, where)));
    }
    out.situations.push_back(std::move(situation));
  }

  int64_t readRate(const Json &rate, const std::string &where) {
    if (const auto known = rateOf(rate))
      return *known;
    fields.problem(where,
                   "expected how many times longer than a normal device it "
                   "takes, up to 10000, or \"gone\", found " +
                       rate.dump());
    return kOne;
  }

  Fields fields;
  const std::string &folder;
  Description out;
};

} // namespace

Result<Description> parseDescription(const std::string &json,
                                     const std::string &fileName,
                                     const std::string &folder) {
  return Reader(fileName, folder).read(json);
}

Result<Plan> parsePlan(const std::string &json, const std::string &fileName) {
  const Result<Json> whole = costmodel::parseJson(json, fileName);
  if (!whole)
    return whole.status();
  const bool isReport = whole->is_object() && whole->contains("plan");
  Fields fields(fileName);
  Plan plan = PlanReader(fields).read(isReport ? whole->at("plan") : *whole,
                                      isReport ? "plan" : "");
  if (!fields.status.ok())
    return fields.status;
  return plan;
}

Status setRates(Problem &problem, const std::string &text) {
  Status status;
  for (size_t begin = 0; begin < text.size();) {
    // Devices are separated by commas too: "0,3=2.5,8=gone".
    const size_t equals = text.find('=', begin);
    const size_t end = std::min(text.find(',', equals), text.size());
    const std::string rate = equals == std::string::npos
                                 ? ""
                                 : text.substr(equals + 1, end - equals - 1);
    const auto known =
        rateOf(rate == "gone" ? Json(rate) : Json::parse(rate, nullptr, false));
    if (!known) {
      status.merge(Status::error(fmt::format(
          "expected rates of devices as in '0=2.57,8-15=6.87,20=gone', found "
          "'{}'",
          text.substr(begin))));
      return status;
    }
    status.merge(setRate(problem, text.substr(begin, equals - begin), *known));
    begin = end + 1;
  }
  return status;
}

} // namespace merak::stragglers
