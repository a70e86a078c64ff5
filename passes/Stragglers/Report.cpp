#include "passes/Stragglers/Report.h"

#include "passes/Resharding/UnitTasks.h"
#include "passes/Stragglers/Restart.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

namespace merak::stragglers {

using Json = nlohmann::ordered_json;

namespace {

std::string deviceStr(const std::vector<int> &devices) {
  return resharding::deviceStr({devices.begin(), devices.end()});
}

// In units of a layer of a microbatch, or seconds.
double inUnit(int64_t time, double unit) {
  return double(time) / double(kOne) * (unit > 0 ? unit : 1);
}
std::string timeStr(int64_t time, double unit) {
  return time == kFailed ? "-"
         : unit > 0      ? fmt::format("{:.4f}", inUnit(time, unit))
                         : fmt::format("{:.1f}", inUnit(time, unit));
}
// a / b of two times.
std::string ratioStr(double a, double b) {
  return a >= double(kFailed) ? "-" : fmt::format("{:.3f}", a / b);
}

Score restartedScore(const Findings &findings) {
  return findings.restarted ? scoreOf(*findings.problem, *findings.restarted)
                            : Score();
}

int64_t countOf(const Problem &problem, bool gone) {
  int64_t count = 0;
  for (size_t i = 0; i < problem.devices.size(); ++i)
    count += gone ? isFailed(problem, int(i)) : isStraggler(problem, int(i));
  return count;
}

} // namespace

Result<Findings> findingsOf(const std::string &name, const Problem &problem,
                            const Plan &old, const ReplanOptions &options) {
  Result<Replanning> replanning = replan(problem, old, options);
  if (!replanning)
    return replanning.status();
  return Findings{name, &problem, old, restartedPlan(problem),
                  std::move(*replanning)};
}

std::string devicesStr(const Problem &problem) {
  std::set<int64_t> nodes;
  for (const Device &device : problem.devices)
    nodes.insert(device.node);
  return fmt::format("{} devices on {} nodes, {} slow, {} gone",
                     problem.devices.size(), nodes.size(),
                     countOf(problem, false), countOf(problem, true));
}

namespace {

std::string rowStr(const std::string &what, const Score &score,
                   const Findings &findings, double unit,
                   const std::string &rest) {
  return fmt::format(
      "  {:<14}{:>10}{:>10}{:>10}{:>10}{}{}\n", what,
      timeStr(score.steady, unit), timeStr(score.filled, unit),
      ratioStr(double(score.steady), theoryTime(*findings.problem)),
      ratioStr(double(score.steady), findings.replanning.bound),
      rest.empty() ? "" : "  ", rest);
}

std::string reactionRow(const Findings &findings, const Reached &reached,
                        double unit) {
  const bool isOld = reached.reaction == Reaction::None;
  return rowStr(isOld ? "as it is" : nameOf(reached.reaction), reached.score,
                findings, unit,
                !reached.status.ok() ? reached.status.messages().front()
                : isOld              ? ""
                        : fmt::format("{:.1f} layers move", reached.moved));
}

std::string reactionRows(const Findings &findings, double unit) {
  const std::vector<Reached> &reached = findings.replanning.reached;
  std::string text = reactionRow(findings, reached.front(), unit) +
                     rowStr("restart", restartedScore(findings), findings, unit,
                            findings.restarted ? "" : "no uniform plan fits");
  for (size_t i = 1; i < reached.size(); ++i)
    text += reactionRow(findings, reached[i], unit);
  return text;
}

std::string stageStr(const Findings &findings, const Pipeline &pipeline,
                     size_t j, int64_t begin) {
  const Problem &problem = *findings.problem;
  const Stage &stage = pipeline.stages[j];
  std::string text =
      fmt::format("    stage {}: layers {}-{} on {}, rate {:.4g}", j, begin,
                  begin + stage.layers - 1, deviceStr(stage.devices),
                  double(groupRate(problem, stage.devices)) / kOne);
  if (problem.isLimited()) {
    const size_t behind = pipeline.stages.size() - 1 - j;
    text +=
        fmt::format(", {:.1f} of {:.1f} GB",
                    double(stageBytes(problem, int64_t(stage.devices.size()),
                                      int64_t(behind), j == 0 || behind == 0,
                                      stage.layers)) /
                        1e9,
                    double(problem.memory.limit) / 1e9);
  }
  return text + "\n";
}

std::string planStr(const Findings &findings, const Plan &plan, double unit) {
  std::string text;
  for (size_t i = 0; i < plan.pipelines.size(); ++i) {
    const Pipeline &pipeline = plan.pipelines[i];
    text += fmt::format(
        "  pipeline {}: {} microbatches of {}\n", i, pipeline.microbatches,
        timeStr(timeOf(*findings.problem, pipeline).slowest, unit));
    int64_t begin = 0;
    for (size_t j = 0; j < pipeline.stages.size(); ++j) {
      text += stageStr(findings, pipeline, j, begin);
      begin += pipeline.stages[j].layers;
    }
  }
  std::vector<int> standby = standbyDevices(*findings.problem, plan);
  const std::vector<int> gone = failedDevices(*findings.problem);
  std::erase_if(standby, [&](int device) {
    return std::binary_search(gone.begin(), gone.end(), device);
  });
  if (!standby.empty())
    text += fmt::format("  standby: {}\n", deviceStr(standby));
  if (!gone.empty())
    text += fmt::format("  gone: {}\n", deviceStr(gone));
  return text;
}

} // namespace

std::string describe(const Findings &findings, double unit) {
  const Problem &problem = *findings.problem;
  const Replanning &replanning = findings.replanning;
  const double theory = theoryTime(problem);
  std::string text =
      fmt::format("{}: {}; {} layers, {} microbatches\n", findings.name,
                  devicesStr(problem), problem.layers, problem.microbatches);
  text += fmt::format("  {:<14}{:>10}{:>10}{:>10}{:>10}\n",
                      unit > 0 ? "seconds" : "layer times", "steady", "filled",
                      "of theory", "of bound");
  text += reactionRows(findings, unit);
  text += fmt::format(
      "  theory {}: {} of normal devices * {} / {:.3f}\n",
      timeStr(int64_t(theory), unit),
      timeStr(int64_t(idealTime(problem)), unit), problem.devices.size(),
      double(problem.devices.size()) * idealTime(problem) / theory);
  text += fmt::format("  bound {} of these groups",
                      timeStr(int64_t(replanning.bound), unit));
  text += replanning.optimal
              ? fmt::format("; no steady step is shorter than {}\n",
                            timeStr(replanning.least, unit))
              : "\n";
  const Reached &best = replanning.best();
  text += fmt::format("  chosen: {}\n", best.reaction == Reaction::None
                                            ? "as it is"
                                            : nameOf(best.reaction));
  return text + planStr(findings, best.plan, unit);
}

namespace {

Json jsonOf(const Plan &plan) {
  Json pipelines = Json::array();
  for (const Pipeline &pipeline : plan.pipelines) {
    Json stages = Json::array();
    for (const Stage &stage : pipeline.stages)
      stages.push_back(
          {{"devices", deviceStr(stage.devices)}, {"layers", stage.layers}});
    pipelines.push_back({{"microbatches", pipeline.microbatches},
                         {"stages", std::move(stages)}});
  }
  return {{"pipelines", std::move(pipelines)}};
}

Json jsonOf(const Score &score, double unit) {
  if (score.steady == kFailed)
    return nullptr;
  return {{"steady", inUnit(score.steady, unit)},
          {"filled", inUnit(score.filled, unit)}};
}

} // namespace

std::string toJson(const Plan &plan) { return jsonOf(plan).dump(2); }

std::string toJson(const Findings &findings, double unit) {
  const Problem &problem = *findings.problem;
  const Replanning &replanning = findings.replanning;
  Json reached = Json::object();
  for (const Reached &r : replanning.reached) {
    Json &entry = reached[nameOf(r.reaction)];
    entry["score"] = jsonOf(r.score, unit);
    entry["moved_layers"] = r.moved;
    if (!r.status.ok())
      entry["problems"] = r.status.messages();
  }
  const Reached &best = replanning.best();
  const Json json = {
      {"name", findings.name},
      {"unit", unit > 0 ? "seconds" : "layer times"},
      {"theory", inUnit(int64_t(theoryTime(problem)), unit)},
      {"bound", inUnit(int64_t(replanning.bound), unit)},
      {"proved", replanning.optimal},
      {"restart", jsonOf(restartedScore(findings), unit)},
      {"reached", reached},
      {"chosen", nameOf(best.reaction)},
      {"of_theory", double(best.score.steady) / theoryTime(problem)},
      {"peak_bytes", peakBytes(problem, best.plan)},
      {"standby", deviceStr(standbyDevices(problem, best.plan))},
      {"plan", jsonOf(best.plan)}};
  return json.dump(2);
}

std::string toStrategy(const Problem &problem, const Plan &plan) {
  Json pipelines = Json::array();
  for (const Pipeline &pipeline : plan.pipelines) {
    Json stages = Json::array();
    for (const Stage &stage : pipeline.stages)
      stages.push_back({{"devices", deviceStr(stage.devices)},
                        {"mesh", fmt::format("tp={}", stage.devices.size())}});
    pipelines.push_back(
        {{"microbatches", pipeline.microbatches}, {"stages", stages}});
  }
  if (const std::vector<int> spares = standbyDevices(problem, plan);
      !spares.empty())
    pipelines.back()["spares"] = deviceStr(spares);
  const Json strategy = {{"version", 3}, {"pipelines", pipelines}};
  return strategy.dump(1);
}

std::string tableStr(const std::vector<Findings> &all, double unit) {
  size_t width = 12;
  for (const Findings &findings : all)
    width = std::max(width, findings.name.size());
  std::string text =
      fmt::format("{:<{}}", unit > 0 ? "seconds" : "layer times", width);
  for (const char *column :
       {"as it is", "restart", "microb.", "layers", "grouping", "bound",
        "of theory", "x as it is", "x restart"})
    text += fmt::format("{:>11}", column);
  text += "\n";
  for (const Findings &findings : all) {
    const Replanning &r = findings.replanning;
    const int64_t restart = restartedScore(findings).steady;
    const double best = double(r.best().score.steady);
    std::vector<std::string> cells = {
        timeStr(r.reached.front().score.steady, unit), timeStr(restart, unit)};
    for (size_t i = 1; i < reactionNames().size(); ++i)
      cells.push_back(i < r.reached.size()
                          ? timeStr(r.reached[i].score.steady, unit)
                          : "-");
    cells.push_back(timeStr(int64_t(r.bound), unit));
    cells.push_back(ratioStr(best, theoryTime(*findings.problem)));
    cells.push_back(ratioStr(double(r.reached.front().score.steady), best));
    cells.push_back(ratioStr(double(restart), best));
    text += fmt::format("{:<{}}", findings.name, width);
    for (const std::string &cell : cells)
      text += fmt::format("{:>11}", cell);
    text += "\n";
  }
  return text;
}

} // namespace merak::stragglers
