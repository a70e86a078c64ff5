// merak-run: executes a plan. The work is in runtime/launch.
#include "passes/CostModel/Cluster.h"
#include "runtime/launch/RunMain.h"
#include "tools/devices/Devices.h"
#include "tools/prices/Prices.h"

using namespace merak;

int main(int argc, char **argv) {
  auto clusterLinks = [](const std::string &json,
                         const std::string &name) -> Result<Links> {
    auto cluster = costmodel::parseCluster(json, name);
    if (!cluster)
      return cluster.status();
    auto speed = [](const costmodel::Link &link) {
      return LinkSpeed{link.latency, link.bandwidth};
    };
    return Links{cluster->perNode, speed(cluster->intra), speed(cluster->inter),
                 cluster->algorithm == costmodel::Algorithm::Direct};
  };
  const RunPrices costs = runPrices();
  return runtime::runMain(argc, argv, deviceBackends(), clusterLinks,
                          deviceWorlds(), deviceVersions, costs.expected,
                          costs.predicted, costs.prices);
}
