#include "tools/merak-plan/Reshard.h"

#include "passes/Resharding/Description.h"
#include "passes/Resharding/Messages.h"
#include "passes/Resharding/Report.h"
#include "passes/Resharding/ReshardPlan.h"
#include "runtime/plan/Communication.h"
#include "runtime/plan/Verify.h"
#include "support/ReadFile.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <tuple>

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
  command.add_option("--plan", request.plan,
                     "plan to write that does one boundary of a description in "
                     "each step and nothing else, to measure it");
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

Result<Cluster> ownCluster(const LoadedPlan &plan,
                           const ReshardRequest &request) {
  if (plan.file.cluster().empty())
    return costmodel::defaultCluster(plan.file.ranks_size());
  return costmodel::parseCluster(plan.file.cluster(), request.what);
}
Result<Cluster> clusterOf(const LoadedPlan &plan,
                          const ReshardRequest &request) {
  if (!request.cluster.empty())
    return costmodel::readCluster(request.cluster);
  return ownCluster(plan, request);
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

// The boundaries of a plan whose stages lie on meshes of their own, planned
// again as its file says.
class Crossings {
public:
  explicit Crossings(const LoadedPlan &plan) {
    for (const planpb::Channel &channel : plan.file.channels())
      for (const planpb::RankPair &pair : channel.pairs())
        ends.insert({channel.name(), pair.from(), pair.to()});
  }

  Result<Resharding> find(const Boundary &boundary, const ReshardOptions &how,
                          const Cluster &own) const {
    Result<Resharding> found = resharding::reshard(
        boundary.source, boundary.target, boundary.elementBytes, own, how);
    if (found)
      MERAK_RETURN_IF_ERROR(check(boundary, *found));
    return found;
  }

private:
  using End = std::tuple<std::string, int64_t, int64_t>;

  // That these are the messages which the plan executes.
  Status check(const Boundary &boundary, const Resharding &found) const {
    Result<std::vector<resharding::BoxMessage>> messages =
        resharding::messagesOf(found);
    if (!messages)
      return messages.status();
    const std::string value =
        boundary.name.substr(boundary.name.rfind(' ') + 1);
    std::map<int64_t, int> sent, received;
    std::set<End> wanted, have;
    for (const resharding::BoxMessage &message : *messages) {
      const int out = sent[message.from]++, in = received[message.to]++;
      wanted.insert(
          {fmt::format("{}.{}.{}", value, out, in), message.from, message.to});
    }
    for (auto it = ends.lower_bound({value + ".", 0, 0});
         it != ends.end() && std::get<0>(*it).rfind(value + ".", 0) == 0; ++it)
      have.insert(*it);
    if (have == wanted)
      return {};
    return Status::error(fmt::format("the plan's messages are not those that "
                                     "its {} describes",
                                     resharding::kBoundariesFile));
  }

  std::set<End> ends; // of all channels
};

Status addCrossings(const LoadedPlan &plan, const std::string &text,
                    const ReshardRequest &request, Output &output,
                    std::vector<std::string> &names) {
  if (!request.order.empty())
    return Status::error(fmt::format("{}: the order of a plan's messages is "
                                     "given: --order is for descriptions",
                                     request.what));
  Result<Cluster> own = ownCluster(plan, request);
  if (!own)
    return own.status();
  Result<resharding::Description> description = resharding::parseDescription(
      text, request.what + "/" + resharding::kBoundariesFile, "", &*own);
  if (!description)
    return description.status();
  const Result<ReshardOptions> how =
      resharding::optionsOfPlan(description->strategy.value_or(""));
  const Crossings crossings(plan);
  for (const Boundary &boundary : description->boundaries) {
    names.push_back(boundary.name);
    if (!output.wants(boundary.name))
      continue;
    Result<Resharding> found = crossings.find(boundary, *how, *own);
    if (found && !request.cluster.empty())
      MERAK_RETURN_IF_ERROR(resharding::predictOn(*found, output.cluster)
                                .withContext(boundary.name));
    MERAK_RETURN_IF_ERROR(output.add(boundary.name, found));
  }
  return {};
}

Result<std::string> reportOfPlan(const ReshardRequest &request) {
  if (request.compare || !request.strategy.empty() || !request.plan.empty())
    return Status::error(fmt::format(
        "{}: a plan's messages are given: {} is for descriptions", request.what,
        request.compare        ? "--compare"
        : request.plan.empty() ? "--reshard"
                               : "--plan"));
  Result<LoadedPlan> plan = loadSound(request.what);
  if (!plan)
    return plan.status();
  Result<Cluster> cluster = clusterOf(*plan, request);
  if (!cluster)
    return cluster.status();
  Output output(request, std::move(*cluster));
  std::vector<std::string> names;
  std::string text;
  if (readFile(fs::path(request.what) / resharding::kBoundariesFile, text)
          .empty()) {
    MERAK_RETURN_IF_ERROR(addCrossings(*plan, text, request, output, names));
    return output.finish(names);
  }
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

// In plans holders share what several receivers get by send-recv, and nothing
// is kept beside the tensors.
ReshardOptions asPlanned(ReshardOptions options) {
  options.inPlace = true;
  options.apart = options.strategy == resharding::Strategy::SendRecv;
  return options;
}

Status writePlanOf(const ReshardRequest &request, const Boundary &boundary,
                   const Resharding &found, const Cluster &cluster) {
  Result<LoadedPlan> plan = resharding::planOf(boundary, found, cluster);
  if (!plan)
    return Status(plan.status()).withContext(boundary.name);
  plan->file.set_version(versionOf(plan->file));
  MERAK_RETURN_IF_ERROR(verifyPlan(*plan));
  return savePlan(request.plan, plan->file, plan->programs);
}

Result<std::string> reportOfDescription(const ReshardRequest &request) {
  Result<resharding::Description> description = described(request);
  if (!description)
    return description.status();
  if (request.compare)
    return comparisonOf(request, *description);
  Output output(request, description->cluster);
  ReshardOptions options = optionsOf(request);
  if (description->strategy && request.strategy.empty()) {
    const resharding::OrderRule order = options.order;
    options = *resharding::optionsOfPlan(*description->strategy);
    options.order = order;
  }
  std::vector<std::string> names;
  if (!request.plan.empty()) {
    options = asPlanned(options);
    if (request.boundary.empty() && description->boundaries.size() > 1)
      return Status::error("--plan writes one boundary: choose it with "
                           "--boundary=NAME");
  }
  for (const Boundary &b : description->boundaries) {
    names.push_back(b.name);
    if (!output.wants(b.name))
      continue;
    const Result<Resharding> found = resharding::reshard(
        b.source, b.target, b.elementBytes, output.cluster, options);
    MERAK_RETURN_IF_ERROR(output.add(b.name, found));
    if (!request.plan.empty())
      MERAK_RETURN_IF_ERROR(writePlanOf(request, b, *found, output.cluster));
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
