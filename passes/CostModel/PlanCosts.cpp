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
// one of the first only belongs to m, of the second only to n. The variant says
// which operands have the contracted index where a matrix product m x k times
// k x n would not ("t"): "nn" forward, "nt" and "tn" in the gradients.
void describeEinsum(const Instruction &inst, Kernel &kernel) {
  auto attr = inst.attrs().find("equation");
  if (attr == inst.attrs().end() || inst.inputs_size() < 2)
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
  if (a.empty() || b.empty())
    return;
  auto contracted = [&](char index) {
    return has(a, index) && has(b, index) && !has(out, index);
  };
  kernel.name += contracted(a.back()) ? ":n" : ":t";
  kernel.name += contracted(b.back()) ? "t" : "n";
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

// Queries [b, t, heads, d] and keys [b, t, heads, d]. The flops count masked
// elements, which a causal kernel skips: its efficiency is a class of its own.
void describeAttention(const Instruction &inst, Kernel &kernel) {
  if (inst.inputs_size() < 2 || inst.inputs(0).shape_size() != 4 ||
      inst.inputs(1).shape_size() != 4)
    return;
  kernel.m = double(inst.inputs(0).shape(1));
  kernel.n = double(inst.inputs(1).shape(1));
  kernel.k = double(inst.inputs(0).shape(3));
  auto causal = inst.attrs().find("causal");
  if (causal != inst.attrs().end() && causal->second == "1")
    kernel.name += ":causal";
  if (kernel.flops > 0)
    return;
  // Two products; backward five.
  double products = inst.op() == "attention" ? 2 : 5;
  kernel.flops = products * 2 * kernel.m * kernel.n * kernel.k *
                 double(inst.inputs(0).shape(0) * inst.inputs(0).shape(2));
}

// Batch of x times its spatial places, channels of the output, elements of one
// filter; gradients have the same three in another order.
void describeConv(const Instruction &inst, Kernel &kernel) {
  const Operand &y = inst.op() == "conv"              ? inst.outputs(0)
                     : inst.op() == "conv_grad_input" ? inst.inputs(0)
                                                      : inst.inputs(1);
  const Operand &w =
      inst.op() == "conv_grad_weight" ? inst.outputs(0) : inst.inputs(1);
  if (y.shape_size() < 3 || w.shape_size() < 3)
    return;
  kernel.n = double(w.shape(0));
  kernel.m = double(elementCount(y)) / double(y.shape(1));
  kernel.k = double(elementCount(w)) / kernel.n;
  if (kernel.flops <= 0)
    kernel.flops = 2 * kernel.m * kernel.n * kernel.k;
}

int64_t largest(const google::protobuf::RepeatedPtrField<Operand> &operands) {
  int64_t most = 0;
  for (const Operand &operand : operands)
    most = std::max<int64_t>(most, elementCount(operand));
  return most;
}

bool dense(const Operand &operand) {
  int64_t expected = 1;
  for (int i = operand.shape_size(); i-- > 0;) {
    if (operand.shape(i) != 1 && operand.strides(i) != expected)
      return false;
    expected *= operand.shape(i);
  }
  return true;
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
  // What it sums away costs a generated kernel more than what it writes.
  if (inst.kind() == Instruction::KERNEL &&
      largest(inst.outputs()) < largest(inst.inputs()))
    kernel.name += ":sums";
  if (inst.kind() != Instruction::LIBRARY)
    return kernel;
  std::string group = kernelClass(inst.op());
  if (group == "matmul")
    describeEinsum(inst, kernel);
  else if (group == "attention")
    describeAttention(inst, kernel);
  else if (group == "conv" && inst.inputs_size() >= 2 &&
           inst.outputs_size() >= 1)
    describeConv(inst, kernel);
  else if (group == "copy" && inst.inputs_size() == 1 &&
           !(dense(inst.inputs(0)) && dense(inst.outputs(0))))
    kernel.name += ":strided";
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
    const Program &program = plan.programOf(int(rank));
    const Device &device = costs.cluster_.device(rank);
    if (!device.distances.empty())
      costs.reuse_.try_emplace(&program, program, device.distances);
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
  Kernel kernel = kernelOf(program, inst);
  if (auto it = reuse_.find(&program); it != reuse_.end())
    kernel.shares = it->second.shares(inst);
  return kernelSeconds(cluster_.device(rank), kernel) / rates_[size_t(rank)];
}

double PlanCosts::collectiveSeconds(const Program &program,
                                    const Instruction &inst,
                                    const std::vector<int> &ranks) const {
  Collective kind;
  if (ranks.size() < 2 || !parseCollective(opName(inst), kind))
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
  return costmodel::transferSeconds(report::messageBytes(program, inst), from,
                                    to, cluster_, alike_[size_t(from)]);
}

double PlanCosts::latencySeconds(const Instruction &, int from, int to) const {
  return cluster_.between(from, to).latency;
}

// Where the own work of the ranks is known the rest is the link's.
double PlanCosts::workSeconds(const Program &program, const Instruction &inst,
                              double seconds) const {
  const std::string name =
      inst.kind() == Instruction::COLLECTIVE ? opName(inst) : "transfer";
  const Device &device = cluster_.device();
  if (!device.kernels.count(name))
    return seconds;
  return std::min(
      seconds,
      kernelSeconds(device, {name, 0, report::messageBytes(program, inst)}));
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
