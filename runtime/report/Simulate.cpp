#include "runtime/report/Simulate.h"
#include "runtime/plan/Communication.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Links.h"
#include "runtime/plan/Print.h"
#include "runtime/report/Overlap.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <tuple>

using namespace merak::planpb;

namespace merak::report {
namespace {

// Seconds of the instructions of a plan, each asked for once. A class of ranks
// takes as long as its slowest rank.
class InstructionTimes {
public:
  struct Time {
    double seconds = 0;
    // Of communication: seconds without use of the link, those in which the
    // ranks work for it; 1 if it leaves the node.
    double latency = 0, work = 0;
    int level = 0;
  };

  InstructionTimes(const LoadedPlan &plan, const CommunicationMap &map,
                   const Costs &costs)
      : plan_(plan), map_(map), costs_(costs), ranks_(map.classes()) {
    for (int rank = 0; rank < map.ranks().size(); ++rank)
      ranks_[map.classOf(rank)].push_back(rank);
  }

  const Time &operator()(const ExecutionSite &site) {
    const Program &program = plan_.programOf(ranks_[site.rankClass].front());
    int procedure = program.calls(site.call).procedure();
    auto [it, fresh] =
        known_.try_emplace({site.rankClass, procedure, site.instruction});
    if (fresh)
      it->second = ask(site.rankClass, program, procedure, site.instruction);
    return it->second;
  }

private:
  Time ask(int rankClass, const Program &program, int procedure,
           int instruction) const {
    const Instruction &inst =
        program.procedures(procedure).instructions(instruction);
    Time time;
    if (inst.kind() == Instruction::NOP)
      return time;
    const ProgramCommunication &comm = map_.ofRank(ranks_[rankClass].front());
    int sequence = comm.sequenceOf[procedure][instruction];
    for (int rank : ranks_[rankClass]) {
      double own = 0, latency = 0;
      if (inst.kind() == Instruction::COLLECTIVE) {
        const std::vector<int> &members =
            map_.members(rank, comm.collectives[sequence].kind);
        own = costs_.collectiveSeconds(program, inst, members);
        for (int member : members)
          meet(time, rank, member);
      } else if (communicates(inst)) {
        int peer = map_.peer(rank, sequence);
        bool send = inst.kind() == Instruction::SEND;
        int from = send ? rank : peer, to = send ? peer : rank;
        own = costs_.transferSeconds(program, inst, from, to);
        latency = costs_.latencySeconds(inst, from, to);
        meet(time, from, to);
      } else {
        own = costs_.computeSeconds(program, inst, rank);
      }
      if (own > time.seconds) {
        time.seconds = own;
        time.latency = std::min(own, latency);
        time.work =
            communicates(inst) ? costs_.workSeconds(program, inst, own) : own;
      }
    }
    return time;
  }
  void meet(Time &time, int a, int b) const {
    if (costs_.nodeOf(a) != costs_.nodeOf(b))
      time.level = 1;
  }

  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  const Costs &costs_;
  std::vector<std::vector<int>> ranks_; // by class
  std::map<std::tuple<int, int, int>, Time> known_;
};

// Makes spans of what is executed: one for each stretch of computation of a
// call, or one for each instruction.
class SpanWriter {
public:
  SpanWriter(const LoadedPlan &plan, const CommunicationMap &map,
             Timeline &timeline, bool detailed)
      : plan_(plan), map_(map), timeline_(timeline), detailed_(detailed),
        open_(map.classes()) {}

