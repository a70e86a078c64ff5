// merak-run: executes a plan. The work is in runtime/launch.
#include "passes/CostModel/PlanCosts.h"
#include "runtime/launch/RunMain.h"
#include "tools/devices/Devices.h"

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
    return Links{cluster->perNode, speed(cluster->intra),
                 speed(cluster->inter)};
  };
  // By the cluster that the plan was compiled for.
  auto expected =
      [](const LoadedPlan &plan) -> Result<std::vector<rates::Seconds>> {
    auto costs = costmodel::planCosts(plan);
    if (!costs)
      return costs.status();
    std::vector<rates::Seconds> ranks;
    for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
      const planpb::Program &program = plan.programOf(rank);
      ranks.push_back(rates::expectedSeconds(
          program, [&](const planpb::Instruction &instruction) {
            return costs->computeSeconds(program, instruction, rank);
          }));
    }
    return ranks;
  };
  return runtime::runMain(argc, argv, deviceBackends(), clusterLinks,
                          deviceWorlds(), deviceVersions, expected);
}
