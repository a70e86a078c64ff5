// The times of a plan's instructions on a cluster, for the plan simulator.
#pragma once

#include "passes/CostModel/Cost.h"
#include "passes/CostModel/Reuse.h"
#include "runtime/report/Costs.h"

namespace merak::costmodel {

// What the instruction has to do: class, flops, bytes and, for contractions,
// m, n and k, from its attributes and the shapes of its operands.
Kernel kernelOf(const planpb::Program &program,
                const planpb::Instruction &instruction);

class PlanCosts : public report::Costs {
public:
  // Rank r runs on device r. The instructions asked for later must be those of
  // `plan`, which outlives this. Errors: more ranks than devices; `name` opens
  // the message.
  static Result<PlanCosts> create(const LoadedPlan &plan, Cluster cluster,
                                  const std::string &name);

  double computeSeconds(const planpb::Program &program,
                        const planpb::Instruction &instruction,
                        int rank) const override;
  double collectiveSeconds(const planpb::Program &program,
                           const planpb::Instruction &instruction,
                           const std::vector<int> &ranks) const override;
  double transferSeconds(const planpb::Program &program,
                         const planpb::Instruction &instruction, int from,
                         int to) const override;
  double latencySeconds(const planpb::Instruction &instruction, int from,
                        int to) const override;
  double workSeconds(const planpb::Program &program,
                     const planpb::Instruction &instruction,
                     double seconds) const override;
  int64_t nodeOf(int rank) const override { return cluster_.node(rank); }
  double computeSlowdown() const override;
  double communicationSlowdown() const override;
  const Cluster &cluster() const { return cluster_; }

private:
  explicit PlanCosts(Cluster cluster) : cluster_(std::move(cluster)) {}

  Cluster cluster_;
  std::vector<double> rates_;  // by rank
  std::vector<int64_t> alike_; // ranks of its node that run its program
  // By program, for devices whose rates depend on it.
  std::map<const planpb::Program *, Reuse> reuse_;
};

// Of the cluster that the plan was compiled for; for plans without one that of
// as many in-process CPU ranks.
Result<PlanCosts> planCosts(const LoadedPlan &plan);

} // namespace merak::costmodel
