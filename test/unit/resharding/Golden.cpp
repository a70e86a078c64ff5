#include "Golden.h"

#include <fstream>

namespace merak::resharding {

const nlohmann::json &golden() {
  static const nlohmann::json all = [] {
    std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/resharding.json");
    return nlohmann::json::parse(file);
  }();
  return all;
}

Placement goldenPlacement(const nlohmann::json &entry,
                          const std::vector<int64_t> &shape, int64_t first) {
  static const char *const names[] = {"h", "d"};
  Placement placement;
  placement.layout = layout::Layout::replicated(shape);
  int64_t count = 1;
  for (int axis : {0, 1}) {
    placement.axes.push_back({names[axis], entry["mesh"][axis]});
    count *= placement.axes.back().size;
  }
  for (int64_t i = 0; i < count; ++i)
    placement.devices.push_back(first + i);
  for (size_t d = 0; d < shape.size(); ++d)
    for (int axis : entry["spec"][d])
      placement.layout.dims[d].factors[0].axes.push_back(names[axis]);
  return placement;
}

costmodel::Cluster hostCluster(int64_t hosts, int64_t perHost, double bandwidth,
                               double latency, double inside,
                               double insideLatency) {
  costmodel::Cluster cluster;
  cluster.count = hosts * perHost;
  cluster.perNode = perHost;
  cluster.inter = {bandwidth, latency, true};
  cluster.intra = {inside, insideLatency, false};
  cluster.algorithm = costmodel::Algorithm::Ring;
  return cluster;
}

GoldenCase goldenCase(const nlohmann::json &entry) {
  GoldenCase result;
  const std::vector<int64_t> shape = entry["shape"];
  result.elementBytes = entry["elem_bytes"];
  // Devices of a host are numbered one behind the other on both meshes, so that
  // hosts of unequal size get nodes of their own.
  const int64_t hosts[] = {entry["src"]["mesh"][0], entry["dst"]["mesh"][0]};
  const int64_t each[] = {entry["src"]["mesh"][1], entry["dst"]["mesh"][1]};
  result.source = goldenPlacement(entry["src"], shape, 0);
  result.target = goldenPlacement(entry["dst"], shape, hosts[0] * each[0]);
  result.cluster =
      hostCluster(1, hosts[0] * each[0] + hosts[1] * each[1], 1, 0);
  result.cluster.perNode = std::max(each[0], each[1]);
  for (int side : {0, 1})
    for (int64_t device = 0; device < hosts[side] * each[side]; ++device)
      result.cluster.nodeOf.push_back(
          int(side * hosts[0] + device / each[side]));
  return result;
}

} // namespace merak::resharding
