#include "runtime/report/Simulate.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Print.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <tuple>

using namespace merak::planpb;

namespace merak::report {
namespace {

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

// Seconds of the instructions of a plan, each asked for once. A class of ranks
// takes as long as its slowest rank.
class InstructionTimes {
public:
  InstructionTimes(const LoadedPlan &plan, const CommunicationMap &map,
                   const Costs &costs)
      : plan_(plan), map_(map), costs_(costs), ranks_(map.classes()) {
    for (int rank = 0; rank < map.ranks().size(); ++rank)
      ranks_[map.classOf(rank)].push_back(rank);
  }

  double operator()(const ExecutionSite &site) {
    const Program &program = plan_.programOf(ranks_[site.rankClass].front());
    int procedure = program.calls(site.call).procedure();
    auto [it, fresh] =
        known_.try_emplace({site.rankClass, procedure, site.instruction}, 0);
    if (fresh)
      it->second = ask(site.rankClass, program, procedure, site.instruction);
    return it->second;
  }

private:
  double ask(int rankClass, const Program &program, int procedure,
             int instruction) const {
    const Instruction &inst =
        program.procedures(procedure).instructions(instruction);
    double seconds = 0;
    if (inst.kind() == Instruction::NOP)
      return seconds;
    int first = ranks_[rankClass].front();
    const ProgramCommunication &comm = map_.ofRank(first);
    int sequence = comm.sequenceOf[procedure][instruction];
    for (int rank : ranks_[rankClass]) {
      double own = 0;
      if (inst.kind() == Instruction::COLLECTIVE) {
        own = costs_.collectiveSeconds(
            program, inst, map_.members(rank, comm.collectives[sequence].kind));
      } else if (communicates(inst)) {
        int peer = map_.peer(rank, sequence);
        bool send = inst.kind() == Instruction::SEND;
        own = costs_.transferSeconds(program, inst, send ? rank : peer,
                                     send ? peer : rank);
      } else {
        own = costs_.computeSeconds(program, inst, rank);
      }
      seconds = std::max(seconds, own);
    }
    return seconds;
  }

  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  const Costs &costs_;
  std::vector<std::vector<int>> ranks_; // by class
  std::map<std::tuple<int, int, int>, double> known_;
};

} // namespace

Result<Simulation> simulate(const LoadedPlan &plan, const Costs &costs,
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
  InstructionTimes times(plan, map, costs);
  Execution execution(
      plan, map, [&](const ExecutionSite &site) { return times(site); }, sink);
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
