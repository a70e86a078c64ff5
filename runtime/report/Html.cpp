#include "runtime/report/Html.h"

#include "runtime/report/Page.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

namespace merak::report {
namespace {

using Json = nlohmann::ordered_json;

// More points than a chart has pixels help nobody.
constexpr size_t kMostPoints = 400;
constexpr size_t kMostTensors = 8;

// Numbers the texts that occur, so that spans stay small.
class Names {
public:
  int operator()(const std::string &text) {
    auto [it, fresh] = index_.emplace(text, static_cast<int>(list_.size()));
    if (fresh)
      list_.push_back(text);
    return it->second;
  }
  const std::vector<std::string> &list() const { return list_; }

private:
  std::map<std::string, int> index_;
  std::vector<std::string> list_;
};

// Six digits of the step are finer than any screen.
double rounded(double value, double unit) {
  return unit > 0 ? std::round(value / unit) * unit : value;
}

struct Texts {
  Names kinds, streams, names;
};

Json timelineJson(const char *name, const Timeline &timeline, Texts &texts) {
  Json spans = Json::array();
  const double start = timeline.begin(), seconds = timeline.end() - start;
  const double unit = seconds * 1e-6;
  for (const Span &span : timeline.spans)
    spans.push_back({span.row, texts.kinds(span.kind), span.microbatch,
                     rounded(span.begin - start, unit),
                     rounded(span.end - start, unit),
                     texts.streams(span.stream), texts.names(span.name)});
  Json use = Json::array();
  for (const RowUse &row : rowUse(timeline))
    use.push_back({row.busy, row.exposed, row.bubble});
  return {{"name", name},
          {"seconds", seconds},
          {"spans", std::move(spans)},
          {"use", std::move(use)}};
}

// Of neighbouring points the one with most bytes stays.
std::vector<MemoryUse::Point> thinned(const std::vector<MemoryUse::Point> &all,
                                      double seconds) {
  if (all.size() <= kMostPoints || seconds <= 0)
    return all;
  std::vector<MemoryUse::Point> result;
  int64_t last = -1;
  for (const MemoryUse::Point &point : all) {
    const auto column =
        static_cast<int64_t>(point.time / seconds * double(kMostPoints));
    if (column != last)
      result.push_back(point);
    else if (point.total() > result.back().total())
      result.back().bytes = point.bytes;
    last = column;
  }
  return result;
}

Json memoryJson(const MemoryUse &use, double seconds) {
  Json points = Json::array(), tensors = Json::array();
  for (const MemoryUse::Point &point : thinned(use.points, seconds)) {
    Json entry = {rounded(point.time, seconds * 1e-6)};
    for (double bytes : point.bytes)
      entry.push_back(bytes);
    points.push_back(std::move(entry));
  }
  double others = 0;
  int count = 0;
  for (size_t i = 0; i < use.atPeak.size(); ++i) {
    const MemoryUse::Tensor &tensor = use.atPeak[i];
    if (i < kMostTensors) {
      tensors.push_back({tensor.origin.empty() ? tensor.name : tensor.origin,
                         int(tensor.category), tensor.bytes, tensor.copies,
                         tensor.name});
      continue;
    }
    others += tensor.bytes;
    count += tensor.copies;
  }
  if (count > 0)
    tensors.push_back(
        {fmt::format("{} others", use.atPeak.size() - kMostTensors),
         int(planpb::Buffer::WORKSPACE), others, count});
  return {{"arena", use.arenaBytes},
          {"peak", use.peak.total()},
          {"peakTime", use.peak.time},
          {"points", std::move(points)},
          {"tensors", std::move(tensors)}};
}

Json decisionsJson(const Decisions &decisions, Json &page) {
  Json candidates = Json::array(), stages = Json::array();
  for (const CandidatePlan &c : decisions.candidates)
    candidates.push_back({{"name", c.name},
                          {"pp", c.pp},
                          {"dp", c.dp},
                          {"tp", c.tp},
                          {"microbatches", c.microbatches},
                          {"microbatch", c.microbatch},
                          {"schedule", c.schedule},
                          {"recompute", c.recompute},
                          {"tpOverlap", c.tpOverlap},
                          {"seconds", c.seconds},
                          {"memory", c.memoryBytes},
                          {"exposed", c.exposedSeconds},
                          {"bubble", c.bubbleSeconds},
                          {"chosen", c.chosen},
                          {"feasible", c.feasible},
                          {"why", c.why},
                          {"onlyDrawn", c.onlyDrawn}});
  for (const StageDecision &s : decisions.stages)
    stages.push_back({{"first", s.first},
                      {"last", s.last},
                      {"ops", s.ops},
                      {"forward", s.forwardSeconds},
                      {"backward", s.backwardSeconds},
                      {"memory", s.memoryBytes},
                      {"limit", s.memoryLimit},
                      {"opsRecomputed", s.opsRecomputed},
                      {"recomputedBytes", s.recomputedBytes},
                      {"recompute", s.recomputeSeconds},
                      {"why", s.why}});
  page["candidates"] = std::move(candidates);
  page["stages"] = std::move(stages);
  page["text"] = decisions.text;
  return page;
}

Json factsJson(const planpb::PlanFile &file) {
  Json facts = Json::array();
  std::string mesh;
  for (const planpb::Axis &axis : file.mesh())
    mesh += fmt::format("{}{}={}", mesh.empty() ? "" : " ", axis.name(),
                        axis.size());
  for (int m = 0; m < file.meshes_size(); ++m) {
    mesh += mesh.empty() ? "stages of" : ";";
    for (const planpb::Axis &axis : file.meshes(m).axes())
      if (axis.name() != "pp")
        mesh += fmt::format(" {}={}", axis.name(), axis.size());
  }
  facts.push_back(fmt::format("{} rank{}", file.ranks_size(),
                              file.ranks_size() == 1 ? "" : "s"));
  if (!mesh.empty())
    facts.push_back(mesh);
  if (!file.schedule().empty())
    facts.push_back("schedule " + file.schedule());
  if (file.microbatches() > 0)
    facts.push_back(fmt::format("{} microbatches of {}", file.microbatches(),
                                file.microbatch()));
  if (file.global_batch() > 0)
    facts.push_back(fmt::format("global batch {}", file.global_batch()));
  if (!file.device().empty())
    facts.push_back(file.device());
  const auto cluster =
      nlohmann::json::parse(file.cluster(), nullptr, /*exceptions=*/false);
  if (cluster.is_object() && cluster.contains("name") &&
      cluster["name"].is_string())
    facts.push_back("for " + cluster["name"].get<std::string>());
  return facts;
}

std::string pageTitle(const planpb::PlanFile &file) {
  std::string name = std::filesystem::path(file.model()).filename().string();
  const std::string folder =
      std::filesystem::path(file.model()).parent_path().filename().string();
  if (name == "model.onnx" && !folder.empty())
    name = folder;
  return (name.empty() ? std::string("plan") : name) +
         (file.mode() == "infer" ? ": inference step" : ": training step");
}

// Replaces the one occurrence of `mark`.
void fill(std::string &page, const std::string &mark, const std::string &text) {
  if (const size_t at = page.find(mark); at != std::string::npos)
    page.replace(at, mark.size(), text);
}

// Nothing in the data can end the script element that holds it.
std::string embedded(const Json &json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string result;
  for (char c : text)
    result += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return result;
}

} // namespace

std::string htmlReport(const LoadedPlan &plan, const Simulation &simulation,
                       const Timeline *measured) {
  const planpb::PlanFile &file = plan.file;
  Json page;
  page["title"] = pageTitle(file);
  page["facts"] = factsJson(file);
  page["tokens"] = file.tokens_per_step();
  page["rows"] = simulation.timeline.rows;
  Texts texts;
  page["timelines"] = {timelineJson("predicted", simulation.timeline, texts)};
  if (measured)
    page["timelines"].push_back(timelineJson("measured", *measured, texts));
  page["kinds"] = texts.kinds.list();
  page["streams"] = texts.streams.list();
  page["names"] = texts.names.list();
  page["memory"] = Json::array();
  for (const MemoryUse &use : simulation.memory)
    page["memory"].push_back(memoryJson(use, simulation.stepSeconds));
  page["categories"] = Json::array();
  for (int c = 0; c < kCategories; ++c)
    page["categories"].push_back(
        categoryName(static_cast<planpb::Buffer::Category>(c)));
  page["traffic"] = Json::array();
  for (const Traffic &t : simulation.traffic)
    page["traffic"].push_back(
        {t.row, t.kind, t.over, t.count, t.bytes, t.seconds});
  decisionsJson(decisionsOf(file), page);

  std::string result = page::kReport;
  std::string title;
  for (char c : pageTitle(file))
    title += c == '<'   ? std::string("&lt;")
             : c == '&' ? std::string("&amp;")
                        : std::string(1, c);
  fill(result, "@TITLE@", title);
  fill(result, "@STYLE@", page::kStyle);
  fill(result, "@SCRIPT@", page::kScript);
  fill(result, "@DATA@", embedded(page));
  return result;
}

} // namespace merak::report
