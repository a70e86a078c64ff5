#include "runtime/plan/Communication.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace merak::planpb;

namespace merak {
namespace {

std::string peerKey(const google::protobuf::RepeatedPtrField<Axis> &peer) {
  std::string key;
  for (const Axis &axis : peer)
    key += fmt::format("{}={} ", axis.name(), axis.size());
  return key;
}

bool sameGroup(const Group &a, const Group &b) {
  return a.named() == b.named() && std::equal(a.axes().begin(), a.axes().end(),
                                              b.axes().begin(), b.axes().end());
}

} // namespace

bool communicates(const Instruction &instruction) {
  return instruction.kind() == Instruction::SEND ||
         instruction.kind() == Instruction::RECV ||
         instruction.kind() == Instruction::COLLECTIVE;
}

std::string transferStreams(const LoadedPlan &plan, const RankMap &ranks,
                            int rank, const Instruction &transfer) {
  const bool sends = transfer.kind() == Instruction::SEND;
  const auto wanted = sends ? Instruction::RECV : Instruction::SEND;
  const int peer = ranks.peer(rank, transfer);
  if (peer < 0 || peer >= ranks.size())
    return transfer.channel();
  for (const Procedure &procedure : plan.programOf(peer).procedures())
    for (const Instruction &instruction : procedure.instructions())
      if (instruction.kind() == wanted &&
          instruction.channel() == transfer.channel() &&
          ranks.peer(peer, instruction) == rank)
        return fmt::format("stream {} to {}",
                           (sends ? transfer : instruction).stream(),
                           (sends ? instruction : transfer).stream());
  return transfer.channel();
}

std::string CommunicationMap::Kind::str() const {
  return fmt::format("({}) on stream \"{}\"", groupStr(group), stream);
}

CommunicationMap::CommunicationMap(const LoadedPlan &plan)
    : plan_(plan), ranks_(plan.file) {
  programs_.resize(plan.programs.size());
  for (size_t i = 0; i < plan.programs.size(); ++i)
    collect(static_cast<int>(i));
  peers_.resize(ranks_.size());
  for (int rank = 0; rank < ranks_.size(); ++rank)
    for (const TransferSequence &sequence : ofRank(rank).transfers)
      peers_[rank].push_back(ranks_.peer(rank, sequence.send,
                                         sequence.channelIndex, sequence.peer));
  formGroups();
  refine();
}

int CommunicationMap::kindOf(const Group &group, const std::string &stream) {
  for (size_t i = 0; i < kinds_.size(); ++i)
    if (sameGroup(kinds_[i].group, group) && kinds_[i].stream == stream)
      return static_cast<int>(i);
  kinds_.push_back({group, stream, {}, {}});
  return static_cast<int>(kinds_.size()) - 1;
}

void CommunicationMap::collect(int index) {
  const Program &program = plan_.programs[index];
  ProgramCommunication &result = programs_[index];
  std::map<std::string, int> transfers;
  std::map<std::pair<int, uint32_t>, int> collectives;
  for (const Procedure &procedure : program.procedures()) {
    std::vector<int> &sequenceOf =
        result.sequenceOf.emplace_back(procedure.instructions_size(), -1);
    for (int i = 0; i < procedure.instructions_size(); ++i) {
      const Instruction &instruction = procedure.instructions(i);
      if (instruction.kind() == Instruction::SEND ||
          instruction.kind() == Instruction::RECV) {
        bool send = instruction.kind() == Instruction::SEND;
        auto [it, fresh] = transfers.emplace(
            fmt::format("{} {} {}", send, peerKey(instruction.peer()),
                        instruction.channel()),
            static_cast<int>(result.transfers.size()));
        if (fresh)
          result.transfers.push_back(
              {send, instruction.channel(), instruction.peer(),
               instruction.channel_index(), instruction.stream()});
        TransferSequence &sequence = result.transfers[it->second];
        sequence.severalStreams |= sequence.stream != instruction.stream();
        sequenceOf[i] = it->second;
      } else if (instruction.kind() == Instruction::COLLECTIVE) {
        int kind = kindOf(program.groups(instruction.group()),
                          program.streams(instruction.stream()).name());
        auto [it, fresh] =
            collectives.emplace(std::pair(kind, instruction.stream()),
                                static_cast<int>(result.collectives.size()));
        if (fresh)
          result.collectives.push_back({kind, instruction.stream(), {}});
        sequenceOf[i] = it->second;
      }
    }
  }
  for (int c = 0; c < program.calls_size(); ++c) {
    int p = program.calls(c).procedure();
    for (int i = 0; i < program.procedures(p).instructions_size(); ++i) {
      int sequence = result.sequenceOf[p][i];
      if (sequence < 0)
        continue;
      if (program.procedures(p).instructions(i).kind() ==
          Instruction::COLLECTIVE)
        result.collectives[sequence].steps.push_back({c, i});
      else
        result.transfers[sequence].steps.push_back({c, i});
    }
  }
}

void CommunicationMap::formGroups() {
  for (Kind &kind : kinds_)
    kind.instanceOf.assign(ranks_.size(), -1);
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    for (const CollectiveSequence &sequence : ofRank(rank).collectives) {
      Kind &kind = kinds_[sequence.kind];
      if (kind.instanceOf[rank] >= 0)
        continue;
      kind.members.push_back(ranks_.members(rank, kind.group));
      for (int member : kind.members.back())
        kind.instanceOf[member] = static_cast<int>(kind.members.size()) - 1;
    }
  }
}

void CommunicationMap::refine() {
  classOf_.resize(ranks_.size());
  size_t count = 0;
  for (int rank = 0; rank < ranks_.size(); ++rank)
    classOf_[rank] = static_cast<int>(plan_.file.ranks(rank).program());
  while (true) {
    // What the members of each group instance are now, as a number.
    std::map<std::map<int, int>, int> mixes;
    std::vector<std::vector<int>> mixOf(kinds_.size());
    for (size_t k = 0; k < kinds_.size(); ++k) {
      for (const std::vector<int> &members : kinds_[k].members) {
        std::map<int, int> mix;
        for (int member : members)
          ++mix[classOf_[member]];
        mixOf[k].push_back(
            mixes.emplace(mix, static_cast<int>(mixes.size())).first->second);
      }
    }
    std::map<std::vector<int>, int> signatures;
    std::vector<int> next(ranks_.size());
    representative_.clear();
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<int> signature{classOf_[rank]};
      for (int peer : peers_[rank])
        signature.push_back(peer < 0 ? -1 : classOf_[peer]);
      for (size_t k = 0; k < kinds_.size(); ++k)
        if (int instance = kinds_[k].instanceOf[rank]; instance >= 0)
          signature.push_back(mixOf[k][instance]);
      auto [it, fresh] =
          signatures.emplace(signature, static_cast<int>(signatures.size()));
      if (fresh)
        representative_.push_back(rank);
      next[rank] = it->second;
    }
    classOf_ = std::move(next);
    if (signatures.size() == count)
      return;
    count = signatures.size();
  }
}

} // namespace merak
