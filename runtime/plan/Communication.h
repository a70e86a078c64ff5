// Who talks to whom in a plan: the ordered transfers and collectives of each
// program, the peers and groups of each rank, and the classes of ranks that
// behave alike.
//
// Two ranks are alike if they run the same program and their peers and groups
// are alike in turn. A plan of 8 stages with 64 ranks each has 8 classes, and
// whatever is true of the order of communication can be found out on one rank
// of each.
#pragma once

#include "runtime/plan/Plan.h"

#include <map>

namespace merak {

// Whether ranks meet in it: a transfer or a collective.
bool communicates(const planpb::Instruction &instruction);

// One execution of an instruction.
struct CommStep {
  int call, instruction;
};

// The uses of one channel in one direction by one program, in order.
struct TransferSequence {
  bool send;
  std::string channel;
  google::protobuf::RepeatedPtrField<planpb::Axis> peer;
  uint32_t channelIndex; // as in the instructions
  uint32_t stream;
  bool severalStreams = false; // then the order is not fixed
  std::vector<CommStep> steps;
};

// The collectives of one program over one group on one stream, in order. Ends
// meet by group and name of the stream.
struct CollectiveSequence {
  int kind; // of CommunicationMap
  uint32_t stream;
  std::vector<CommStep> steps;
};

struct ProgramCommunication {
  std::vector<TransferSequence> transfers;
  std::vector<CollectiveSequence> collectives;
  // Index of the sequence of a communicating instruction: procedure,
  // instruction; -1 for others.
  std::vector<std::vector<int>> sequenceOf;
};

// Which streams a transfer goes from and to: equal on both ends, and different
// for different streams. What goes between the same two has one order on both
// ends, or the ranks would wait for each other. The channel if there is no
// other end. Any rank's SEND or RECV.
std::string transferStreams(const LoadedPlan &plan, const RankMap &ranks,
                            int rank, const planpb::Instruction &transfer);

class CommunicationMap {
public:
  // Requires verifyStructure to have passed.
  explicit CommunicationMap(const LoadedPlan &plan);

  const LoadedPlan &plan() const { return plan_; }
  const RankMap &ranks() const { return ranks_; }
  const ProgramCommunication &program(int index) const {
    return programs_[index];
  }
  const ProgramCommunication &ofRank(int rank) const {
    return programs_[plan_.file.ranks(rank).program()];
  }
  // The other end of a transfer sequence of the rank's program; -1: nobody.
  int peer(int rank, int transfer) const { return peers_[rank][transfer]; }

  // A kind of group: its axes (in order) or its name, and that of the stream.
  struct Kind {
    planpb::Group group;
    std::string stream;
    std::vector<int> instanceOf;           // by rank; -1: none formed here
    std::vector<std::vector<int>> members; // by instance
    std::string str() const;               // "(dp,tp) on stream \"comm\""
  };
  const std::vector<Kind> &kinds() const { return kinds_; }
  const std::vector<int> &members(int rank, int kind) const {
    return kinds_[kind].members[kinds_[kind].instanceOf[rank]];
  }

  int classes() const { return static_cast<int>(representative_.size()); }
  int classOf(int rank) const { return classOf_[rank]; }
  int representative(int index) const { return representative_[index]; }

private:
  void collect(int program);
  void formGroups();
  void refine();
  int kindOf(const planpb::Group &group, const std::string &stream);

  const LoadedPlan &plan_;
  RankMap ranks_;
  std::vector<ProgramCommunication> programs_;
  std::vector<Kind> kinds_;
  std::vector<std::vector<int>> peers_; // by rank, transfer sequence
  std::vector<int> classOf_, representative_;
};

} // namespace merak
