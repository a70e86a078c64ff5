#include "passes/Planning/Strategy.h"

#include "dialects/Support/MeshAxes.h"
#include "passes/Resharding/Description.h"
#include "passes/Resharding/Transfers.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace merak::planning {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// 2: stored parameters, seams, techniques and parts of axes; files without them
// are written as 1. 3: pipelines.
constexpr int64_t kStrategyVersion = 3;

// Words of a stored parameter: what is gathered lives until the end of a step
// or of an action, its gradient is summed once a step or once a microbatch.
constexpr const char *kGatherLives[] = {"step", "use"};
constexpr const char *kGradientSums[] = {"step", "microbatch"};

// true, false or "auto".
static void writeSwitch(OrderedJson &json, const char *key,
                        const std::optional<int64_t> &value) {
  if (value == Strategy::kAuto)
    json[key] = "auto";
  else if (value)
    json[key] = *value == 1;
}

static OrderedJson writePipelines(const std::vector<PipelineStages> &all) {
  OrderedJson list = OrderedJson::array();
  for (const PipelineStages &pipeline : all) {
    OrderedJson one;
    if (pipeline.microbatches)
      one["microbatches"] = *pipeline.microbatches;
    one["stages"] = OrderedJson::array();
    for (const PipelineStages::Stage &stage : pipeline.stages) {
      OrderedJson entry;
      entry["devices"] = resharding::deviceStr(stage.devices);
      entry["mesh"] = degreeText(stage);
      if (stage.begin)
        entry["begin"] = *stage.begin;
      one["stages"].push_back(entry);
    }
    if (!pipeline.spares.empty())
      one["spares"] = resharding::deviceStr(pipeline.spares);
    if (pipeline.chunks)
      one["chunks"] = *pipeline.chunks;
    if (pipeline.partBegins)
      one["stage_begins"] = *pipeline.partBegins;
    if (pipeline.recomputeOps)
      one["recompute_ops"] = *pipeline.recomputeOps;
    list.push_back(one);
  }
  return list;
}

void Strategy::setPipelines(std::vector<PipelineStages> all) {
  pipelines = std::move(all);
  const PipelineStages of = joined(pipelines);
  int64_t dp = 1, tp = 1;
  for (const PipelineStages::Stage &stage : of.stages) {
    dp = std::lcm(dp, stage.dp);
    tp = std::lcm(tp, stage.tp);
  }
  mesh = {{kPipelineAxis, int64_t(of.stages.size())},
          {kDataAxis, dp},
          {kTensorAxis, tp}};
  if (pipelines.size() == 1)
    takeBegins(pipelines.front());
}

void Strategy::takeBegins(const PipelineStages &pipeline) {
  std::vector<std::string> begins;
  for (const PipelineStages::Stage &stage : pipeline.stages)
    if (stage.begin)
      begins.push_back(*stage.begin);
  if (begins.size() + 1 == pipeline.stages.size() && !begins.empty())
    stageBegins = begins;
}

int64_t Strategy::firstMicrobatch(size_t index) const {
  int64_t first = 0;
  for (size_t i = 0; i < index; ++i)
    first += pipelines[i].microbatches.value_or(0);
  return first;
}

Strategy Strategy::ofPipeline(size_t index) const {
  if (pipelines.size() == 1)
    return *this;
  Strategy own = *this;
  const PipelineStages &pipeline = pipelines[index];
  own.mesh[kPipelineAxis] = int64_t(pipeline.stages.size());
  own.pipelines = {pipeline};
  own.stageBegins.reset();
  own.takeBegins(pipeline);
  if (pipeline.partBegins)
    own.stageBegins = pipeline.partBegins;
  if (pipeline.chunks)
    own.chunks = pipeline.chunks;
  own.recomputeOps = pipeline.recomputeOps;
  size_t stage = 0;
  for (size_t i = 0; i < index; ++i)
    stage += pipelines[i].stages.size();
  if (lists)
    own.lists = listsOfPipeline(*lists, int(stage), int(pipeline.stages.size()),
                                int(firstMicrobatch(index)),
                                int(pipeline.microbatches.value_or(1)));
  return own;
}

