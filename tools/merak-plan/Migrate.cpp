#include "tools/merak-plan/Migrate.h"

#include "passes/Resharding/Description.h"
#include "runtime/report/Timeline.h"
#include "tools/merak-plan/Reshard.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

namespace merak {

using costmodel::Cluster;
using migration::DeviceBytes;
using migration::Migration;
using resharding::PlannedMessage;
using resharding::RoundsPrice;
using Json = nlohmann::ordered_json;

void addMigrateOptions(CLI::App &command, MigrateRequest &request) {
  command.add_option("source", request.source, "plan whose state is there")
      ->required();
  command
      .add_option("target", request.target,
                  "plan of the same model that goes on with it")
      ->required();
  command.add_option("--cluster", request.cluster,
                     "machine to predict for (default: the larger of those "
                     "that the plans were compiled for)");
  command.add_option("--source-devices", request.sourceDevices,
                     "devices of the first plan's ranks: 0-3,8 (default: rank "
                     "r on device r)");
  command.add_option("--target-devices", request.targetDevices,
                     "devices of the second plan's ranks");
  command.add_option("--bucket", request.bucketBytes,
                     "most bytes that a device needs for what it sends and "
                     "receives at a time (default: 64 MiB)");
  command.add_flag("--json", request.json, "JSON instead of text");
}

namespace {

Result<std::vector<int>> devicesOf(const std::string &option,
                                   const std::string &text) {
  std::vector<int> result;
  if (text.empty())
    return result;
  auto devices = resharding::parseDevices(text);
  if (!devices)
    return Status(devices.status()).withContext(option);
  return std::vector<int>(devices->begin(), devices->end());
}

Result<Cluster> clusterOfPlan(const LoadedPlan &plan, const std::string &name) {
  return plan.file.cluster().empty()
             ? costmodel::defaultCluster(plan.file.ranks_size())
             : costmodel::parseCluster(plan.file.cluster(), name);
}

Result<Cluster> clusterOf(const MigrateRequest &request,
                          const LoadedPlan &source, const LoadedPlan &target) {
  if (!request.cluster.empty())
    return costmodel::readCluster(request.cluster);
  auto from = clusterOfPlan(source, request.source);
  auto to = clusterOfPlan(target, request.target);
  if (!from || !to) {
    Status problems = from.status();
    problems.merge(to.status());
    return problems;
  }
  return to->count >= from->count ? to : from;
}

// Devices by number, as far as the plans use them.
std::vector<int> nodesOf(const Cluster &cluster) {
  std::vector<int> nodes;
  for (int64_t device = 0; device < cluster.count; ++device)
    nodes.push_back(int(cluster.node(device)));
  return nodes;
}

struct Prediction {
  Migration migration;
  Cluster cluster;
  RoundsPrice price;

