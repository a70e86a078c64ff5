#include "runtime/report/Simulate.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Print.h"

#include <algorithm>
#include <fmt/format.h>

using namespace merak::planpb;

namespace merak::report {
namespace {

double
operandBytes(const Program &program,
             const google::protobuf::RepeatedPtrField<Operand> &operands) {
  double bytes = 0;
  for (const Operand &operand : operands)
    bytes += static_cast<double>(elementCount(operand)) *
             dtypeSize(program.buffers(operand.buffer()).dtype());
  return bytes;
}

double communicationSeconds(const Program &program, const Instruction &inst,
                            int members, const MachineCosts &costs) {
  double in = operandBytes(program, inst.inputs());
  double out = operandBytes(program, inst.outputs());
  double n = members;
  if (inst.kind() != Instruction::COLLECTIVE)
    return costs.linkLatencySeconds +
           std::max(in, out) / costs.linkBytesPerSecond;
  if (members < 2)
    return 0;
  // Ring: each of n - 1 rounds passes on one n-th; an all-reduce is a
  // reduce-scatter followed by an all-gather.
  double rounds = n - 1;
  double bytes = std::max(in, out) * rounds / n;
  if (inst.op() == "all_reduce") {
    rounds *= 2;
    bytes *= 2;
  } else if (inst.op() == "broadcast") {
    bytes = std::max(in, out);
  }
  return rounds * costs.linkLatencySeconds + bytes / costs.linkBytesPerSecond;
}

double instructionSeconds(const Program &program, const Instruction &inst,
                          int members, const MachineCosts &costs) {
  switch (inst.kind()) {
  case Instruction::NOP:
    return 0;
  case Instruction::SEND:
  case Instruction::RECV:
  case Instruction::COLLECTIVE:
    return communicationSeconds(program, inst, members, costs);
  default:
    return std::max({costs.launchSeconds, inst.flops() / costs.flopsPerSecond,
                     instructionBytes(program, inst) / costs.bytesPerSecond});
  }
}

bool communicates(const Instruction &inst) {
  return inst.kind() == Instruction::SEND || inst.kind() == Instruction::RECV ||
         inst.kind() == Instruction::COLLECTIVE;
}

std::string rowLabel(const LoadedPlan &plan, const CommunicationMap &map,
                     int index) {
  std::vector<int> ranks;
  for (int rank = 0; rank < map.ranks().size(); ++rank)
    if (map.classOf(rank) == index)
      ranks.push_back(rank);
  int axis = map.ranks().axisIndex("pp");
  std::string label = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks",
                                  rankList(ranks));
  if (axis < 0 || map.ranks().axisSize(axis) < 2)
    return label;
  return fmt::format("stage {}, {}",
                     map.ranks().coordinate(map.representative(index), axis),
                     label);
}

} // namespace

MachineCosts MachineCosts::of(const std::string &device) {
  // cuda: an H100-class card at 70 % of its dense bf16 and memory peaks,
  // NVLink.
  if (device == "cuda")
    return {0.7 * 989e12, 0.7 * 3.3e12, 5e-6, 5e-6, 200e9};
  // cpu: two cores with AVX2, ranks in one process.
  return {60e9, 10e9, 1e-6, 5e-6, 5e9};
}

double instructionBytes(const Program &program, const Instruction &inst) {
  if (inst.bytes() > 0)
    return inst.bytes();
  return operandBytes(program, inst.inputs()) +
         operandBytes(program, inst.outputs());
}

Result<Simulation> simulate(const LoadedPlan &plan, const MachineCosts &costs,
                            bool detailed) {
  CommunicationMap map(plan);
  Simulation result;
  Timeline &timeline = result.timeline;
  for (int c = 0; c < map.classes(); ++c)
    timeline.rows.push_back(rowLabel(plan, map, c));
  // The open stretch of computation of each row.
  std::vector<int> open(map.classes(), -1), openCall(map.classes(), -1);
  auto sink = [&](const ExecutionSpan &event) {
    const Program &program =
        plan.programOf(map.representative(event.rankClass));
    const Call &call = program.calls(event.call);
    const Procedure &procedure = program.procedures(call.procedure());
    const Instruction &inst = procedure.instructions(event.instruction);
    bool communication = communicates(inst);
    int &last = open[event.rankClass];
    if (!communication && !detailed && inst.stream() == 0 && last >= 0 &&
        openCall[event.rankClass] == event.call &&
        timeline.spans[last].end == event.begin) {
      timeline.spans[last].end = event.end;
      return;
    }
    Span span;
    span.row = event.rankClass;
    span.communication = communication;
    span.stream = program.streams(inst.stream()).name();
    span.microbatch = call.microbatch();
    span.begin = event.begin;
    span.end = event.end;
    span.kind = communication ? (inst.kind() == Instruction::COLLECTIVE
                                     ? inst.op()
                                     : kindName(inst.kind()))
                              : procedure.action();
    span.name = communication || detailed
                    ? (inst.channel().empty() ? inst.op() + " " + inst.name()
                                              : inst.channel())
                    : procedure.name();
    if (!communication && inst.stream() == 0) {
      last = static_cast<int>(timeline.spans.size());
      openCall[event.rankClass] = event.call;
    }
    timeline.spans.push_back(std::move(span));
  };
  Execution execution(
      plan, map,
      [&](const Program &program, const Instruction &inst, int members) {
        return instructionSeconds(program, inst, members, costs);
      },
      sink);
  if (!execution.run())
    return Status::error(execution.explainDeadlock());
  result.stepSeconds = execution.seconds();
  timeline.title = fmt::format(
      "{} · {} · predicted step",
      plan.file.model().empty() ? "plan" : plan.file.model(),
      plan.file.schedule().empty() ? "no schedule" : plan.file.schedule());
  result.use = rowUse(timeline);
  return result;
}

} // namespace merak::report
