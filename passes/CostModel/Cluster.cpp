#include "passes/CostModel/Cluster.h"

#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace merak::costmodel {

using Json = nlohmann::json;

// Orders of magnitude of one core of a current x86-64 server: matmul rate,
// share of the memory bandwidth, copies through shared memory. Decisions depend
// on their ratios; a cluster file gives measured ones.
constexpr double kCpuFlops = 5e10;
constexpr double kCpuMemoryBandwidth = 1e10;
constexpr double kCpuLaunchSeconds = 1e-6;
constexpr double kSharedMemoryBandwidth = 5e9;
constexpr double kSharedMemoryLatency = 5e-6;

Cluster defaultCluster(int64_t ranks) {
  Cluster cluster;
  cluster.name = "in-process cpu ranks";
  cluster.count = cluster.perNode = ranks;
  cluster.device = {"cpu", kCpuFlops, kCpuMemoryBandwidth, 0,
                    kCpuLaunchSeconds};
  cluster.intra =
      cluster.inter = {kSharedMemoryBandwidth, kSharedMemoryLatency};
  return cluster;
}

std::string Cluster::toJson() const {
  nlohmann::ordered_json json;
  auto link = [](const Link &link) {
    nlohmann::ordered_json out;
    out["bandwidth"] = link.bandwidth;
    out["latency"] = link.latency;
    return out;
  };
  json["name"] = name;
  json["devices"] = count;
  json["devices_per_node"] = perNode;
  json["device"]["kind"] = device.kind;
  json["device"]["flops"] = device.flops;
  json["device"]["memory_bandwidth"] = device.memoryBandwidth;
  json["device"]["memory_bytes"] = device.memoryBytes;
  json["device"]["launch_seconds"] = device.launchSeconds;
  json["links"]["intra"] = link(intra);
  json["links"]["inter"] = link(inter);
  return json.dump(1) + "\n";
}

namespace {

class ClusterReader {
public:
  explicit ClusterReader(const std::string &file) : file(file) {}

  Result<Cluster> read(const std::string &text) {
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object())
      return Status::error(file + ": expected a JSON object");
    unknown(json, "",
            {"name", "devices", "devices_per_node", "device", "links"});
    if (json.contains("name")) {
      if (json["name"].is_string())
        out.name = json["name"];
      else
        problem("'name' is not a string");
    }
    out.count = whole(json, "", "devices", 1, true, 1);
    out.perNode = whole(json, "", "devices_per_node", 1, false, out.count);
    if (out.count > 0 && out.perNode > 0 && out.count % out.perNode != 0)
      problem(fmt::format("'devices' is {}, not a multiple of "
                          "'devices_per_node', which is {}",
                          out.count, out.perNode));
    readDevice(json);
    readLinks(json);
    if (!status.ok())
      return status;
    return out;
  }

private:
  void problem(const std::string &text) {
    status.merge(Status::error(file + ": " + text));
  }

  void unknown(const Json &json, const std::string &path,
               const std::set<std::string> &known) {
    for (const auto &[key, value] : json.items())
      if (!known.count(key))
        problem(fmt::format("unknown field '{}{}'", path, key));
  }

  // Null if absent, with a problem if it is required.
  const Json *field(const Json &json, const std::string &path,
                    const std::string &key, bool required) {
    if (json.is_object() && json.contains(key))
      return &json[key];
    if (required)
      problem(fmt::format("'{}{}' is missing", path, key));
    return nullptr;
  }

  int64_t whole(const Json &json, const std::string &path,
                const std::string &key, int64_t least, bool required,
                int64_t otherwise) {
    const Json *value = field(json, path, key, required);
    if (!value)
      return otherwise;
    if (!value->is_number_integer() || value->get<int64_t>() < least) {
      problem(fmt::format("'{}{}' is {}, expected a whole number of at least "
                          "{}",
                          path, key, value->dump(), least));
      return otherwise;
    }
    return value->get<int64_t>();
  }

  double real(const Json &json, const std::string &path, const std::string &key,
              bool positive, bool required) {
    const Json *value = field(json, path, key, required);
    if (!value)
      return 0;
    double number = value->is_number() ? value->get<double>() : -1;
    if (!value->is_number() || number < 0 || (positive && number == 0)) {
      problem(fmt::format("'{}{}' is {}, expected a number {}", path, key,
                          value->dump(),
                          positive ? "above 0" : "of at least 0"));
      return 0;
    }
    return number;
  }

  void readDevice(const Json &json) {
    const Json *device = field(json, "", "device", true);
    if (!device)
      return;
    if (!device->is_object())
      return problem("'device' is not an object");
    unknown(*device, "device.",
            {"kind", "flops", "memory_bandwidth", "memory_bytes",
             "launch_seconds"});
    if (const Json *kind = field(*device, "device.", "kind", true)) {
      if (*kind == "cpu" || *kind == "cuda")
        out.device.kind = *kind;
      else
        problem(fmt::format("'device.kind' is {}, expected \"cpu\" or \"cuda\"",
                            kind->dump()));
    }
    out.device.flops = real(*device, "device.", "flops", true, true);
    out.device.memoryBandwidth =
        real(*device, "device.", "memory_bandwidth", true, true);
    out.device.memoryBytes =
        whole(*device, "device.", "memory_bytes", 1, true, 0);
    out.device.launchSeconds =
        real(*device, "device.", "launch_seconds", false, false);
  }

  void readLinks(const Json &json) {
    bool several = out.count > 1;
    const Json *links = field(json, "", "links", several);
    if (!links)
      return;
    if (!links->is_object())
      return problem("'links' is not an object");
    unknown(*links, "links.", {"intra", "inter"});
    // A link is needed if some pair of devices meets over it.
    out.intra = link(*links, "intra", several && out.perNode > 1);
    out.inter = link(*links, "inter", out.count > out.perNode);
  }

  Link link(const Json &links, const std::string &key, bool required) {
    const Json *value = field(links, "links.", key, required);
    if (!value)
      return {};
    std::string path = "links." + key + ".";
    if (!value->is_object()) {
      problem(fmt::format("'links.{}' is not an object", key));
      return {};
    }
    unknown(*value, path, {"bandwidth", "latency"});
    return {real(*value, path, "bandwidth", true, true),
            real(*value, path, "latency", false, true)};
  }

  std::string file;
  Cluster out;
  Status status;
};

} // namespace

Result<Cluster> parseCluster(const std::string &json,
                             const std::string &fileName) {
  return ClusterReader(fileName).read(json);
}

Result<Cluster> readCluster(const std::string &path) {
  std::ifstream file(path);
  if (!file)
    return Status::error(
        fmt::format("cannot read the cluster file '{}'", path));
  std::ostringstream text;
  text << file.rdbuf();
  return parseCluster(text.str(), path);
}

} // namespace merak::costmodel