  std::string fullest() const {
    return price.fullest < 0
               ? ""
               : resharding::Interfaces(cluster).name(price.fullest);
  }
};

Result<Prediction> predict(const MigrateRequest &request) {
  auto source = loadSound(request.source), target = loadSound(request.target);
  auto from = devicesOf("--source-devices", request.sourceDevices);
  auto to = devicesOf("--target-devices", request.targetDevices);
  Status problems = source.status();
  for (const Status &status : {target.status(), from.status(), to.status()})
    problems.merge(status);
  if (!problems.ok())
    return problems;
  auto cluster = clusterOf(request, *source, *target);
  if (!cluster)
    return cluster.status();
  auto migration = migration::planMigration(
      *source, *target,
      {{std::move(*from), std::move(*to), nodesOf(*cluster)},
       request.bucketBytes});
  if (!migration)
    return migration.status();
  if (Status sound = migration::verifyMigration(*migration, *source, *target);
      !sound.ok())
    return std::move(sound).withContext("internal error");
  std::vector<std::vector<PlannedMessage>> rounds;
  for (const migration::Bucket &bucket : migration->buckets) {
    std::vector<PlannedMessage> &round = rounds.emplace_back();
    for (const migration::Message &message : bucket.messages)
      round.push_back({message.sender, message.receiver, message.bytes});
  }
  std::vector<double> copied;
  for (const DeviceBytes &device : migration->byDevice())
    copied.push_back(double(device.copied));
  auto price = resharding::priceRounds(rounds, copied, *cluster);
  if (!price)
    return price.status();
  return Prediction{std::move(*migration), std::move(*cluster), *price};
}

// "rank 3 to 1", "rank 3 leaves", "rank 1 comes".
std::string rolesStr(const Migration &migration, size_t device) {
  const int from = migration.sourceRank[device];
  const int to = migration.targetRank[device];
  if (to < 0)
    return fmt::format("rank {} ends", from);
  return from < 0 ? fmt::format("rank {} begins", to)
                  : fmt::format("rank {} to {}", from, to);
}

bool isUsed(const Migration &migration, size_t device) {
  return migration.sourceRank[device] >= 0 || migration.targetRank[device] >= 0;
}

std::string describe(const MigrateRequest &request,
                     const Prediction &prediction) {
  const Migration &migration = prediction.migration;
  const RoundsPrice &price = prediction.price;
  const DeviceBytes total = migration.total();
  std::string text = fmt::format(
      "{} to {}: predicted {}, lower bound {}\n"
      "  state {} bytes of {} tensors: {} kept, {} copied within devices, {} "
      "sent\n",
      request.source, request.target, report::humanSeconds(price.seconds),
      report::humanSeconds(price.bound), total.kept + total.copied + total.sent,
      migration.tensors.size(), total.kept, total.copied, total.sent);
  const size_t buckets = migration.buckets.size();
  text += fmt::format("  {} messages in {} bucket{} of at most {} bytes\n",
                      migration.messages(), buckets, buckets == 1 ? "" : "s",
                      migration.bucketBytes);
  text += fmt::format("  links carry {:.0f} bytes inside nodes, {:.0f} between "
                      "them",
                      price.inside, price.between);
  if (price.fullest >= 0)
    text += fmt::format("; the fullest ({}) {:.0f}", prediction.fullest(),
                        price.fullestBytes);
  text += fmt::format("\n  {:<7} {:<16} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
                      "device", "", "kept", "copied", "sent", "received",
                      "buffers");
  const std::vector<DeviceBytes> bytes = migration.byDevice();
  for (size_t device = 0; device < bytes.size(); ++device)
    if (isUsed(migration, device))
      text += fmt::format(
          "  {:<7} {:<16} {:>12} {:>12} {:>12} {:>12} {:>12}\n", device,
          rolesStr(migration, device), bytes[device].kept, bytes[device].copied,
          bytes[device].sent, bytes[device].received, bytes[device].buffers);
  return text;
}

std::string toJson(const MigrateRequest &request,
                   const Prediction &prediction) {
  const Migration &migration = prediction.migration;
  const RoundsPrice &price = prediction.price;
  const DeviceBytes total = migration.total();
  Json devices = Json::array();
  const std::vector<DeviceBytes> bytes = migration.byDevice();
  auto rankOf = [](int rank) { return rank < 0 ? Json() : Json(rank); };
  for (size_t device = 0; device < bytes.size(); ++device)
    if (isUsed(migration, device))
      devices.push_back({{"device", device},
                         {"source_rank", rankOf(migration.sourceRank[device])},
                         {"target_rank", rankOf(migration.targetRank[device])},
                         {"kept_bytes", bytes[device].kept},
                         {"copied_bytes", bytes[device].copied},
                         {"sent_bytes", bytes[device].sent},
                         {"received_bytes", bytes[device].received},
                         {"buffer_bytes", bytes[device].buffers}});
  const Json fullest = price.fullest < 0
                           ? Json()
                           : Json{{"name", prediction.fullest()},
                                  {"bytes", int64_t(price.fullestBytes)}};
  const Json report = {{"source", request.source},
                       {"target", request.target},
                       {"tensors", migration.tensors.size()},
                       {"kept_bytes", total.kept},
                       {"copied_bytes", total.copied},
                       {"sent_bytes", total.sent},
                       {"inside_bytes", int64_t(price.inside)},
                       {"between_bytes", int64_t(price.between)},
                       {"fullest_link", fullest},
                       {"messages", migration.messages()},
                       {"buckets", migration.buckets.size()},
                       {"bucket_bytes", migration.bucketBytes},
                       {"buffer_bytes", total.buffers},
                       {"seconds", price.seconds},
                       {"bound_seconds", price.bound},
                       {"devices", devices}};
  return report.dump(2) + "\n";
}

} // namespace

Result<std::string> migrateReport(const MigrateRequest &request) {
  auto prediction = predict(request);
  if (!prediction)
    return prediction.status();
  return request.json ? toJson(request, *prediction)
                      : describe(request, *prediction);
}

} // namespace merak
