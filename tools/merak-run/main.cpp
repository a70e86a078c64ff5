// merak-run: executes a plan. The work is in runtime/launch.
#include "passes/CostModel/PlanCosts.h"
#include "runtime/launch/RunMain.h"
#include "tools/devices/Devices.h"

#include <map>

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
  // The same of one instruction, once for all of its executions.
  auto predicted =
      [](const LoadedPlan &plan) -> Result<runtime::InstructionSeconds> {
    auto costs = costmodel::planCosts(plan);
    if (!costs)
      return costs.status();
    std::vector<std::map<const planpb::Instruction *, double>> seconds;
    for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
      const planpb::Program &program = plan.programOf(rank);
      auto &of = seconds.emplace_back();
      rates::expectedSeconds(
          program, [&](const planpb::Instruction &instruction) {
            return of[&instruction] =
                       costs->computeSeconds(program, instruction, rank);
          });
    }
    return runtime::InstructionSeconds(
        [seconds = std::move(seconds)](int rank,
                                       const planpb::Instruction &instruction) {
          const auto found = seconds[size_t(rank)].find(&instruction);
          return found == seconds[size_t(rank)].end() ? 0.0 : found->second;
        });
  };
  return runtime::runMain(argc, argv, deviceBackends(), clusterLinks,
                          deviceWorlds(), deviceVersions, expected, predicted);
}
