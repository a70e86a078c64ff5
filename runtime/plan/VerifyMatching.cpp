// Both ends of all communication agree: sends and receives of a channel,
// collectives of a group. Pairs of programs are compared once, however many
// ranks run them.
#include "runtime/plan/Communication.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/Shares.h"
#include "runtime/plan/Verify.h"

#include <algorithm>
#include <fmt/format.h>

using namespace merak::planpb;

namespace merak {
namespace {

class MatchingCheck {
public:
  explicit MatchingCheck(const LoadedPlan &plan) : plan_(plan), map_(plan) {
    for (const Program &program : plan.programs)
      trained_.push_back(trainedBy(program));
  }

  Status run() {
    for (size_t p = 0; p < plan_.programs.size(); ++p)
      for (const TransferSequence &sequence : map_.program(p).transfers)
        if (sequence.severalStreams)
          problems_.add(fmt::format(
              "program {} · channel \"{}\" is used on several streams, so that "
              "the order of its {} is not fixed",
              p, sequence.channel, sequence.send ? "sends" : "receives"));
    for (int rank = 0; rank < map_.ranks().size(); ++rank) {
      const ProgramCommunication &comm = map_.ofRank(rank);
      for (size_t t = 0; t < comm.transfers.size(); ++t)
        checkTransfer(rank, static_cast<int>(t));
    }
    for (size_t k = 0; k < map_.kinds().size(); ++k)
      for (const std::vector<int> &members : map_.kinds()[k].members)
        checkGroup(static_cast<int>(k), members);
    return problems_.take();
  }

private:
  int programOf(int rank) const { return plan_.file.ranks(rank).program(); }

  const Instruction &instruction(int program, const CommStep &step) const {
    const Program &proto = plan_.programs[program];
    return proto.procedures(proto.calls(step.call).procedure())
        .instructions(step.instruction);
  }

  std::string at(int rank, const CommStep &step) const {
    return fmt::format("rank {} (program {} · {})", rank, programOf(rank),
                       describeAt(plan_.programs[programOf(rank)], step.call,
                                  step.instruction));
  }

  int64_t microbatch(int program, const CommStep &step) const {
    return plan_.programs[program].calls(step.call).microbatch();
  }

  std::string
  operands(int program,
           const google::protobuf::RepeatedPtrField<Operand> &list) const {
    std::string text;
    for (const Operand &operand : list)
      text +=
          (text.empty() ? "" : ", ") +
          describe(plan_.programs[program].buffers(operand.buffer()).dtype(),
                   operand.shape());
    return text;
  }

  // `apart`: of pipelines that each have microbatches of their own.
  std::string payload(int program, const CommStep &step,
                      bool apart = false) const {
    const Instruction &inst = instruction(program, step);
    std::string text =
        operands(program, inst.kind() == Instruction::RECV ? inst.outputs()
                                                           : inst.inputs());
    int64_t mb = microbatch(program, step);
    return text + (mb < 0  ? std::string(" of no microbatch")
                   : apart ? std::string(" of a microbatch of its pipeline")
                           : fmt::format(" of microbatch {}", mb));
  }

  // Whether they train no microbatch in common.
  bool areApart(int a, int b) const {
    const std::set<int64_t> &ofA = trained_[size_t(a)],
                            &ofB = trained_[size_t(b)];
    return std::none_of(ofA.begin(), ofA.end(),
                        [&](int64_t mb) { return ofB.contains(mb); });
  }

  void checkTransfer(int rank, int t) {
    const TransferSequence &own = map_.ofRank(rank).transfers[t];
    const char *verb = own.send ? "sends" : "receives";
    const char *direction = own.send ? "to" : "from";
    int peer = map_.peer(rank, t);
    if (peer < 0) {
      std::string coords;
      if (own.channelIndex > 0)
        coords = "a rank that its pairs do not name";
      for (const Axis &axis : own.peer)
        coords += fmt::format("{}{}={}", coords.empty() ? "" : ",", axis.name(),
                              axis.size());
      problems_.addOnce(
          fmt::format("nobody {} {}", programOf(rank), t),
          fmt::format("channel \"{}\": rank {} (program {}) {} {} {}, where "
                      "there is no rank",
                      own.channel, rank, programOf(rank), verb, direction,
                      coords));
      return;
    }
    const ProgramCommunication &other = map_.ofRank(peer);
    int found = -1;
    for (size_t i = 0; i < other.transfers.size(); ++i) {
      const TransferSequence &candidate = other.transfers[i];
      if (candidate.send != own.send && candidate.channel == own.channel &&
          map_.peer(peer, static_cast<int>(i)) == rank)
        found = static_cast<int>(i);
    }
    if (found < 0) {
      problems_.addOnce(
          fmt::format("alone {} {} {}", programOf(rank), t, programOf(peer)),
          fmt::format("channel \"{}\": rank {} (program {}) {} {} rank {} "
                      "(program {}), which never {} there",
                      own.channel, rank, programOf(rank), verb, direction, peer,
                      programOf(peer), own.send ? "receives" : "sends"));
      return;
    }
    if (own.send)
      compare(rank, t, own, peer, found, other.transfers[found]);
  }

