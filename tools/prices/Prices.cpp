#include "tools/prices/Prices.h"

#include "passes/CostModel/ClusterHosts.h"
#include "passes/CostModel/ClusterNodes.h"
#include "passes/CostModel/PlanCosts.h"
#include "runtime/report/Simulate.h"

#include <algorithm>
#include <map>

namespace merak {

// Devices by rank; or as if they were not slow.
static void slowDown(costmodel::Cluster &cluster,
                     const std::vector<double> &rates, bool slow) {
  cluster.rateOf.resize(size_t(cluster.count), 1);
  for (size_t r = 0; r < rates.size() && r < cluster.rateOf.size(); ++r)
    cluster.rateOf[r] = std::min(1.0, slow ? cluster.rateOf[r] / rates[r]
                                           : cluster.rateOf[r] * rates[r]);
}

RunPrices runPrices() {
  RunPrices result;
  // By the cluster that the plan was compiled for.
  result.expected =
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
  result.predicted =
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
  // Of the running plan and of others, at the rates of now.
  runtime::PlanPrices &prices = result.prices;
  prices.stepSeconds = [](const LoadedPlan &plan,
                          const std::vector<double> &rates) -> Result<double> {
    auto costs = costmodel::planCosts(plan);
    if (!costs)
      return costs.status();
    costmodel::Cluster cluster = costs->cluster();
    slowDown(cluster, rates, true);
    costs = costmodel::PlanCosts::create(plan, cluster, "the plan's cluster");
    if (!costs)
      return costs.status();
    auto simulation = report::simulate(plan, *costs);
    if (!simulation)
      return simulation.status();
    return simulation->stepSeconds;
  };
  prices.healthyCluster =
      [](const LoadedPlan &plan,
         const std::vector<double> &rates) -> Result<std::string> {
    auto costs = costmodel::planCosts(plan);
    if (!costs)
      return costs.status();
    costmodel::Cluster cluster = costs->cluster();
    slowDown(cluster, rates, false);
    return cluster.toJson();
  };
  prices.withoutNodes =
      [](const std::string &file, const std::vector<int64_t> &devices,
         const std::set<size_t> &without) -> Result<std::string> {
    auto cluster = costmodel::readCluster(file);
    if (!cluster)
      return cluster.status();
    const auto left = costmodel::withoutNodes(*cluster, devices, without);
    return left ? left->toJson() : std::string();
  };
  prices.nodesOf =
      [](const LoadedPlan &plan,
         const std::string &file) -> Result<std::vector<runtime::MachineNode>> {
    auto hosts = costmodel::readClusterHosts(file);
    if (!hosts)
      return hosts.status();
    MERAK_RETURN_IF_ERROR(costmodel::checkPlannedFor(
        plan, runtime::devicesOf(plan.file), hosts->cluster, file));
    std::vector<runtime::MachineNode> nodes;
    for (const auto &[host, devices] : hosts->nodes)
      nodes.push_back({host, devices});
    return nodes;
  };
  return result;
}

} // namespace merak
