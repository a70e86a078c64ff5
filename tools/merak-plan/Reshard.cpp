#include "tools/merak-plan/Reshard.h"

#include "passes/Resharding/Description.h"
#include "passes/Resharding/Report.h"
#include "runtime/plan/Communication.h"
#include "support/ReadFile.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak {

namespace fs = std::filesystem;
using costmodel::Cluster;
using resharding::Boundary;
using resharding::PlannedMessage;
using resharding::Resharding;
using resharding::ReshardOptions;

void addReshardOptions(CLI::App &command, ReshardRequest &request) {
  command
      .add_option("what", request.what,
                  "plan directory, or a description of boundaries: a JSON file "
                  "or its text (docs/Resharding.md)")
      ->required();
  command.add_option("--cluster", request.cluster,
                     "machine to predict for (default: the one that the plan "
                     "was compiled for, or the description's)");
  command.add_option("--boundary", request.boundary,
                     "the boundary of this name alone");
  command
      .add_option("--reshard", request.strategy,
                  "strategy of all unit tasks (default: the cheapest of each)")
      ->check(CLI::IsMember(resharding::strategyNames()));
  command
      .add_option("--order", request.order,
                  "rule for senders and order (default: best)")
      ->check(CLI::IsMember(resharding::orderRuleNames()));
  auto *table = command.add_flag(
      "--compare", request.compare,
      "one line a boundary: seconds of each strategy and order");
  command.add_flag("--json", request.json, "JSON instead of text")
      ->excludes(table);
  command.add_option("-o,--svg", request.svg,
                     "SVG file of the transfers over time");
}

namespace {

ReshardOptions optionsOf(const ReshardRequest &request) {
  ReshardOptions options;
  resharding::Strategy strategy;
  if (resharding::parseStrategy(request.strategy, strategy))
    options.strategy = strategy;
  if (!request.order.empty())
    resharding::parseOrderRule(request.order, options.order);
  return options;
}

// The boundaries of a plan: messages of a microbatch by stages and channel, in
// the order of the ranks.
std::map<std::string, std::vector<PlannedMessage>>
messagesOf(const LoadedPlan &plan) {
  const CommunicationMap map(plan);
  auto stage = [&](int rank) {
    for (const planpb::Axis &axis : plan.file.ranks(rank).coords())
      if (axis.name() == "pp")
        return axis.size();
    return int64_t{0};
  };
  std::map<std::string, std::vector<PlannedMessage>> result;
  for (int rank = 0; rank < map.ranks().size(); ++rank) {
    const planpb::Program &program = plan.programOf(rank);
    const std::vector<TransferSequence> &all = map.ofRank(rank).transfers;
    for (int t = 0; t < int(all.size()); ++t) {
      const int peer = map.peer(rank, t);
      if (!all[t].send || peer < 0 || all[t].steps.empty())
        continue;
      const CommStep &step = all[t].steps[0];
      const planpb::Operand &operand =
          program.procedures(program.calls(step.call).procedure())
              .instructions(step.instruction)
              .inputs(0);
      const int64_t bytes =
          elementCount(operand) *
          dtypeSize(program.buffers(int(operand.buffer())).dtype());
      // The boxes of a value between meshes have channels of their own,
      // numbered behind its name: "t0.1.0".
      std::string value = all[t].channel;
      for (int number = 0; all[t].channelIndex > 0 && number < 2; ++number)
        value.resize(std::min(value.size(), value.rfind('.')));
      result[fmt::format("stage {} to {}, {}", stage(rank), stage(peer), value)]
          .push_back({rank, peer, bytes});
    }
  }
  return result;
}

Result<Cluster> clusterOf(const LoadedPlan &plan,
                          const ReshardRequest &request) {
  if (!request.cluster.empty())
    return costmodel::readCluster(request.cluster);
  if (plan.file.cluster().empty())
    return costmodel::defaultCluster(plan.file.ranks_size());
  return costmodel::parseCluster(plan.file.cluster(), request.what);
}

// Text, pictures and JSON of what was asked for.
class Output {
public:
  Output(const ReshardRequest &request, Cluster cluster)
      : cluster(std::move(cluster)), request(request) {}

  bool wants(const std::string &name) const {
    return request.boundary.empty() || request.boundary == name;
  }

