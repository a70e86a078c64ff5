#include "passes/Planning/PlanFrontier.h"

#include "passes/Planning/ParetoPlans.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace merak::planning {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kFrontierVersion = 1;

double errorOf(double expected, double found) {
  return found > 0 ? expected / found - 1 : 0;
}

void PlanFrontier::reduce() {
  std::stable_sort(curves.begin(), curves.end(),
                   [](const FrontierCurve &a, const FrontierCurve &b) {
                     return a.devices < b.devices;
                   });
  int64_t number = 0;
  for (FrontierCurve &curve : curves) {
    std::vector<Cost> costs;
    for (const FrontierPoint &point : curve.points)
      costs.push_back({point.bytes, std::llround(1e9 * point.seconds)});
    std::vector<FrontierPoint> kept;
    for (size_t i : undominated(costs)) {
      kept.push_back(std::move(curve.points[i]));
      kept.back().number = ++number;
    }
    curve.points = std::move(kept);
  }
}

size_t PlanFrontier::points() const {
  size_t count = 0;
  for (const FrontierCurve &curve : curves)
    count += curve.points.size();
  return count;
}

Result<const FrontierPoint *>
PlanFrontier::pick(const std::string &name) const {
  auto refuse = [&](const std::string &expected) {
    return Status::error(
        fmt::format("--pick: expected {}, found '{}'", expected, name));
  };
  const size_t at = std::min(name.find('@'), name.size());
  const std::string which = name.substr(0, at);
  const bool fastest = which == "fastest";
  if (fastest || which == "smallest") {
    const FrontierPoint *best = nullptr;
    for (const FrontierCurve &curve : curves) {
      if (curve.points.empty() ||
          (at < name.size() &&
           name.substr(at + 1) != std::to_string(curve.devices)))
        continue;
      // Bytes ascend and seconds descend.
      const FrontierPoint &end =
          fastest ? curve.points.back() : curve.points.front();
      if (!best ||
          (fastest ? end.seconds < best->seconds : end.bytes < best->bytes))
        best = &end;
    }
    if (best)
      return best;
    return refuse("a number of devices that the frontier has points for");
  }
  int64_t number = 0;
  auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size())
    for (const FrontierCurve &curve : curves)
      for (const FrontierPoint &point : curve.points)
        if (point.number == number)
          return &point;
  return refuse(fmt::format(
      "a point from 1 to {}, or fastest or smallest, with or without @DEVICES",
      points()));
}

std::string PlanFrontier::toJson() const {
  OrderedJson json;
  json["version"] = kFrontierVersion;
  json["model"] = model;
  json["machine"] = machine;
  json["global_batch"] = globalBatch;
  json["memory_limit"] = memoryBytes;
  json["question"] = question;
  json["left_out"] = OrderedJson::array();
  for (const LeftOut &one : leftOut)
    json["left_out"].push_back(
        OrderedJson{{"technique", one.name}, {"reason", one.reason}});
  json["curves"] = OrderedJson::array();
  for (const FrontierCurve &curve : curves) {
    OrderedJson one;
    one["devices"] = curve.devices;
    one["plans_priced"] = curve.priced;
    one["plans_simulated"] = curve.simulated;
    if (!curve.problem.empty())
      one["problem"] = curve.problem;
    one["points"] = OrderedJson::array();
    for (const FrontierPoint &point : curve.points) {
      OrderedJson entry;
      entry["point"] = point.number;
      entry["memory_bytes"] = point.bytes;
      entry["step_seconds"] = point.seconds;
      entry["expected_memory_bytes"] = point.expectedBytes;
      entry["expected_step_seconds"] = point.expectedSeconds;
      entry["step_error"] = errorOf(point.expectedSeconds, point.seconds);
      entry["decisions"] = point.decisions;
      entry["places"] = point.places;
      entry["strategy"] = OrderedJson::parse(point.strategy.toJson());
      one["points"].push_back(std::move(entry));
    }
    json["curves"].push_back(std::move(one));
  }
  return json.dump(1) + "\n";
}

// A file of ours: that it is none is all that can be said.
Result<PlanFrontier> PlanFrontier::parse(const std::string &text,
                                         const std::string &fileName) {
  const Status wrong =
      Status::error(fileName + ": expected what --frontier writes");
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  try {
    PlanFrontier out;
    if (json.at("version").get<int64_t>() != kFrontierVersion)
      return wrong;
    out.model = json.at("model");
    out.machine = json.at("machine");
    out.globalBatch = json.at("global_batch");
    out.memoryBytes = json.at("memory_limit");
    out.question = json.at("question");
    for (const OrderedJson &one : json.at("left_out"))
      out.leftOut.push_back({one.at("technique"), one.at("reason")});
    for (const OrderedJson &one : json.at("curves")) {
      FrontierCurve &curve = out.curves.emplace_back();
      curve.devices = one.at("devices");
      curve.priced = one.at("plans_priced");
      curve.simulated = one.at("plans_simulated");
      curve.problem = one.value("problem", "");
      for (const OrderedJson &entry : one.at("points")) {
        Result<Strategy> strategy =
            Strategy::parse(entry.at("strategy").dump(), fileName);
        if (!strategy.ok())
          return strategy.status();
        FrontierPoint &point = curve.points.emplace_back();
        point.number = entry.at("point");
        point.bytes = entry.at("memory_bytes");
        point.seconds = entry.at("step_seconds");
        point.expectedBytes = entry.at("expected_memory_bytes");
        point.expectedSeconds = entry.at("expected_step_seconds");
        point.decisions = entry.at("decisions");
        point.places = entry.at("places");
        point.strategy = std::move(*strategy);
      }
    }
    return out;
  } catch (const nlohmann::json::exception &) {
    return wrong;
  }
}

} // namespace merak::planning