  void compare(int rank, int t, const TransferSequence &send, int peer, int r,
               const TransferSequence &receive) {
    int a = programOf(rank), b = programOf(peer);
    std::string key = fmt::format("transfer {} {} {} {}", a, t, b, r);
    if (!compared_.insert(key).second)
      return;
    if (send.steps.size() != receive.steps.size())
      problems_.add(fmt::format(
          "channel \"{}\": rank {} (program {}) sends {} times a step to rank "
          "{} (program {}), which receives {} times",
          send.channel, rank, a, send.steps.size(), peer, b,
          receive.steps.size()));
    size_t n = std::min(send.steps.size(), receive.steps.size());
    for (size_t i = 0; i < n; ++i) {
      std::string sent = payload(a, send.steps[i]);
      std::string expected = payload(b, receive.steps[i]);
      if (sent == expected)
        continue;
      problems_.add(fmt::format(
          "channel \"{}\": {} sends {}, but {} expects {}", send.channel,
          at(rank, send.steps[i]), sent, at(peer, receive.steps[i]), expected));
      break; // what follows is shifted
    }
  }

  // What all members of a collective must agree on.
  std::string signature(int program, const CommStep &step, bool apart) const {
    const Instruction &inst = instruction(program, step);
    std::string text = opName(inst);
    if (inst.collective() == Instruction::ALL_REDUCE ||
        inst.collective() == Instruction::REDUCE_SCATTER)
      text += " " + reductionName(inst.reduction());
    if (inst.collective() == Instruction::ALL_TO_ALL)
      text += fmt::format(" dimensions {} and {}", inst.dim(), inst.dim2());
    else if (inst.collective() == Instruction::ALL_GATHER ||
             inst.collective() == Instruction::REDUCE_SCATTER)
      text += fmt::format(" dimension {}", inst.dim());
    return text + " of " + payload(program, step, apart);
  }

  void checkGroup(int kind, const std::vector<int> &members) {
    // The first member of each program that takes part.
    std::map<int, int> firsts;
    for (int member : members)
      firsts.emplace(programOf(member), member);
    int leader = members.front();
    for (auto [program, rank] : firsts)
      if (program != programOf(leader))
        compareGroup(kind, leader, rank);
  }

  std::vector<CommStep> steps(int program, int kind) const {
    for (const CollectiveSequence &sequence : map_.program(program).collectives)
      if (sequence.kind == kind)
        return sequence.steps;
    return {};
  }

  void compareGroup(int kind, int rankA, int rankB) {
    int a = programOf(rankA), b = programOf(rankB);
    if (!compared_.insert(fmt::format("group {} {} {}", kind, a, b)).second)
      return;
    std::vector<CommStep> stepsA = steps(a, kind), stepsB = steps(b, kind);
    std::string group = "group " + map_.kinds()[kind].str();
    size_t n = std::min(stepsA.size(), stepsB.size());
    const bool apart = areApart(a, b);
    for (size_t i = 0; i < n; ++i) {
      std::string mine = signature(a, stepsA[i], apart);
      std::string theirs = signature(b, stepsB[i], apart);
      if (mine == theirs)
        continue;
      problems_.add(fmt::format("{}: collective {} is {} at {}, but {} at {}",
                                group, i, mine, at(rankA, stepsA[i]), theirs,
                                at(rankB, stepsB[i])));
      return;
    }
    if (stepsA.size() == stepsB.size())
      return;
    bool more = stepsA.size() > stepsB.size();
    int extra = more ? rankA : rankB, missing = more ? rankB : rankA;
    problems_.add(fmt::format(
        "{}: {} is not joined by rank {} (program {}), which takes part in {} "
        "collectives of this group where rank {} takes part in {}",
        group, at(extra, (more ? stepsA : stepsB)[n]), missing,
        programOf(missing), n, extra, (more ? stepsA : stepsB).size()));
  }

  const LoadedPlan &plan_;
  CommunicationMap map_;
  Problems problems_;
  std::vector<std::set<int64_t>> trained_; // microbatches, by program
  std::set<std::string> compared_;
};

} // namespace

Status verifyMatching(const LoadedPlan &plan) {
  return MatchingCheck(plan).run();
}

} // namespace merak