std::string Strategy::toJson() const {
  OrderedJson json;
  const bool seamed = zero || sequence || context || !stored.empty() ||
                      !seams.empty() || !parts.empty();
  json["version"] = !pipelines.empty() ? 3 : seamed ? 2 : 1;
  if (pipelines.empty())
    json["mesh"] = mesh;
  else
    json["pipelines"] = writePipelines(pipelines);
  if (!parts.empty())
    json["parts"] = parts;
  if (globalBatch)
    json["global_batch"] = *globalBatch;
  if (microbatch && pipelines.empty())
    json["microbatch"] = *microbatch;
  if (lists)
    json["schedule"] = OrderedJson::parse(planning::toJson(*lists));
  else if (schedule)
    json["schedule"] = *schedule;
  if (chunks)
    json["chunks"] = *chunks;
  if (recompute)
    json["recompute"] = *recompute;
  if (recomputeOps)
    json["recompute_ops"] = *recomputeOps;
  if (tpOverlap)
    json["tp_overlap"] = *tpOverlap;
  // Of one part each, the stages say themselves where they begin.
  if (stageBegins && (pipelines.empty() || chunks.value_or(1) > 1))
    json["stage_begins"] = *stageBegins;
  if (!parameters.empty()) {
    OrderedJson all = OrderedJson::object();
    for (const auto &[name, axes] : parameters)
      all[name] = axes.dims;
    json["parameters"] = all;
  }
  if (zero == kAuto)
    json["zero"] = "auto";
  else if (zero)
    json["zero"] = *zero;
  writeSwitch(json, "sequence", sequence);
  writeSwitch(json, "context", context);
  if (castWeights)
    json["cast_weights"] = *castWeights;
  if (reshard)
    json["reshard"] = *reshard;
  if (!stored.empty()) {
    OrderedJson all = OrderedJson::object();
    for (const auto &[name, layout] : stored) {
      OrderedJson one;
      one["dims"] = layout.dims;
      one["gathered"] = kGatherLives[int(layout.how.life)];
      one["gradient"] = kGradientSums[layout.how.scatterEach];
      all[name] = one;
    }
    json["stored"] = all;
  }
  if (!seams.empty()) {
    OrderedJson all = OrderedJson::array();
    for (const SeamUse &use : seams) {
      OrderedJson one;
      one["op"] = use.op;
      one["operand"] = use.operand;
      all.push_back(one);
    }
    json["seams"] = all;
  }
  if (!classes.empty()) {
    OrderedJson all = OrderedJson::array();
    for (const SplitClass &split : classes) {
      OrderedJson one;
      one["tensor"] = split.anchor.tensor;
      one["dim"] = split.anchor.dim;
      one["outer"] = split.anchor.outer;
      one["size"] = split.anchor.size;
      if (!split.anchor.op.empty()) {
        one["op"] = split.anchor.op;
        one["operand"] = split.anchor.operand;
      }
      one["axes"] = split.axes;
      all.push_back(one);
    }
    json["classes"] = all;
  }
  return json.dump(1) + "\n";
}

namespace {

class StrategyReader {
public:
  explicit StrategyReader(const std::string &file) : file(file) {}

  Result<Strategy> read(const std::string &text) {
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object())
      return Status::error(file + ": expected a JSON object");
    static const std::set<std::string> known = {
        "version",  "mesh",          "global_batch", "microbatch",
        "schedule", "recompute",     "stage_begins", "parameters",
        "classes",  "recompute_ops", "chunks",       "tp_overlap",
        "zero",     "stored",        "seams",        "sequence",
        "parts",    "context",       "pipelines",    "cast_weights",
        "reshard"};
    for (const auto &[key, value] : json.items())
      if (!known.count(key))
        problem(fmt::format("unknown field '{}'", key));
    int64_t version = kStrategyVersion;
    if (json.contains("version") &&
        number(json["version"], "version", version) &&
        version > kStrategyVersion)
      problem(fmt::format("version {} is newer than this compiler's {}",
                          version, kStrategyVersion));
    readMesh(json);
    readPipelines(json);
    readParts(json);
    readNumber(json, "global_batch", out.globalBatch);
    readNumber(json, "microbatch", out.microbatch);
    readSchedule(json);
    readNumber(json, "chunks", out.chunks);
    readReshard(json);
    readRecompute(json);
    readOverlap(json);
    if (json.contains("stage_begins") && out.stageBegins)
      problem("'stage_begins' cannot stand beside stages that say where they "
              "begin");
    else if (json.contains("stage_begins"))
      out.stageBegins = strings(json["stage_begins"], "stage_begins");
    if (json.contains("recompute_ops"))
      out.recomputeOps = strings(json["recompute_ops"], "recompute_ops");
    readParameters(json);
    readZero(json);
    readSwitch(json, "sequence", out.sequence);
    readSwitch(json, "context", out.context);
    readCasts(json);
    readStored(json);
    readSeams(json);
    readClasses(json);
    checkTogether();
    if (!status.ok())
      return status;
    return out;
  }

private:
  void problem(const std::string &text) {
    status.merge(Status::error(file + ": " + text));
  }