  Status add(const std::string &name, const Result<Resharding> &found) {
    if (!found)
      return Status(found.status()).withContext(name);
    const std::string text = request.json
                                 ? resharding::toJson(name, *found, cluster)
                                 : resharding::describe(name, *found, cluster);
    texts.push_back(text);
    timeline = resharding::timelineOf(name, *found, cluster);
    return {};
  }

  Result<std::string> finish(const std::vector<std::string> &names) const {
    if (texts.empty())
      return Status::error(
          names.empty()
              ? fmt::format("{}: no value goes from stage to stage",
                            request.what)
              : fmt::format("--boundary={}: there is none; known are {}",
                            request.boundary, fmt::join(names, "; ")));
    if (!request.svg.empty()) {
      if (texts.size() > 1)
        return Status::error("--svg draws one boundary: choose it with "
                             "--boundary=NAME");
      MERAK_RETURN_IF_ERROR(writeText(request.svg, report::drawSvg(timeline)));
    }
    if (request.json)
      return fmt::format("[{}]\n", fmt::join(texts, ",\n"));
    return fmt::format("{}", fmt::join(texts, ""));
  }

  const Cluster cluster;

private:
  const ReshardRequest &request;
  std::vector<std::string> texts;
  report::Timeline timeline; // of the last one
};

Result<std::string> reportOfPlan(const ReshardRequest &request) {
  if (request.compare || !request.strategy.empty())
    return Status::error(
        fmt::format("{}: a plan's messages are given: {} is for descriptions",
                    request.what, request.compare ? "--compare" : "--reshard"));
  Result<LoadedPlan> plan = loadSound(request.what);
  if (!plan)
    return plan.status();
  Result<Cluster> cluster = clusterOf(*plan, request);
  if (!cluster)
    return cluster.status();
  Output output(request, std::move(*cluster));
  std::vector<std::string> names;
  for (const auto &[name, messages] : messagesOf(*plan)) {
    names.push_back(name);
    if (output.wants(name))
      MERAK_RETURN_IF_ERROR(
          output.add(name, resharding::orderMessages(messages, output.cluster,
                                                     optionsOf(request))));
  }
  return output.finish(names);
}

Result<resharding::Description> described(const ReshardRequest &request) {
  std::string text = request.what, name = "description", folder;
  if (text.empty() || text.front() != '{') {
    name = request.what;
    folder = fs::path(name).parent_path().string();
    if (std::string why = readFile(name, text); !why.empty())
      return Status::error(fmt::format("{}: {}", name, why));
  }
  if (request.cluster.empty())
    return resharding::parseDescription(text, name, folder, nullptr);
  Result<Cluster> cluster = costmodel::readCluster(request.cluster);
  if (!cluster)
    return cluster.status();
  return resharding::parseDescription(text, name, folder, &*cluster);
}

Result<std::string> comparisonOf(const ReshardRequest &request,
                                 const resharding::Description &description) {
  std::vector<resharding::Comparison> rows;
  for (const Boundary &b : description.boundaries) {
    if (!request.boundary.empty() && request.boundary != b.name)
      continue;
    Result<resharding::Comparison> row = resharding::compare(
        b.name, b.source, b.target, b.elementBytes, description.cluster);
    if (!row)
      return row.status();
    rows.push_back(std::move(*row));
  }
  return resharding::tableStr(rows);
}

Result<std::string> reportOfDescription(const ReshardRequest &request) {
  Result<resharding::Description> description = described(request);
  if (!description)
    return description.status();
  if (request.compare)
    return comparisonOf(request, *description);
  Output output(request, description->cluster);
  std::vector<std::string> names;
  for (const Boundary &b : description->boundaries) {
    names.push_back(b.name);
    if (output.wants(b.name))
      MERAK_RETURN_IF_ERROR(output.add(
          b.name, resharding::reshard(b.source, b.target, b.elementBytes,
                                      output.cluster, optionsOf(request))));
  }
  return output.finish(names);
}

} // namespace

Result<std::string> reshardReport(const ReshardRequest &request) {
  std::error_code ignored;
  return fs::is_directory(request.what, ignored) ? reportOfPlan(request)
                                                 : reportOfDescription(request);
}

} // namespace merak
