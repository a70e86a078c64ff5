#include "runtime/plan/Execution.h"
#include "runtime/plan/Describe.h"

#include <algorithm>
#include <fmt/format.h>

using namespace merak::planpb;

namespace merak {

Execution::Execution(const LoadedPlan &plan, const CommunicationMap &map,
                     Cost cost, Sink sink, Meet meet)
    : plan_(plan), map_(map), cost_(std::move(cost)), sink_(std::move(sink)),
      meet_(std::move(meet)) {
  for (const Program &program : plan.programs) {
    auto &procedures = lists_.emplace_back();
    for (const Procedure &procedure : program.procedures()) {
      auto &streams = procedures.emplace_back(program.streams_size());
      for (int i = 0; i < procedure.instructions_size(); ++i)
        streams[procedure.instructions(i).stream()].push_back(i);
    }
  }
  for (int c = 0; c < map.classes(); ++c) {
    int index = plan.file.ranks(map.representative(c)).program();
    const Program &program = plan.programs[index];
    Rank rank{&program, index, {}, {}, {}, {}};
    rank.streams.resize(program.streams_size());
    rank.events.resize(program.calls_size());
    ranks_.push_back(std::move(rank));
  }
  buildMeetings();
}

void Execution::buildMeetings() {
  std::map<std::string, int> ids;
  auto meeting = [&](const std::string &key, std::vector<int> classes) {
    auto [it, fresh] = ids.emplace(key, static_cast<int>(meetings_.size()));
    if (fresh) {
      size_t parties = classes.size();
      meetings_.push_back(
          {std::vector<std::deque<Party>>(parties), std::move(classes)});
    }
    return it->second;
  };
  for (int c = 0; c < map_.classes(); ++c) {
    int rank = map_.representative(c);
    const ProgramCommunication &comm = map_.ofRank(rank);
    for (size_t t = 0; t < comm.transfers.size(); ++t) {
      const TransferSequence &sequence = comm.transfers[t];
      int peer = map_.peer(rank, static_cast<int>(t));
      int other = peer < 0 ? -1 : map_.classOf(peer);
      int from = sequence.send ? c : other, to = sequence.send ? other : c;
      ranks_[c].transferMeeting.push_back(meeting(
          fmt::format("t {} {} {}", from, to, sequence.channel), {from, to}));
    }
    for (const CollectiveSequence &sequence : comm.collectives) {
      const std::vector<int> &members = map_.members(rank, sequence.kind);
      std::set<int> classes;
      for (int member : members)
        classes.insert(map_.classOf(member));
      std::string key = fmt::format("c {}", sequence.kind);
      for (int member : classes)
        key += fmt::format(" {}", member);
      ranks_[c].collectiveMeeting.push_back(
          meeting(key, {classes.begin(), classes.end()}));
    }
  }
}

const std::vector<int> &Execution::list(const Rank &rank, int call,
                                        int stream) const {
  return lists_[rank.index][rank.program->calls(call).procedure()][stream];
}

const Instruction &Execution::current(int rankClass, int stream) const {
  const Rank &rank = ranks_[rankClass];
  const Stream &state = rank.streams[stream];
  return rank.program->procedures(rank.program->calls(state.call).procedure())
      .instructions(list(rank, state.call, stream)[state.pos]);
}

bool Execution::done(const Rank &rank, const Stream &stream) const {
  return stream.call == rank.program->calls_size();
}

void Execution::enqueue(int rankClass, int stream) {
  Stream &state = ranks_[rankClass].streams[stream];
  if (state.queued || state.posted || done(ranks_[rankClass], state))
    return;
  state.queued = true;
  queue_.push_back({rankClass, stream});
}

void Execution::wake(int rankClass) {
  for (size_t s = 0; s < ranks_[rankClass].streams.size(); ++s)
    enqueue(rankClass, static_cast<int>(s));
}

bool Execution::run() {
  for (size_t c = 0; c < ranks_.size(); ++c)
    wake(static_cast<int>(c));
  while (!queue_.empty() || !ready_.empty()) {
    if (queue_.empty()) {
      const int meeting = ready_.top().meeting;
      ready_.pop();
      hold(meeting);
      continue;
    }
    Node node = queue_.front();
    queue_.pop_front();
    ranks_[node.rankClass].streams[node.stream].queued = false;
    advance(node.rankClass, node.stream);
  }
  for (const Rank &rank : ranks_)
    for (const Stream &stream : rank.streams)
      if (!done(rank, stream))
        return false;
  return true;
}

double Execution::seconds() const {
  double last = 0;
  for (const Rank &rank : ranks_)
    for (const Stream &stream : rank.streams)
      last = std::max(last, stream.time);
  return last;
}

bool Execution::enterCall(Rank &rank, int stream) {
  Stream &state = rank.streams[stream];
  const Call &call = rank.program->calls(state.call);
  double ready = state.time;
  for (const CallWait &wait : call.waits()) {
    if (static_cast<int>(wait.stream()) != stream)
      continue;
    const std::vector<double> &finished = rank.streams[wait.on()].finished;
    if (finished.size() <= wait.call())
      return false;
    ready = std::max(ready, finished[wait.call()]);
  }
  state.time = ready;
  state.entered = true;
  return true;
}

void Execution::step(int rankClass, int stream, double begin, double end) {
  Rank &rank = ranks_[rankClass];
  Stream &state = rank.streams[stream];
  const std::vector<int> &instructions = list(rank, state.call, stream);
  if (sink_)
    sink_({rankClass, state.call, instructions[state.pos], begin, end});
  state.time = end;
  state.posted = false;
  if (++state.pos < instructions.size())
    return;
  state.finished.push_back(state.time);
  ++state.call;
  state.pos = 0;
  state.entered = false;
}

void Execution::advance(int rankClass, int stream) {
  Rank &rank = ranks_[rankClass];
  Stream &state = rank.streams[stream];
  // Queued while it ran, and now waiting for its partner.
  if (state.posted)
    return;
  bool moved = false;
  while (!done(rank, state)) {
    if (list(rank, state.call, stream).empty()) {
      state.finished.push_back(state.time);
      ++state.call;
      moved = true;
      continue;
    }
    if (!state.entered && !enterCall(rank, stream))
      break;
    const Instruction &instruction = current(rankClass, stream);
    std::map<uint32_t, double> &events = rank.events[state.call];
    if (instruction.kind() == Instruction::RECORD) {
      events[instruction.event()] = state.time;
      step(rankClass, stream, state.time, state.time);
    } else if (instruction.kind() == Instruction::WAIT) {
      auto event = events.find(instruction.event());
      if (event == events.end())
        break;
      double time = std::max(state.time, event->second);
      step(rankClass, stream, time, time);
    } else if (communicates(instruction)) {
      meet(rankClass, stream);
      break;
    } else {
      double begin = state.time;
      step(rankClass, stream, begin,
           begin + cost_({rankClass, state.call,
                          list(rank, state.call, stream)[state.pos]}));
    }
    moved = true;
  }
  if (moved)
    wake(rankClass);
}

void Execution::meet(int rankClass, int stream) {
  Rank &rank = ranks_[rankClass];
  Stream &state = rank.streams[stream];
  const Instruction &instruction = current(rankClass, stream);
  int procedure = rank.program->calls(state.call).procedure();
  int sequence =
      map_.program(rank.index)
          .sequenceOf[procedure][list(rank, state.call, stream)[state.pos]];
  bool collective = instruction.kind() == Instruction::COLLECTIVE;
  Meeting &meeting = meetings_[collective ? rank.collectiveMeeting[sequence]
                                          : rank.transferMeeting[sequence]];
  size_t place = 0;
  if (collective)
    place =
        std::find(meeting.classes.begin(), meeting.classes.end(), rankClass) -
        meeting.classes.begin();
  else
    place = instruction.kind() == Instruction::SEND ? 0 : 1;
  meeting.waiting[place].push_back({rankClass, stream});
  state.posted = true;
  if (meeting.waiting[place].size() == 1)
    announce(static_cast<int>(&meeting - meetings_.data()));
}

// Queues the meeting if somebody waits in every place.
void Execution::announce(int index) {
  double time = 0;
  for (const std::deque<Party> &parties : meetings_[index].waiting) {
    if (parties.empty())
      return;
    const Party &party = parties.front();
    time = std::max(time, ranks_[party.rankClass].streams[party.stream].time);
  }
  ready_.push({time, index});
}

void Execution::hold(int index) {
  Meeting &meeting = meetings_[index];
  std::vector<Party> parties;
  double ready = 0;
  for (std::deque<Party> &waiting : meeting.waiting) {
    parties.push_back(waiting.front());
    waiting.pop_front();
    const Party &party = parties.back();
    ready = std::max(ready, ranks_[party.rankClass].streams[party.stream].time);
  }
  const Party &first = parties.front();
  const Rank &rank = ranks_[first.rankClass];
  const Stream &state = rank.streams[first.stream];
  const ExecutionSite site{first.rankClass, state.call,
                           list(rank, state.call, first.stream)[state.pos]};
  auto [begin, end] = meet_ ? meet_({site, meeting.classes, ready})
                            : std::pair(ready, ready + cost_(site));
  for (const Party &party : parties)
    step(party.rankClass, party.stream, begin, end);
  for (const Party &party : parties)
    wake(party.rankClass);
  announce(index);
}

// The stream that a stuck one waits for.
Execution::Node Execution::blocker(const Node &node) const {
  const Rank &rank = ranks_[node.rankClass];
  const Stream &state = rank.streams[node.stream];
  const Call &call = rank.program->calls(state.call);
  if (!state.entered) {
    for (const CallWait &wait : call.waits())
      if (static_cast<int>(wait.stream()) == node.stream &&
          rank.streams[wait.on()].finished.size() <= wait.call())
        return {node.rankClass, static_cast<int>(wait.on())};
  }
  const Instruction &instruction = current(node.rankClass, node.stream);
  if (instruction.kind() == Instruction::WAIT) {
    for (const Instruction &other :
         rank.program->procedures(call.procedure()).instructions())
      if (other.kind() == Instruction::RECORD &&
          other.event() == instruction.event())
        return {node.rankClass, static_cast<int>(other.stream())};
  }
  int place = list(rank, state.call, node.stream)[state.pos];
  int sequence = map_.program(rank.index).sequenceOf[call.procedure()][place];
  int self = map_.representative(node.rankClass);
  if (instruction.kind() == Instruction::COLLECTIVE) {
    const Meeting &meeting = meetings_[rank.collectiveMeeting[sequence]];
    int kind = map_.ofRank(self).collectives[sequence].kind;
    for (size_t i = 0; i < meeting.classes.size(); ++i) {
      if (!meeting.waiting[i].empty())
        continue;
      for (const CollectiveSequence &other :
           map_.program(ranks_[meeting.classes[i]].index).collectives)
        if (other.kind == kind)
          return {meeting.classes[i], static_cast<int>(other.stream)};
    }
    return node;
  }
  int peer = map_.peer(self, sequence);
  if (peer < 0)
    return node;
  bool send = instruction.kind() == Instruction::SEND;
  for (const TransferSequence &other : map_.ofRank(peer).transfers)
    if (other.send != send && other.channel == instruction.channel())
      return {map_.classOf(peer), static_cast<int>(other.stream)};
  return node;
}

std::string Execution::position(const Node &node) const {
  const Rank &rank = ranks_[node.rankClass];
  const Stream &state = rank.streams[node.stream];
  if (done(rank, state))
    return "is at its end";
  if (!state.entered && list(rank, state.call, node.stream).size())
    return fmt::format("waits before {}",
                       describeCall(*rank.program, state.call));
  return fmt::format("waits at {}", describeAt(*rank.program, state.call,
                                               list(rank, state.call,
                                                    node.stream)[state.pos]));
}

std::string Execution::explainDeadlock() const {
  std::vector<Node> path;
  std::map<Node, size_t> seen;
  for (size_t c = 0; c < ranks_.size() && path.empty(); ++c)
    for (size_t s = 0; s < ranks_[c].streams.size(); ++s)
      if (!done(ranks_[c], ranks_[c].streams[s])) {
        path.push_back({static_cast<int>(c), static_cast<int>(s)});
        break;
      }
  if (path.empty())
    return "";
  // Follow who waits for whom until somebody comes a second time or has ended.
  size_t start = 0;
  while (true) {
    Node node = path.back();
    auto [it, fresh] = seen.emplace(node, path.size() - 1);
    if (!fresh) {
      start = it->second;
      break;
    }
    const Rank &rank = ranks_[node.rankClass];
    if (done(rank, rank.streams[node.stream]))
      break;
    path.push_back(blocker(node));
  }
  // A path that closes is a cycle: print it from where it closes.
  std::string text = "deadlock: ";
  auto name = [&](const Node &node) {
    return fmt::format(
        "rank {} stream \"{}\"", map_.representative(node.rankClass),
        ranks_[node.rankClass].program->streams(node.stream).name());
  };
  for (size_t i = start; i < path.size(); ++i) {
    bool last = i + 1 == path.size();
    text += name(path[i]);
    if (last && start < i)
      break;
    text += (i == start ? " " : ", which ") + position(path[i]);
    if (!last)
      text += " for ";
  }
  return text;
}

std::vector<uint32_t> communicationOrder(const LoadedPlan &plan, int rank) {
  const CommunicationMap map(plan);
  const Program &program = plan.programOf(rank);
  std::vector<uint32_t> order;
  auto note = [&](const ExecutionSpan &span) {
    if (span.rankClass != map.classOf(rank))
      return;
    const Instruction &instruction =
        program.procedures(int(program.calls(span.call).procedure()))
            .instructions(span.instruction);
    if (communicates(instruction))
      order.push_back(instruction.stream());
  };
  Execution execution(
      plan, map, [](const ExecutionSite &) { return 0.0; }, note);
  execution.run();
  return order;
}

} // namespace merak