  bool number(const Json &value, const std::string &what, int64_t &to,
              int64_t least = 1) {
    if (value.is_number_integer() && value.get<int64_t>() >= least) {
      to = value.get<int64_t>();
      return true;
    }
    problem(fmt::format("'{}' is {}, expected a whole number of at least {}",
                        what, value.dump(), least));
    return false;
  }

  void readNumber(const Json &json, const char *key,
                  std::optional<int64_t> &to) {
    int64_t value = 0;
    if (json.contains(key) && number(json[key], key, value))
      to = value;
  }

  std::vector<std::string> strings(const Json &value, const std::string &what) {
    std::vector<std::string> out;
    bool ok = value.is_array();
    if (ok)
      for (const Json &item : value) {
        ok &= item.is_string();
        if (item.is_string())
          out.push_back(item);
      }
    if (!ok)
      problem(fmt::format("'{}' is not a list of strings", what));
    return out;
  }

  void readMesh(const Json &json) {
    if (!json.contains("mesh"))
      return;
    if (!json["mesh"].is_object())
      return problem("'mesh' is not an object of axis sizes");
    for (const auto &[axis, size] : json["mesh"].items()) {
      int64_t value = 1;
      if (axis != kPipelineAxis && axis != kDataAxis && axis != kTensorAxis)
        problem(fmt::format("'mesh' has the axis '{}'; known are pp, dp, tp",
                            axis));
      if (number(size, "mesh." + axis, value))
        out.mesh[axis] = value;
    }
  }

  std::vector<int64_t> devices(const Json &value, const std::string &at) {
    if (value.is_string())
      if (auto found = resharding::parseDevices(value.get<std::string>());
          found.ok())
        return std::move(*found);
    problem(fmt::format("'{}' is {}, expected devices as \"0-3,7\"", at,
                        value.dump()));
    return {};
  }

  void readDegrees(const Json &value, const std::string &at,
                   PipelineStages::Stage &stage) {
    std::set<std::string> seen;
    bool fine = value.is_string();
    if (fine) {
      auto axes = resharding::parseMesh(value.get<std::string>());
      fine = axes.ok();
      for (size_t i = 0; fine && i < axes->size(); ++i) {
        const auto &[name, size] = (*axes)[i];
        fine = (name == kDataAxis || name == kTensorAxis) &&
               seen.insert(name).second;
        (name == kDataAxis ? stage.dp : stage.tp) = size;
      }
    }
    if (!fine)
      problem(fmt::format("'{}' is {}, expected degrees as \"dp=2,tp=2\"", at,
                          value.dump()));
    else if (!stage.devices.empty() &&
             stage.dp * stage.tp != int64_t(stage.devices.size()))
      problem(fmt::format("'{}' makes {} places, 'devices' are {}", at,
                          stage.dp * stage.tp, stage.devices.size()));
  }

  PipelineStages::Stage readStage(const Json &json, const std::string &at) {
    PipelineStages::Stage stage;
    if (!json.is_object() || !json.contains("devices")) {
      problem(fmt::format("'{}' needs the field devices", at));
      return stage;
    }
    for (const auto &[key, value] : json.items())
      if (key != "devices" && key != "mesh" && key != "begin")
        problem(fmt::format("unknown field '{}.{}'", at, key));
    stage.devices = devices(json["devices"], at + ".devices");
    if (json.contains("mesh"))
      readDegrees(json["mesh"], at + ".mesh", stage);
    else if (stage.devices.size() > 1)
      problem(fmt::format("'{}' has {} devices and no mesh", at,
                          stage.devices.size()));
    if (json.contains("begin")) {
      if (json["begin"].is_string())
        stage.begin = json["begin"];
      else
        problem(fmt::format("'{}.begin' is {}, expected the name of an op", at,
                            json["begin"].dump()));
    }
    return stage;
  }

