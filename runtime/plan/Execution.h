// Executes the control flow of a whole plan without data: streams, events, call
// waits, blocking transfers and collectives, each instruction taking as long as
// a cost function says. One engine for the deadlock proof (all costs zero) and
// the simulator.
//
// One rank of each class of CommunicationMap is executed. That is exact: the
// instructions of a rank do not depend on timing, so all orders of execution
// end in the same state, and in one of them all ranks of a class move in step.
#pragma once

#include "runtime/plan/Communication.h"

#include <deque>
#include <functional>
#include <queue>

namespace merak {

// An instruction of a call on a class of ranks.
struct ExecutionSite {
  int rankClass;
  int call, instruction;
};
struct ExecutionSpan {
  int rankClass;
  int call, instruction;
  double begin, end; // seconds; a transfer begins when both ends are there
};

class Execution {
public:
  // Seconds of one instruction. A communication is asked for at one of its
  // ends, the one that comes last.
  using Cost = std::function<double(const ExecutionSite &)>;
  // From when to when a communication lasts whose last party came at `ready`.
  // Asked for in the order of `ready`, so that links can be shared. `classes`:
  // sender and receiver, or those of the group.
  struct Encounter {
    ExecutionSite site; // of the first of the classes
    const std::vector<int> &classes;
    double ready;
  };
  using Meet = std::function<std::pair<double, double>(const Encounter &)>;
  // Told every instruction, also those that take no time.
  using Sink = std::function<void(const ExecutionSpan &)>;

  // `map` must describe `plan` and both must outlive this. Without `meet` a
  // communication takes what `cost` says, from the moment all are there.
  Execution(const LoadedPlan &plan, const CommunicationMap &map, Cost cost,
            Sink sink, Meet meet = nullptr);

  // True if every stream came to its end.
  bool run();
  // Latest end of any stream.
  double seconds() const;
  // After a run that got stuck: the cycle of ranks that wait for each other,
  // as one sentence.
  std::string explainDeadlock() const;

private:
  struct Stream {
    int call = 0;   // calls before it are finished
    size_t pos = 0; // in the call's instructions of this stream
    bool entered = false, posted = false, queued = false;
    double time = 0;
    std::vector<double> finished; // by call
  };
  struct Rank { // of one class
    const planpb::Program *program;
    int index; // of the program
    std::vector<Stream> streams;
    std::vector<std::map<uint32_t, double>> events;      // recorded, by call
    std::vector<int> transferMeeting, collectiveMeeting; // by sequence
  };
  struct Party {
    int rankClass, stream;
  };
  // Where the ends of a channel (parties: sender, receiver) or the classes of
  // a group meet.
  struct Meeting {
    std::vector<std::deque<Party>> waiting;
    std::vector<int> classes; // of the parties
  };
  struct Node {
    int rankClass, stream;
    bool operator<(const Node &other) const {
      return std::pair(rankClass, stream) <
             std::pair(other.rankClass, other.stream);
    }
  };

  void buildMeetings();
  const std::vector<int> &list(const Rank &rank, int call, int stream) const;
  const planpb::Instruction &current(int rankClass, int stream) const;
  void advance(int rankClass, int stream);
  bool enterCall(Rank &rank, int stream);
  // Takes the stream past its current instruction.
  void step(int rankClass, int stream, double begin, double end);
  void meet(int rankClass, int stream);
  void hold(int meeting); // all parties are there
  void announce(int meeting);
  void wake(int rankClass);
  void enqueue(int rankClass, int stream);
  bool done(const Rank &rank, const Stream &stream) const;
  Node blocker(const Node &node) const;
  std::string position(const Node &node) const;

  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  Cost cost_;
  Sink sink_;
  Meet meet_;
  // Instructions by program, procedure, stream.
  std::vector<std::vector<std::vector<std::vector<int>>>> lists_;
  std::vector<Rank> ranks_;
  std::vector<Meeting> meetings_;
  std::deque<Node> queue_;
  // Meetings whose parties are all there, earliest first: nothing that comes
  // later can be ready before them.
  struct Ready {
    double time;
    int meeting;
    bool operator<(const Ready &other) const {
      return std::pair(time, meeting) > std::pair(other.time, other.meeting);
    }
  };
  std::priority_queue<Ready> ready_;
};

// The communicating instructions of a step of the rank, by their streams, in an
// order that the ranks of the plan share: where each rank issues them in its
// own part of it, from one thread, and each waits until the others have issued
// theirs, none waits for ever. Of a plan that makes progress.
std::vector<uint32_t> communicationOrder(const LoadedPlan &plan, int rank);

} // namespace merak
