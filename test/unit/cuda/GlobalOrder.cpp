#include "test/unit/cuda/GlobalOrder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

namespace merak::test {

using planpb::Instruction;

namespace {

template <typename Clock> void join(Clock &clock, const Clock &other) {
  for (const auto &[lane, position] : other) {
    int &own = clock[lane];
    own = std::max(own, position);
  }
}

} // namespace

GlobalOrder::GlobalOrder(const LoadedPlan &plan)
    : plan_(plan), map_(plan.file), ranks_(size_t(map_.size())) {
  for (int r = 0; r < map_.size(); ++r) {
    Rank &rank = ranks_[r];
    rank.program = &plan.programOf(r);
    rank.lanes.resize(size_t(rank.program->streams_size()));
    rank.finished.assign(size_t(rank.program->calls_size()),
                         std::vector<Clock>(rank.lanes.size()));
    rank.events.resize(size_t(rank.program->calls_size()));
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < map_.size(); ++r)
      for (uint32_t s = 0; s < ranks_[r].lanes.size(); ++s)
        while (advance(r, s))
          moved = true;
  }
  for (const Rank &rank : ranks_)
    for (const Lane &lane : rank.lanes)
      if (lane.call < rank.program->calls_size())
        std::abort(); // the verifier finds deadlocks
}

bool GlobalOrder::enter(Rank &rank, uint32_t stream) {
  Lane &lane = rank.lanes[stream];
  if (lane.entered)
    return true;
  const planpb::Call &call = rank.program->calls(lane.call);
  for (const planpb::CallWait &wait : call.waits())
    if (wait.stream() == stream &&
        rank.lanes[wait.on()].call <= int(wait.call()))
      return false;
  for (const planpb::CallWait &wait : call.waits())
    if (wait.stream() == stream)
      join(lane.clock, rank.finished[wait.call()][wait.on()]);
  rank.begins[{lane.call, stream}] = lane.clock;
  lane.entered = true;
  return true;
}

void GlobalOrder::pass(int r, uint32_t stream) {
  Lane &lane = ranks_[r].lanes[stream];
  lane.clock[{r, stream}] = ++lane.position;
  ++lane.next;
  lane.posted = false;
}

bool GlobalOrder::advance(int r, uint32_t stream) {
  Rank &rank = ranks_[r];
  Lane &lane = rank.lanes[stream];
  if (lane.call >= rank.program->calls_size() || !enter(rank, stream))
    return false;
  const planpb::Procedure &procedure =
      rank.program->procedures(int(rank.program->calls(lane.call).procedure()));
  while (lane.next < procedure.instructions_size() &&
         procedure.instructions(lane.next).stream() != stream)
    ++lane.next;
  if (lane.next == procedure.instructions_size()) {
    rank.finished[lane.call][stream] = lane.clock;
    rank.ends[{lane.call, stream}] = lane.position;
    ++lane.call;
    lane.next = 0;
    lane.entered = false;
    return true;
  }
  const Instruction &what = procedure.instructions(lane.next);
  auto &events = rank.events[lane.call];
  if (what.kind() == Instruction::WAIT && !events.count(what.event()))
    return false;
  if (what.kind() == Instruction::COLLECTIVE ||
      what.kind() == Instruction::SEND || what.kind() == Instruction::RECV)
    return communicate(r, stream, what);
  rank.places[{lane.call, lane.next}] = {lane.clock, lane.position + 1};
  if (what.kind() == Instruction::WAIT)
    join(lane.clock, events[what.event()]);
  pass(r, stream);
  if (what.kind() == Instruction::RECORD)
    events[what.event()] = lane.clock;
  return true;
}

std::pair<std::string, std::set<int>>
GlobalOrder::meeting(int r, const Instruction &what) const {
  if (what.kind() == Instruction::COLLECTIVE) {
    const planpb::Program &program = *ranks_[r].program;
    const std::vector<int> members =
        map_.members(r, program.groups(int(what.group())).axes());
    return {fmt::format("{} on {}", fmt::join(members, ","),
                        program.streams(int(what.stream())).name()),
            {members.begin(), members.end()}};
  }
  const int peer = map_.neighbour(r, what.peer());
  const bool sends = what.kind() == Instruction::SEND;
  return {fmt::format("{}>{} {}", sends ? r : peer, sends ? peer : r,
                      what.channel()),
          {r, peer}};
}

// The last one to come takes all past it.
bool GlobalOrder::communicate(int r, uint32_t stream, const Instruction &what) {
  Lane &lane = ranks_[r].lanes[stream];
  if (lane.posted)
    return false;
  lane.posted = true;
  const auto [name, members] = meeting(r, what);
  auto &waiting = waiting_[name];
  waiting.push_back({r, stream});
  if (waiting.size() < members.size())
    return false;
  // What a transfer reads and writes is done with when either end goes on; of a
  // collective a member only knows that all have begun.
  if (what.kind() != Instruction::COLLECTIVE)
    for (const auto &[other, its] : waiting)
      pass(other, its);
  Clock all;
  for (const auto &[other, its] : waiting)
    join(all, ranks_[other].lanes[its].clock);
  for (const auto &[other, its] : waiting) {
    join(ranks_[other].lanes[its].clock, all);
    if (what.kind() == Instruction::COLLECTIVE)
      pass(other, its);
  }
  waiting.clear();
  return true;
}

bool GlobalOrder::eventHolds(int program, int procedure, int wait) const {
  const auto &instructions =
      plan_.programs[program].procedures(procedure).instructions();
  int record = 0;
  while (instructions[record].kind() != Instruction::RECORD ||
         instructions[record].event() != instructions[wait].event())
    ++record;
  for (int r = 0; r < map_.size(); ++r)
    for (int c = 0; c < ranks_[r].program->calls_size(); ++c) {
      if (int(plan_.file.ranks(r).program()) != program ||
          int(ranks_[r].program->calls(c).procedure()) != procedure)
        continue;
      const Clock &clock = ranks_[r].places.at({c, wait}).clock;
      const auto found = clock.find({r, instructions[record].stream()});
      if (found == clock.end() ||
          found->second < ranks_[r].places.at({c, record}).position)
        return false;
    }
  return true;
}

bool GlobalOrder::callHolds(int program, int call,
                            const planpb::CallWait &wait) const {
  for (int r = 0; r < map_.size(); ++r) {
    if (int(plan_.file.ranks(r).program()) != program)
      continue;
    const Clock &clock = ranks_[r].begins.at({call, wait.stream()});
    const auto found = clock.find({r, wait.on()});
    const int position = found == clock.end() ? 0 : found->second;
    if (position < ranks_[r].ends.at({int(wait.call()), wait.on()}))
      return false;
  }
  return true;
}

} // namespace merak::test
