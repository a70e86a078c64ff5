#include "passes/CostModel/PlanCosts.h"

#include "passes/CostModel/Describe.h"
#include "runtime/layout/Strides.h"

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
  const DType dtype = program.buffers(operand.buffer()).dtype();
  return dtypeName(dtype == F16 ? BF16 : dtype); // see CostModel.md
}

int64_t largest(const google::protobuf::RepeatedPtrField<Operand> &operands) {
  int64_t most = 0;
  for (const Operand &operand : operands)
    most = std::max<int64_t>(most, elementCount(operand));
  return most;
}

Sizes shapeOf(const Operand &operand) {
  return {operand.shape().data(), size_t(operand.shape_size())};
}
Sizes stridesOf(const Operand &operand) {
  return {operand.strides().data(), size_t(operand.strides_size())};
}
std::vector<Sizes>
shapesOf(const google::protobuf::RepeatedPtrField<Operand> &operands) {
  std::vector<Sizes> shapes;
  for (const Operand &operand : operands)
    shapes.push_back(shapeOf(operand));
  return shapes;
}

std::string attributeOf(const Instruction &inst, const std::string &name) {
  auto found = inst.attrs().find(name);
  return found == inst.attrs().end() ? "" : found->second;
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
  if (inst.kind() == Instruction::KERNEL)
    kernel.name = generatedName(double(largest(inst.inputs())),
                                double(largest(inst.outputs())));
  if (inst.kind() != Instruction::LIBRARY)
    return kernel;
  const std::string group = kernelClass(inst.op());
  if (group == "attention" && attributeOf(inst, "causal") == "1")
    kernel.name += ":causal";
  describeLibrary(inst.op(), attributeOf(inst, "equation"),
                  shapesOf(inst.inputs()), shapesOf(inst.outputs()), kernel);
  if (inst.attrs().count("rounds"))
    describeRounding(
        shapeOf(inst.inputs(0)), shapeOf(inst.inputs(1)),
        double(dtypeSize(program.buffers(inst.inputs(0).buffer()).dtype())),
        kernel);
  if (group == "copy" && inst.inputs_size() == 1 &&
      !(layout::isDense(shapeOf(inst.inputs(0)), stridesOf(inst.inputs(0))) &&
        layout::isDense(shapeOf(inst.outputs(0)), stridesOf(inst.outputs(0)))))
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