  void add(const ExecutionSpan &event) {
    if (event.end <= event.begin)
      return;
    const Program &program =
        plan_.programOf(map_.representative(event.rankClass));
    const Call &call = program.calls(event.call);
    const Procedure &procedure = program.procedures(call.procedure());
    const Instruction &inst = procedure.instructions(event.instruction);
    const bool communication = communicates(inst);
    Open &open = open_[event.rankClass];
    if (!communication && !detailed_ && inst.stream() == 0 && open.span >= 0 &&
        open.call == event.call &&
        timeline_.spans[open.span].end == event.begin) {
      timeline_.spans[open.span].end = event.end;
      return;
    }
    Span span;
    span.row = event.rankClass;
    span.communication = communication;
    span.stream = program.streams(inst.stream()).name();
    span.microbatch = call.microbatch();
    span.begin = event.begin;
    span.end = event.end;
    if (detailed_ || communication)
      span.bytes = instructionBytes(program, inst);
    span.kind = communication ? communicationKind(inst) : actionName(procedure);
    span.name = communication || detailed_
                    ? (inst.channel().empty() ? opName(inst) + " " + inst.name()
                                              : inst.channel())
                    : procedure.name();
    if (!communication && inst.stream() == 0)
      open = {static_cast<int>(timeline_.spans.size()), event.call};
    timeline_.spans.push_back(std::move(span));
  }

private:
  struct Open { // stretch of computation
    int span = -1, call = -1;
  };
  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  Timeline &timeline_;
  bool detailed_;
  std::vector<Open> open_; // by class
};

class TrafficCounter {
public:
  TrafficCounter(const LoadedPlan &plan, const CommunicationMap &map)
      : plan_(plan), map_(map) {}

  void add(const ExecutionSpan &event) {
    const int rank = map_.representative(event.rankClass);
    const Program &program = plan_.programOf(rank);
    const int procedure = program.calls(event.call).procedure();
    const Instruction &inst =
        program.procedures(procedure).instructions(event.instruction);
    if (!communicates(inst))
      return;
    Traffic &traffic = traffic_[{event.rankClass, communicationKind(inst),
                                 communicationPartners(program, inst)}];
    ++traffic.count;
    traffic.bytes += messageBytes(program, inst);
    traffic.seconds += event.end - event.begin;
  }

