#include "passes/Planning/Strategy.h"

#include "dialects/Support/MeshAxes.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <set>

namespace merak::planning {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// 2: stored parameters, seams, techniques and parts of axes; files without them
// are written as 1.
constexpr int64_t kStrategyVersion = 2;

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

std::string Strategy::toJson() const {
  OrderedJson json;
  const bool seamed = zero || sequence || context || !stored.empty() ||
                      !seams.empty() || !parts.empty();
  json["version"] = seamed ? kStrategyVersion : 1;
  json["mesh"] = mesh;
  if (!parts.empty())
    json["parts"] = parts;
  if (globalBatch)
    json["global_batch"] = *globalBatch;
  if (microbatch)
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
  if (stageBegins)
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
        "parts",    "context"};
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
    readParts(json);
    readNumber(json, "global_batch", out.globalBatch);
    readNumber(json, "microbatch", out.microbatch);
    readSchedule(json);
    readNumber(json, "chunks", out.chunks);
    readRecompute(json);
    readOverlap(json);
    if (json.contains("stage_begins"))
      out.stageBegins = strings(json["stage_begins"], "stage_begins");
    if (json.contains("recompute_ops"))
      out.recomputeOps = strings(json["recompute_ops"], "recompute_ops");
    readParameters(json);
    readZero(json);
    readSwitch(json, "sequence", out.sequence);
    readSwitch(json, "context", out.context);
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