  PipelineStages readPipeline(const Json &json, const std::string &at) {
    PipelineStages pipeline;
    if (!json.is_object() || !json.contains("stages") ||
        !json["stages"].is_array() || json["stages"].empty()) {
      problem(fmt::format("'{}' needs the field stages, a list", at));
      return pipeline;
    }
    static const std::set<std::string> known = {
        "stages", "microbatches", "spares",
        "chunks", "stage_begins", "recompute_ops"};
    for (const auto &[key, value] : json.items())
      if (!known.count(key))
        problem(fmt::format("unknown field '{}.{}'", at, key));
    readNumber(json, "microbatches", pipeline.microbatches);
    readNumber(json, "chunks", pipeline.chunks);
    for (auto [key, names] :
         {std::pair("stage_begins", &pipeline.partBegins),
          std::pair("recompute_ops", &pipeline.recomputeOps)})
      if (json.contains(key))
        *names = strings(json[key], fmt::format("{}.{}", at, key));
    if (json.contains("spares")) {
      pipeline.spares = devices(json["spares"], at + ".spares");
      std::sort(pipeline.spares.begin(), pipeline.spares.end());
    }
    int index = 0;
    for (const Json &stage : json["stages"])
      pipeline.stages.push_back(
          readStage(stage, fmt::format("{}.stages[{}]", at, index++)));
    return pipeline;
  }

  // Every device is of one stage or spare, and every stage has layers.
  void checkStages() {
    std::map<int64_t, int> uses;
    int stages = 0;
    for (const PipelineStages &pipeline : out.pipelines) {
      std::map<std::string, size_t> begins;
      size_t without = 0;
      for (size_t s = 0; s < pipeline.stages.size(); ++s, ++stages) {
        const PipelineStages::Stage &stage = pipeline.stages[s];
        for (int64_t device : stage.devices)
          if (++uses[device] == 2)
            problem(fmt::format("device {} is of two stages", device));
        if (s == 0 && stage.begin)
          problem(fmt::format("the first stage begins at '{}', but it begins "
                              "with the model",
                              *stage.begin));
        without += s > 0 && !stage.begin;
        if (s > 0 && stage.begin)
          if (auto [it, fresh] = begins.emplace(*stage.begin, s); !fresh)
            problem(fmt::format("stage {} has no layers: stage {} begins at "
                                "'{}' too",
                                it->second, s, *stage.begin));
      }
      for (int64_t device : pipeline.spares)
        if (++uses[device] == 2)
          problem(fmt::format("device {} is spare and of a stage", device));
      if (without > 0 && !begins.empty())
        problem("some stages say where they begin and some do not");
    }
    const int64_t last = uses.empty() ? -1 : uses.rbegin()->first;
    std::vector<int64_t> missing;
    for (int64_t device = 0; device < last; ++device)
      if (!uses.count(device))
        missing.push_back(device);
    if (!missing.empty())
      problem(fmt::format("device{} {} {} of no stage, nor among 'spares'",
                          missing.size() > 1 ? "s" : "",
                          resharding::deviceStr(missing),
                          missing.size() > 1 ? "are" : "is"));
  }