  std::vector<Traffic> finish() const {
    std::vector<Traffic> result;
    for (const auto &[key, traffic] : traffic_) {
      result.push_back(traffic);
      std::tie(result.back().row, result.back().kind, result.back().over) = key;
    }
    std::stable_sort(
        result.begin(), result.end(), [](const Traffic &a, const Traffic &b) {
          return std::pair(a.row, -a.bytes) < std::pair(b.row, -b.bytes);
        });
    return result;
  }

private:
  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  std::map<std::tuple<int, std::string, std::string>, Traffic> traffic_;
};

} // namespace

static std::string rowLabel(const LoadedPlan &plan, const CommunicationMap &map,
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

std::vector<std::string> rowLabels(const LoadedPlan &plan,
                                   const CommunicationMap &map) {
  std::vector<std::string> labels;
  for (int c = 0; c < map.classes(); ++c)
    labels.push_back(rowLabel(plan, map, c));
  return labels;
}

namespace {

// Executions until overlapping instructions fit together, and when they do.
constexpr int kMostRounds = 12;
constexpr double kSame = 1e-4;

const Instruction &instructionAt(const LoadedPlan &plan,
                                 const CommunicationMap &map,
                                 const ExecutionSite &site) {
  const Program &program = plan.programOf(map.representative(site.rankClass));
  return program.procedures(program.calls(site.call).procedure())
      .instructions(site.instruction);
}

// Classes whose ranks take part in a communication.
std::vector<int> partnersOf(const LoadedPlan &plan, const CommunicationMap &map,
                            const ExecutionSite &site) {
  const int rank = map.representative(site.rankClass);
  const Program &program = plan.programOf(rank);
  const ProgramCommunication &comm = map.ofRank(rank);
  const int sequence =
      comm.sequenceOf[program.calls(site.call).procedure()][site.instruction];
  std::vector<int> classes{site.rankClass};
  if (instructionAt(plan, map, site).kind() != Instruction::COLLECTIVE) {
    if (const int peer = map.peer(rank, sequence); peer >= 0)
      classes.push_back(map.classOf(peer));
    return classes;
  }
  for (int member : map.members(rank, comm.collectives[sequence].kind))
    classes.push_back(map.classOf(member));
  return classes;
}

// Seconds of a step.
Result<double> execute(const LoadedPlan &plan, const CommunicationMap &map,
                       InstructionTimes &times, const Overlap &overlap,
                       const Execution::Sink &sink) {
  // All ranks of a class do the same at the same time, each with its own link.
  LinkUse links({}, map.classes());
  auto meet = [&](const Execution::Encounter &encounter) {
    const InstructionTimes::Time &time = times(encounter.site);
    const bool collective = instructionAt(plan, map, encounter.site).kind() ==
                            Instruction::COLLECTIVE;
    const std::span<const int> classes = encounter.classes;
    const LinkUse::Window window = links.occupy(
        collective ? classes : classes.first(1),
        collective ? classes : classes.last(1), time.level,
        time.seconds - time.latency, time.latency, encounter.ready);
    // The link is as fast as ever, but the ranks may be late.
    return std::pair(
        window.begin,
        std::max(window.end,
                 window.begin + time.work * overlap.factor(encounter.site)));
  };
  Execution execution(
      plan, map,
      [&](const ExecutionSite &site) {
        return times(site).seconds * overlap.factor(site);
      },
      sink, meet);
  if (!execution.run())
    return Status::error(execution.explainDeadlock());
  return execution.seconds();
}

} // namespace

Result<Simulation> simulate(const LoadedPlan &plan, const Costs &costs,
                            bool detailed) {
  CommunicationMap map(plan);
  Simulation result;
  Timeline &timeline = result.timeline;
  timeline.rows = rowLabels(plan, map);
  InstructionTimes times(plan, map, costs);
  Overlap overlap(map.classes(), costs.computeSlowdown(),
                  costs.communicationSlowdown());
  for (int round = 0;; ++round) {
    timeline.spans.clear();
    SpanWriter spans(plan, map, timeline, detailed);
    MemoryTracker memory(plan, map);
    TrafficCounter traffic(plan, map);
    auto sink = [&](const ExecutionSpan &event) {
      spans.add(event);
      memory.add(event);
      traffic.add(event);
      if (!overlap.needed() || event.end <= event.begin)
        return;
      const ExecutionSite site{event.rankClass, event.call, event.instruction};
      // Work that is disturbed keeps its rank longer, but not longer than this.
      overlap.add(event, communicates(instructionAt(plan, map, site)),
                  times(site).work * overlap.factor(site) /
                      (event.end - event.begin));
    };
    Result<double> seconds = execute(plan, map, times, overlap, sink);
    if (!seconds)
      return seconds.status();
    const double before = result.stepSeconds;
    result.stepSeconds = *seconds;
    result.memory = memory.finish(*seconds);
    result.traffic = traffic.finish();
    if (!overlap.needed() || round == kMostRounds ||
        (round > 0 && std::abs(*seconds - before) <= kSame * before))
      break;
    overlap.next(
        [&](const ExecutionSite &site) { return partnersOf(plan, map, site); });
  }
  timeline.title = fmt::format(
      "{} · {} · predicted step",
      plan.file.model().empty() ? "plan" : plan.file.model(),
      plan.file.schedule().empty() ? "no schedule" : plan.file.schedule());
  result.use = rowUse(timeline);
  return result;
}

std::string describe(const Simulation &simulation) {
  std::string text =
      fmt::format("step {}\n", humanSeconds(simulation.stepSeconds));
  const std::vector<std::string> &rows = simulation.timeline.rows;
  for (size_t row = 0; row < rows.size(); ++row) {
    const RowUse &use = simulation.use[row];
    const double total = use.total() > 0 ? use.total() : 1;
    text += fmt::format("{}: busy {:.1f}%, exposed communication {:.1f}%, "
                        "bubble {:.1f}%\n",
                        rows[row], 100 * use.busy / total,
                        100 * use.exposed / total, 100 * use.bubble / total);
    for (const Traffic &traffic : simulation.traffic)
      if (traffic.row == static_cast<int>(row))
        text += fmt::format("  {} over {}: {} times, {:.0f} bytes, {}\n",
                            traffic.kind, traffic.over, traffic.count,
                            traffic.bytes, humanSeconds(traffic.seconds));
    const MemoryUse &memory = simulation.memory[row];
    text += fmt::format("  memory: peak {:.0f} of {:.0f} bytes at {}\n",
                        memory.peak.total(), memory.arenaBytes,
                        humanSeconds(memory.peak.time));
  }
  return text;
}

} // namespace merak::report
