#include "passes/Resharding/Report.h"

#include "passes/Resharding/FairShares.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>

namespace merak::resharding {

using costmodel::Cluster;
using Json = nlohmann::ordered_json;
using report::humanSeconds;

namespace {

// "[0:512, 256:512+768:1024]": the runs of each dimension.
std::string boxStr(const UnitTask &task) {
  std::vector<std::string> dims;
  for (const std::vector<SharedRun> &runs : task.runs) {
    std::vector<std::string> parts;
    for (const SharedRun &run : runs)
      parts.push_back(
          fmt::format("{}:{}", run.global, run.global + run.length));
    dims.push_back(fmt::format("{}", fmt::join(parts, "+")));
  }
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

struct Span {
  double begin = -1, end = 0;
};

// When the transfers of each task run.
std::vector<Span> spansOf(const Leg &leg) {
  std::vector<Span> spans(leg.tasks.size());
  for (size_t i = 0; i < leg.transfers.size(); ++i) {
    Span &span = spans[leg.transfers[i].task];
    const TransferTime &time = leg.times[i];
    span.begin = span.begin < 0 ? time.begin : std::min(span.begin, time.begin);
    span.end = std::max(span.end, time.end);
  }
  return spans;
}

std::string packing(const UnitTask &task) {
  std::vector<std::string> what;
  if (!task.contiguousInSource())
    what.push_back("packed");
  if (!task.contiguousInTarget())
    what.push_back("unpacked");
  return what.empty() ? "" : fmt::format(", {}", fmt::join(what, " and "));
}

std::string howStr(const UnitTask &task, const TaskPlan &plan) {
  if (plan.sender < 0)
    return fmt::format("kept by {}", deviceStr(task.keepers));
  std::string text =
      fmt::format("{} to {} by {}", plan.sender, deviceStr(task.receivers),
                  nameOf(plan.strategy));
  if (plan.chunks > 1)
    text += fmt::format(" in {} chunks", plan.chunks);
  if (!task.keepers.empty())
    text += fmt::format(", kept by {}", deviceStr(task.keepers));
  return text + packing(task);
}

std::string legStr(const Leg &leg, int64_t elementBytes) {
  std::string text;
  const std::vector<Span> spans = spansOf(leg);
  for (int t : leg.order.order)
    text += fmt::format("  task {} {}: {} bytes, {}; {} to {}\n", t,
                        boxStr(leg.tasks[t]),
                        leg.tasks[t].elements() * elementBytes,
                        howStr(leg.tasks[t], leg.plans[t]),
                        humanSeconds(std::max(0.0, spans[t].begin)),
                        humanSeconds(spans[t].end));
  return text;
}

} // namespace

std::string describe(const std::string &name, const Resharding &resharding,
                     const Cluster &cluster) {
  const double factor =
      resharding.bound > 0 ? resharding.seconds / resharding.bound : 1;
  std::string text = fmt::format(
      "{}: predicted {}, lower bound {}, factor {:.3f}; {} bytes between "
      "nodes\n",
      name, humanSeconds(resharding.seconds), humanSeconds(resharding.bound),
      factor, int64_t(resharding.sentBytes(cluster)));
  for (const Leg &leg : resharding.legs) {
    const bool placed = !leg.source.devices.empty();
    if (placed)
      text += fmt::format("  from {}\n  to   {}\n", leg.source.str(),
                          leg.target.str());
    text += fmt::format("  {} unit tasks, order '{}'{}\n", leg.tasks.size(),
                        orderRuleNames()[size_t(leg.order.rule)],
                        leg.order.optimal ? ", proved to be the best" : "");
    text += legStr(leg, resharding.elementBytes);
  }
  return text;
}

namespace {

Json transferJson(const Transfer &transfer, const TransferTime &time) {
  return {{"task", transfer.task},
          {"kind", nameOf(transfer.kind)},
          {"participants", transfer.participants},
          {"elements", {transfer.begin, transfer.end}},
          {"chunks", transfer.chunks},
          {"begin", time.begin},
          {"end", time.end}};
}

Json boxJson(const SharedBox &box) {
  return {{"extent", box.extent},
          {"global", box.global},
          {"source", box.source},
          {"target", box.target},
          {"message", box.message}};
}

Json taskJson(const UnitTask &task, const TaskPlan &plan) {
  Json json{{"elements", task.elements()},
            {"senders", task.senders},
            {"receivers", task.receivers},
            {"keepers", task.keepers},
            {"contiguous_in_source", task.contiguousInSource()},
            {"contiguous_in_target", task.contiguousInTarget()}};
  for (const SharedBox &box : task.boxes())
    json["boxes"].push_back(boxJson(box));
  if (plan.sender < 0)
    return json;
  json["sender"] = plan.sender;
  json["strategy"] = nameOf(plan.strategy);
  json["chunks"] = plan.chunks;
  json["seconds"] = plan.seconds;
  return json;
}

Json legJson(const Leg &leg) {
  Json json;
  if (!leg.source.devices.empty()) {
    json["source"] = leg.source.str();
    json["target"] = leg.target.str();
  }
  json["order_rule"] = orderRuleNames()[size_t(leg.order.rule)];
  json["optimal"] = leg.order.optimal;
  json["order"] = leg.order.order;
  for (size_t t = 0; t < leg.tasks.size(); ++t)
    json["tasks"].push_back(taskJson(leg.tasks[t], leg.plans[t]));
  for (size_t i = 0; i < leg.transfers.size(); ++i)
    json["transfers"].push_back(transferJson(leg.transfers[i], leg.times[i]));
  return json;
}

} // namespace

std::string toJson(const std::string &name, const Resharding &resharding,
                   const Cluster &cluster) {
  Json json{{"name", name},
            {"element_bytes", resharding.elementBytes},
            {"lower_bound_seconds", resharding.bound},
            {"predicted_seconds", resharding.seconds},
            {"bytes_between_nodes", resharding.sentBytes(cluster)}};
  for (const Leg &leg : resharding.legs)
    json["legs"].push_back(legJson(leg));
  return json.dump(1);
}

namespace {

// The interfaces to draw.
std::map<int, int> rowsOf(const Resharding &resharding,
                          const Interfaces &interfaces) {
  std::map<int, int> all, outside;
  for (const Leg &leg : resharding.legs)
    for (const TransferTime &time : leg.times)
      for (const TransferTime::Window &window : time.windows) {
        all[window.interface] = 0;
        if (interfaces.betweenNodes(window.interface))
          outside[window.interface] = 0;
      }
  return outside.empty() ? all : outside;
}

} // namespace

report::Timeline timelineOf(const std::string &name,
                            const Resharding &resharding,
                            const Cluster &cluster) {
  report::Timeline timeline;
  timeline.title = fmt::format("{}, lower bound {}, predicted", name,
                               humanSeconds(resharding.bound));
  const Interfaces interfaces(cluster);
  std::map<int, int> rows = rowsOf(resharding, interfaces);
  for (auto &[interface, row] : rows) {
    row = int(timeline.rows.size());
    timeline.rows.push_back(interfaces.name(interface));
  }
  for (const Leg &leg : resharding.legs)
    for (size_t i = 0; i < leg.transfers.size(); ++i)
      for (const TransferTime::Window &window : leg.times[i].windows) {
        if (!rows.count(window.interface))
          continue;
        const Transfer &transfer = leg.transfers[i];
        report::Span span;
        span.row = rows[window.interface];
        span.stream = "links";
        span.kind = "t";
        span.microbatch = transfer.task;
        span.name = fmt::format("{} {}", nameOf(transfer.kind),
                                boxStr(leg.tasks[transfer.task]));
        span.begin = window.begin;
        span.end = window.end;
        timeline.spans.push_back(std::move(span));
      }
  return timeline;
}

Result<Comparison> compare(const std::string &name, const Placement &source,
                           const Placement &target, int64_t elementBytes,
                           const Cluster &cluster) {
  Result<Resharding> chosen = reshard(source, target, elementBytes, cluster);
  if (!chosen)
    return Status(chosen.status()).withContext(name);
  auto pinned = [&](Strategy strategy, OrderRule order) {
    ReshardOptions options;
    options.strategy = strategy;
    options.order = order;
    return *reshard(source, target, elementBytes, cluster, options);
  };
  auto seconds = [&](Strategy strategy, OrderRule order) {
    return pinned(strategy, order).seconds;
  };
  const Resharding naive = pinned(Strategy::Broadcast, OrderRule::Naive);
  Comparison result;
  result.name = name;
  result.tasks = int(unitTasks(source, target)->size());
  result.bound = chosen->bound;
  result.chosen = chosen->seconds;
  result.sendRecv = seconds(Strategy::SendRecv, OrderRule::Best);
  result.alpa = seconds(Strategy::Alpa, OrderRule::Best);
  result.naive = naive.seconds;
  result.shared =
      fairSeconds(naive.legs[0].transfers, false, elementBytes, cluster);
  result.size = seconds(Strategy::Broadcast, OrderRule::Size);
  result.sorted = seconds(Strategy::Broadcast, OrderRule::Sorted);
  result.ordered = seconds(Strategy::Broadcast, OrderRule::Best);
  return result;
}

std::string tableStr(const std::vector<Comparison> &comparisons) {
  size_t width = 8;
  for (const Comparison &row : comparisons)
    width = std::max(width, row.name.size());
  auto line = [&](const std::string &name, const auto &...cells) {
    std::string text = fmt::format("{:<{}}", name, width);
    ((text += fmt::format(" {:>9}", cells)), ...);
    return text + "\n";
  };
  auto number = [](double value) { return fmt::format("{:.3f}", value); };
  std::string text =
      line("seconds", "tasks", "send-recv", "alpa", "naive", "shared", "size",
           "sorted", "ordered", "chosen", "bound", "factor");
  for (const Comparison &row : comparisons)
    text += line(row.name, row.tasks, number(row.sendRecv), number(row.alpa),
                 number(row.naive), number(row.shared), number(row.size),
                 number(row.sorted), number(row.ordered), number(row.chosen),
                 number(row.bound),
                 number(row.bound > 0 ? row.chosen / row.bound : 1));
  return text;
}

} // namespace merak::resharding