  void readPipelines(const Json &json) {
    if (!json.contains("pipelines"))
      return;
    for (const char *other : {"mesh", "parts", "microbatch"})
      if (json.contains(other))
        problem(fmt::format("'{}' cannot stand beside 'pipelines'", other));
    const Json &list = json["pipelines"];
    if (!list.is_array() || list.empty())
      return problem("'pipelines' is not a list of pipelines");
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("pipelines[{}]", i);
      out.pipelines.push_back(readPipeline(list[i], at));
      if (list.size() > 1 && !out.pipelines.back().microbatches)
        problem(fmt::format("'{}' needs the field microbatches, its share of "
                            "a step, beside other pipelines",
                            at));
    }
    if (list.size() > 1)
      for (const char *other : {"stage_begins", "recompute_ops", "chunks"})
        if (json.contains(other))
          problem(fmt::format("'{}' cannot stand beside several pipelines, "
                              "each of which has its own",
                              other));
    checkStages();
    out.setPipelines(out.pipelines);
  }

  void readParts(const Json &json) {
    if (!json.contains("parts"))
      return;
    if (!json["parts"].is_object())
      return problem("'parts' is not an object of lists of sizes");
    for (const auto &[axis, sizes] : json["parts"].items()) {
      const std::string at = "parts." + axis;
      if (axis != kDataAxis && axis != kTensorAxis)
        problem(fmt::format("'parts' has the axis '{}'; dp and tp have parts",
                            axis));
      if (!sizes.is_array() || sizes.empty()) {
        problem(fmt::format("'{}' is not a list of sizes", at));
        continue;
      }
      int64_t all = 1;
      bool whole = true;
      for (const Json &size : sizes) {
        int64_t value = 1;
        whole &= number(size, at, value, 2);
        out.parts[axis].push_back(value);
        all *= value;
      }
      auto degree = out.mesh.find(axis);
      if (whole && (degree == out.mesh.end() || degree->second != all))
        problem(fmt::format("'{}' makes {}, 'mesh' has {}", at, all,
                            degree == out.mesh.end()
                                ? "no degree for it"
                                : fmt::format("{}={}", axis, degree->second)));
    }
  }

  void readSchedule(const Json &json) {
    if (!json.contains("schedule"))
      return;
    if (json["schedule"].is_object()) {
      Result<Schedule> lists =
          parseSchedule(json["schedule"].dump(), file + ": 'schedule'");
      if (!lists.ok()) {
        status.merge(lists.status());
        return;
      }
      if (!json["schedule"].contains("name"))
        lists->name = "own";
      out.schedule = lists->name;
      out.lists = *lists;
      return;
    }
    if (!json["schedule"].is_string())
      return problem("'schedule' is neither a string nor an object");
    std::string name = json["schedule"];
    const std::vector<std::string> &names = scheduleNames();
    bool isFile = name.size() > 5 && name.substr(name.size() - 5) == ".json";
    if (!isFile && std::find(names.begin(), names.end(), name) == names.end())
      problem(fmt::format("'schedule' is '{}', expected a file .json or one of "
                          "{}",
                          name, fmt::join(names, ", ")));
    out.schedule = name;
  }

  void readRecompute(const Json &json) {
    if (!json.contains("recompute"))
      return;
    const Json &value = json["recompute"];
    std::string text = value.is_string() ? value.get<std::string>() : "";
    if (!Strategy::checkRecompute(text).ok())
      problem(fmt::format("'recompute' is {}, expected \"none\", \"full\", "
                          "\"auto\" or a ratio from \"0\" to \"1\"",
                          value.dump()));
    out.recompute = text;
  }

  void readOverlap(const Json &json) {
    if (!json.contains("tp_overlap"))
      return;
    const Json &value = json["tp_overlap"];
    out.tpOverlap = value.is_string() ? value.get<std::string>() : "";
    if (!isOverlap(*out.tpOverlap))
      problem(fmt::format("'tp_overlap' is {}, expected \"0\", \"1\", \"2\", "
                          "\"3\" or \"auto\"",
                          value.dump()));
  }

  static bool isOverlap(const std::string &text) {
    return text == "auto" || (text.size() == 1 && text >= "0" && text <= "3");
  }

  void readParameters(const Json &json) {
    if (!json.contains("parameters"))
      return;
    if (!json["parameters"].is_object())
      return problem("'parameters' is not an object");
    for (const auto &[name, dims] : json["parameters"].items()) {
      Strategy::ParameterAxes axes;
      if (!dims.is_array()) {
        problem(fmt::format("parameter '{}': expected a list of axes for each "
                            "dimension",
                            name));
        continue;
      }
      for (const Json &dim : dims)
        axes.dims.push_back(strings(dim, "parameters." + name));
      out.parameters[name] = axes;
    }
  }

  void readZero(const Json &json) {
    if (!json.contains("zero"))
      return;
    const Json &value = json["zero"];
    out.zero = Strategy::kAuto;
    if (value == "auto")
      return;
    if (value.is_number_integer())
      out.zero = value.get<int64_t>();
    if (*out.zero < 0 || *out.zero > 3)
      problem(fmt::format("'zero' is {}, expected a level from 0 to 3 or "
                          "\"auto\"",
                          value.dump()));
  }

  void readSwitch(const Json &json, const char *key,
                  std::optional<int64_t> &to) {
    if (!json.contains(key))
      return;
    const Json &value = json[key];
    if (value.is_boolean())
      to = value.get<bool>();
    else if (value == "auto")
      to = Strategy::kAuto;
    else
      problem(fmt::format("'{}' is {}, expected true, false or \"auto\"", key,
                          value.dump()));
  }

  void readCasts(const Json &json) {
    if (!json.contains("cast_weights"))
      return;
    const Json &value = json["cast_weights"];
    out.castWeights = value.is_string() ? value.get<std::string>() : "";
    if (*out.castWeights != "step" && *out.castWeights != "use" &&
        *out.castWeights != "auto")
      problem(fmt::format("'cast_weights' is {}, expected \"step\", \"use\" or "
                          "\"auto\"",
                          value.dump()));
  }

  void readReshard(const Json &json) {
    if (!json.contains("reshard"))
      return;
    const Json &value = json["reshard"];
    out.reshard = value.is_string() ? value.get<std::string>() : "";
    resharding::Strategy known;
    if (!resharding::parseStrategy(*out.reshard, known))
      problem(fmt::format("'reshard' is {}, expected one of {}", value.dump(),
                          fmt::join(resharding::strategyNames(), ", ")));
  }

  // One of two words; the first if the field is absent.
  int word(const Json &json, const char *key, const std::string &where,
           const char *const (&words)[2]) {
    if (!json.contains(key) || json[key] == words[0])
      return 0;
    if (json[key] != words[1])
      problem(fmt::format("{}: '{}' is {}, expected \"{}\" or \"{}\"", where,
                          key, json[key].dump(), words[0], words[1]));
    return 1;
  }

  void readStored(const Json &json) {
    if (!json.contains("stored"))
      return;
    if (!json["stored"].is_object())
      return problem("'stored' is not an object");
    for (const auto &[name, one] : json["stored"].items()) {
      const std::string where = fmt::format("stored parameter '{}'", name);
      if (!one.is_object() || !one.contains("dims") ||
          !one["dims"].is_array()) {
        problem(where + ": expected 'dims', a list of axes for each dimension");
        continue;
      }
      for (const auto &[key, value] : one.items())
        if (key != "dims" && key != "gathered" && key != "gradient")
          problem(fmt::format("{}: unknown field '{}'", where, key));
      Strategy::StoredLayout layout;
      for (const Json &dim : one["dims"])
        layout.dims.push_back(strings(dim, "stored." + name));
      layout.how.life = GatherLife(word(one, "gathered", where, kGatherLives));
      layout.how.scatterEach = word(one, "gradient", where, kGradientSums) == 1;
      out.stored[name] = std::move(layout);
    }
  }

  void readSeams(const Json &json) {
    if (!json.contains("seams"))
      return;
    if (!json["seams"].is_array())
      return problem("'seams' is not a list");
    int index = 0;
    for (const Json &one : json["seams"]) {
      const std::string at = fmt::format("seams[{}]", index++);
      int64_t operand = 0;
      if (!one.is_object() || !one.contains("op") || !one["op"].is_string()) {
        problem(fmt::format("'{}' needs the field op, a string", at));
        continue;
      }
      if (one.contains("operand"))
        number(one["operand"], at + ".operand", operand, 0);
      out.seams.push_back({one["op"], int(operand)});
    }
  }

  void readClasses(const Json &json) {
    if (!json.contains("classes"))
      return;
    if (!json["classes"].is_array())
      return problem("'classes' is not a list");
    int index = 0;
    for (const Json &one : json["classes"]) {
      std::string at = fmt::format("classes[{}]", index++);
      Strategy::SplitClass split;
      auto isText = [&](const char *field) {
        return one.contains(field) && one[field].is_string();
      };
      if (!one.is_object() || !one.contains("axes") ||
          !(isText("tensor") || isText("op"))) {
        problem(
            fmt::format("'{}' needs the fields tensor (or op) and axes", at));
        continue;
      }
      split.anchor.tensor = isText("tensor") ? std::string(one["tensor"]) : "";
      int64_t dim = 0;
      if (one.contains("dim") && number(one["dim"], at + ".dim", dim, 0))
        split.anchor.dim = int(dim);
      if (one.contains("outer"))
        number(one["outer"], at + ".outer", split.anchor.outer);
      split.anchor.size = 0;
      if (one.contains("size"))
        number(one["size"], at + ".size", split.anchor.size);
      int64_t operand = 0;
      if (one.contains("operand") &&
          number(one["operand"], at + ".operand", operand, 0))
        split.anchor.operand = int(operand);
      if (one.contains("op") && one["op"].is_string())
        split.anchor.op = one["op"];
      else if (one.contains("op"))
        problem(fmt::format("'{}.op' is {}, expected a string", at,
                            one["op"].dump()));
      split.axes = strings(one["axes"], at + ".axes");
      out.classes.push_back(std::move(split));
    }
  }

  // Of the mesh, or a part of one.
  bool hasAxis(const std::string &axis) const {
    if (out.mesh.count(axis))
      return true;
    for (const auto &[of, sizes] : out.parts)
      for (size_t part = 0; part < sizes.size(); ++part)
        if (axis == partOf(of, part))
          return true;
    return false;
  }

  // Fields that must fit each other.
  void checkTogether() {
    // An axis and a part of it overlap.
    auto checkAxes = [&](const std::vector<std::string> &axes,
                         const std::string &where) {
      std::set<std::string> seen;
      for (const std::string &axis : axes) {
        if (axis != kMicrobatchAxis && !hasAxis(axis))
          problem(fmt::format("{} is split over '{}', which 'mesh' lacks",
                              where, axis));
        for (const std::string &other : seen)
          if (isOn(axis, other) || isOn(other, axis))
            problem(fmt::format("{} is split over '{}' twice", where, axis));
        seen.insert(axis);
      }
    };
    for (const auto &[name, axes] : out.parameters) {
      std::vector<std::string> all;
      for (const std::vector<std::string> &dim : axes.dims)
        all.insert(all.end(), dim.begin(), dim.end());
      checkAxes(all, fmt::format("parameter '{}'", name));
    }
    for (const auto &[name, layout] : out.stored) {
      std::vector<std::string> all;
      for (const std::vector<std::string> &dim : layout.dims)
        all.insert(all.end(), dim.begin(), dim.end());
      checkAxes(all, fmt::format("stored parameter '{}'", name));
      if (std::find(all.begin(), all.end(), kMicrobatchAxis) != all.end() ||
          std::find(all.begin(), all.end(), kPipelineAxis) != all.end())
        problem(fmt::format("stored parameter '{}' is split over mb or pp; it "
                            "lies on the ranks of one stage: dp and tp",
                            name));
    }
    for (const Strategy::SplitClass &split : out.classes)
      checkAxes(split.axes, fmt::format("dimension {} of '{}'",
                                        split.anchor.dim, split.anchor.tensor));
    auto pp = out.mesh.find(kPipelineAxis);
    int64_t chunks = out.chunks.value_or(1);
    if (out.stageBegins && pp != out.mesh.end() &&
        int64_t(out.stageBegins->size()) + 1 != pp->second * chunks)
      problem(fmt::format(
          "'stage_begins' makes {} stages, 'mesh' has pp={}{}",
          out.stageBegins->size() + 1, pp->second,
          chunks > 1 ? fmt::format(" and there are {} chunks", chunks) : ""));
    if (out.lists &&
        out.chunks.value_or(out.lists->chunks) != out.lists->chunks)
      problem(fmt::format("'chunks' is {}, the lists of 'schedule' have {}",
                          *out.chunks, out.lists->chunks));
    auto dp = out.mesh.find(kDataAxis);
    int64_t replicas = dp == out.mesh.end() ? 1 : dp->second;
    if (out.globalBatch && out.microbatch &&
        *out.globalBatch % (*out.microbatch * replicas) != 0)
      problem(fmt::format("'global_batch' {} is not a multiple of microbatch "
                          "{} x dp {}",
                          *out.globalBatch, *out.microbatch, replicas));
  }

  std::string file;
  Strategy out;
  Status status;
};

} // namespace

Status Strategy::checkRecompute(const std::string &text) {
  char *end = nullptr;
  double ratio = std::strtod(text.c_str(), &end);
  bool isRatio = !text.empty() && *end == 0 && ratio >= 0 && ratio <= 1;
  if (text == "none" || text == "full" || text == "auto" || isRatio)
    return {};
  return Status::error(fmt::format(
      "expected none, full, auto or a ratio from 0 to 1, found '{}'", text));
}

Result<Strategy> Strategy::parse(const std::string &json,
                                 const std::string &fileName) {
  return StrategyReader(fileName).read(json);
}

} // namespace merak::planning
