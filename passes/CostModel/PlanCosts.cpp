#include "passes/CostModel/PlanCosts.h"

#include <algorithm>
#include <fmt/format.h>

using namespace merak::planpb;

namespace merak::costmodel {
namespace {

std::string dtypeOf(const Program &program, const Instruction &inst) {
  if (inst.inputs_size() == 0 && inst.outputs_size() == 0)
    return "f32";
  const Operand &operand =
      inst.inputs_size() > 0 ? inst.inputs(0) : inst.outputs(0);
  return dtypeName(program.buffers(operand.buffer()).dtype());
}

// Sizes of an einsum: an index of both operands is of the batch or contracted,
// one of the first only belongs to m, of the second only to n.
void describeEinsum(const Instruction &inst, Kernel &kernel) {
  auto attr = inst.attrs().find("equation");
  if (attr == inst.attrs().end() || inst.inputs_size() != 2)
    return;
  const std::string &equation = attr->second;
  size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos)
    return;
  std::string a = equation.substr(0, comma);
  std::string b = equation.substr(comma + 1, arrow - comma - 1);
  std::string out = equation.substr(arrow + 2);
  if (int(a.size()) != inst.inputs(0).shape_size() ||
      int(b.size()) != inst.inputs(1).shape_size())
    return;
  auto has = [](const std::string &indices, char index) {
    return indices.find(index) != std::string::npos;
  };
  kernel.m = kernel.n = kernel.k = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    double size = double(inst.inputs(0).shape(int(i)));
    if (!has(b, a[i]))
      kernel.m *= size;
    else if (!has(out, a[i]))
      kernel.k *= size;
  }
  for (size_t i = 0; i < b.size(); ++i)
    if (!has(a, b[i]))
      kernel.n *= double(inst.inputs(1).shape(int(i)));
}

// Queries [b, t, heads, d] and keys [b, t, heads, d].
void describeAttention(const Instruction &inst, Kernel &kernel) {
  if (inst.inputs_size() < 2 || inst.inputs(0).shape_size() != 4 ||
      inst.inputs(1).shape_size() != 4)
    return;
  kernel.m = double(inst.inputs(0).shape(1));
  kernel.n = double(inst.inputs(1).shape(1));
  kernel.k = double(inst.inputs(0).shape(3));
  if (kernel.flops > 0)
    return;
  // Two products; backward five.
  double products = inst.op() == "attention" ? 2 : 5;
  kernel.flops = products * 2 * kernel.m * kernel.n * kernel.k *
                 double(inst.inputs(0).shape(0) * inst.inputs(0).shape(2));
}

} // namespace

Kernel kernelOf(const Program &program, const Instruction &inst) {
  Kernel kernel;
  kernel.flops = inst.flops();
  kernel.bytes = report::instructionBytes(program, inst);
  kernel.dtype = dtypeOf(program, inst);
  kernel.name = inst.kind() == Instruction::LIBRARY ? inst.op()
                : inst.kind() == Instruction::LOAD_INPUT
                    ? std::string("copy")
                    : std::string("elementwise");
  if (inst.kind() != Instruction::LIBRARY)
    return kernel;
  std::string group = kernelClass(inst.op());
  if (group == "matmul")
    describeEinsum(inst, kernel);
  else if (group == "attention")
    describeAttention(inst, kernel);
  return kernel;
}

Result<PlanCosts> PlanCosts::create(const LoadedPlan &plan, Cluster cluster,
                                    const std::string &name) {
  int64_t ranks = plan.file.ranks_size();
  if (ranks > cluster.count)
    return Status::error(fmt::format("{}: has {} devices, the plan {} ranks",
                                     name, cluster.count, ranks));
  PlanCosts costs(std::move(cluster));
  std::map<std::pair<int64_t, uint32_t>, int64_t> alike;
  auto key = [&](int64_t rank) {
    return std::pair(costs.cluster_.node(rank),
                     plan.file.ranks(int(rank)).program());
  };
  for (int64_t rank = 0; rank < ranks; ++rank)
    ++alike[key(rank)];
  for (int64_t rank = 0; rank < ranks; ++rank) {
    costs.rates_.push_back(costs.cluster_.rate(rank));
    costs.alike_.push_back(alike[key(rank)]);
  }
  return costs;
}

Result<PlanCosts> planCosts(const LoadedPlan &plan) {
  if (plan.file.cluster().empty())
    return PlanCosts::create(plan, defaultCluster(plan.file.ranks_size()),
                             "the default cluster");
  Result<Cluster> cluster =
      parseCluster(plan.file.cluster(), "the plan's cluster");
  if (!cluster.ok())
    return cluster.status();
  return PlanCosts::create(plan, *cluster, "the plan's cluster");
}

double PlanCosts::computeSeconds(const Program &program,
                                 const Instruction &inst, int rank) const {
  return kernelSeconds(cluster_.device(rank), kernelOf(program, inst)) /
         rates_[size_t(rank)];
}

double PlanCosts::collectiveSeconds(const Program &program,
                                    const Instruction &inst,
                                    const std::vector<int> &ranks) const {
  Collective kind;
  if (ranks.size() < 2 || !parseCollective(inst.op(), kind))
    return 0;
  // All ranks of the node that run this program do the same in their groups.
  int64_t here = 0;
  for (int rank : ranks)
    here += cluster_.node(rank) == cluster_.node(ranks.front());
  int64_t sharing = alike_[size_t(ranks.front())] / here;
  std::vector<int64_t> devices(ranks.begin(), ranks.end());
  return costmodel::collectiveSeconds(kind, report::messageBytes(program, inst),
                                      devices, cluster_, sharing);
}

double PlanCosts::transferSeconds(const Program &program,
                                  const Instruction &inst, int from,
                                  int to) const {
  Link link = cluster_.between(from, to);
  if (link.shared)
    link.bandwidth /= double(alike_[size_t(from)]);
  return costmodel::transferSeconds(link, report::messageBytes(program, inst));
}

double PlanCosts::computeSlowdown() const {
  double most = 1;
  for (const Device &kind : cluster_.kinds)
    most = std::max(most, kind.computeSlowdown);
  return most;
}

double PlanCosts::communicationSlowdown() const {
  double most = 1;
  for (const Device &kind : cluster_.kinds)
    most = std::max(most, kind.communicationSlowdown);
  return most;
}

} // namespace merak::costmodel
