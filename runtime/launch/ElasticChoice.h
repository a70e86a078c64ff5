// What --elastic stands for: the options of an agent (Agent.h), of other plans
// (Replan.h) and of copies (RunCopies.h) that fit a plan and its machine. What
// the user gave stays.
//
//             one host, no --launcher        several hosts, or --launcher
//   ranks     threads of one process         processes, by mpirun
//   copies    without --save-every           always; of GPUs' ranks by mpirun
//   replan    auto                           auto; of GPUs' ranks by mpirun
//   log       none                           beside the plan, for the agent
#pragma once

#include "runtime/launch/RunOptions.h"

#include <set>

namespace merak::runtime {

// Runs that are started again; one that gets no further ends long before.
inline constexpr int64_t kElasticRestarts = 1000;

// What there is, as far as it decides.
struct ElasticFacts {
  bool trains = true, onGpus = false; // the plan
  std::vector<MachineNode> nodes;     // of --cluster
  bool hasMpirun = false;
  // Names of variables of the environment, which mpirun takes to other hosts.
  std::vector<std::string> variables;
};

struct ElasticChoice {
  // For the runs of the agent, besides the command line.
  std::vector<std::string> arguments;
  std::string told; // what was chosen, and why, in one line
};

// Errors: --cluster cannot be read, or the plan was not compiled for it.
Result<ElasticFacts> elasticFacts(const RunOptions &options,
                                  const LoadedPlan &plan,
                                  const PlanPrices &prices);
// Completes `options`, of which `given` have been on the command line
// ("--copies"). Errors: what does not go together, all of it.
Result<ElasticChoice> chooseElastic(const ElasticFacts &facts,
                                    const std::set<std::string> &given,
                                    RunOptions &options);

} // namespace merak::runtime
