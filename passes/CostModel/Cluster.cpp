#include "passes/CostModel/Cluster.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace merak::costmodel {

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
  Device &device = cluster.kinds.front();
  device.rates["f32"] = kCpuFlops;
  device.memoryBandwidth = kCpuMemoryBandwidth;
  device.launchSeconds = kCpuLaunchSeconds;
  cluster.intra = {kSharedMemoryBandwidth, kSharedMemoryLatency};
  cluster.inter = cluster.intra;
  return cluster;
}

bool Device::isFasterOnMore() const {
  if (!distances.empty())
    return false;
  const auto rises = [](const KernelRates &rates) {
    for (const SizePoint &few : rates.sizes)
      for (const SizePoint &many : rates.sizes)
        if (few.bytes < many.bytes && few.bandwidth > many.bandwidth)
          return false;
    for (const ShapePoint &few : rates.shapes)
      for (const ShapePoint &many : rates.shapes)
        if (few.m <= many.m && few.n <= many.n && few.k <= many.k &&
            few.efficiency > many.efficiency)
          return false;
    return true;
  };
  return std::all_of(kernels.begin(), kernels.end(),
                     [&](const auto &kernel) { return rises(kernel.second); });
}

double Device::flops(const std::string &dtype) const {
  auto it = rates.find(dtype);
  if (it == rates.end() && dtype == "f8")
    it = rates.find("bf16");
  if (it == rates.end())
    it = rates.find("f32");
  return it == rates.end() ? 0 : it->second;
}

double Cluster::rate(int64_t index) const {
  return hostShare(index) * (rateOf.empty() ? 1 : rateOf[size_t(index)]);
}

double Cluster::hostShare(int64_t index) const {
  if (cores <= 0)
    return 1;
  int64_t neighbours = 0;
  for (int64_t i = 0; i < count; ++i)
    neighbours += node(i) == node(index);
  double wanted = double(neighbours * threads);
  return std::min(1.0, double(cores) / wanted);
}

namespace {

using Json = nlohmann::ordered_json;

Json toJson(const Link &link) {
  Json out;
  out["bandwidth"] = link.bandwidth;
  out["latency"] = link.latency;
  if (link.shared)
    out["shared"] = true;
  return out;
}

Json toJson(const KernelRates &rates) {
  Json out = Json::object();
  if (rates.launch >= 0)
    out["launch_seconds"] = rates.launch;
  if (rates.flops > 0)
    out["flops"] = rates.flops;
  if (rates.adds)
    out["combine"] = "sum";
  auto add = [&](const char *key, std::vector<double> row,
                 const std::vector<double> &farther) {
    row.insert(row.end(), farther.begin(), farther.end());
    out[key].push_back(row);
  };
  for (const ShapePoint &point : rates.shapes)
    add("shapes", {point.m, point.n, point.k, point.efficiency}, point.farther);
  for (const SizePoint &point : rates.sizes)
    add("sizes", {point.bytes, point.bandwidth}, point.farther);
  return out;
}

Json toJson(const Device &device) {
  Json out;
  out["backend"] = device.backend;
  out["flops"] = device.rates;
  out["memory_bandwidth"] = device.memoryBandwidth;
  if (device.memoryBytes > 0)
    out["memory_bytes"] = device.memoryBytes;
  out["launch_seconds"] = device.launchSeconds;
  if (!device.distances.empty())
    out["distances"] = device.distances;
  for (const auto &[name, rates] : device.kernels)
    out["kernels"][name] = toJson(rates);
  if (device.computeSlowdown != 1 || device.communicationSlowdown != 1)
    out["slowdown"] = {{"compute", device.computeSlowdown},
                       {"communication", device.communicationSlowdown}};
  return out;
}

// Runs of equal nodes. The kind of a node of one kind is a name, else a list.
Json nodesToJson(const Cluster &cluster) {
  std::vector<std::vector<std::string>> nodes;
  int64_t last = -1;
  for (int64_t i = 0; i < cluster.count; ++i) {
    if (cluster.node(i) != last)
      nodes.emplace_back();
    last = cluster.node(i);
    nodes.back().push_back(cluster.device(i).name);
  }
  Json out = Json::array();
  for (size_t i = 0; i < nodes.size();) {
    size_t end = i;
    while (end < nodes.size() && nodes[end] == nodes[i])
      ++end;
    const std::vector<std::string> &kinds = nodes[i];
    bool uniform = std::count(kinds.begin(), kinds.end(), kinds.front()) ==
                   int64_t(kinds.size());
    Json node;
    node["count"] = end - i;
    if (uniform) {
      node["kind"] = kinds.front();
      node["devices"] = kinds.size();
    } else {
      node["kinds"] = kinds;
    }
    out.push_back(node);
    i = end;
  }
  return out;
}

const char *nameOf(Algorithm algorithm) {
  return algorithm == Algorithm::Ring   ? "ring"
         : algorithm == Algorithm::Tree ? "tree"
         : algorithm == Algorithm::Nccl ? "nccl"
                                        : "direct";
}

} // namespace

std::string Cluster::toJson() const {
  Json json;
  json["name"] = name;
  for (const Device &kind : kinds)
    json["kinds"][kind.name] = costmodel::toJson(kind);
  json["nodes"] = nodesToJson(*this);
  if (intra.bandwidth > 0)
    json["links"]["intra"] = costmodel::toJson(intra);
  if (inter.bandwidth > 0)
    json["links"]["inter"] = costmodel::toJson(inter);
  json["collectives"] = nameOf(algorithm);
  if (cores > 0)
    json["host"] = {{"cores", cores}, {"threads", threads}};
  for (size_t i = 0; i < rateOf.size(); ++i)
    if (rateOf[i] != 1)
      json["rates"][std::to_string(i)] = rateOf[i];
  return json.dump(1) + "\n";
}

} // namespace merak::costmodel
