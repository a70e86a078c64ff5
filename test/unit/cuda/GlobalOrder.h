// What is ordered before what in a step of all ranks of a plan: by streams,
// events and waits between calls, and by communication, which orders what comes
// before it on each of its ranks before what comes after it on all.
#pragma once

#include "runtime/plan/Plan.h"

#include <map>
#include <set>

namespace merak::test {

class GlobalOrder {
public:
  explicit GlobalOrder(const LoadedPlan &plan);

  // Of a plan that lacks a wait, on every rank of the program: whether what it
  // waited for is ordered all the same before what comes after its place.
  // `wait`: an instruction that waited for an event, now of another kind.
  bool eventHolds(int program, int procedure, int wait) const;
  // Of a call that has lost `wait`.
  bool callHolds(int program, int call, const planpb::CallWait &wait) const;

private:
  using Clock = std::map<std::pair<int, uint32_t>, int>; // by rank, stream
  struct Place {
    Clock clock;      // when it is asked for
    int position = 0; // among the instructions of its stream
  };
  struct Lane {
    int call = 0;
    int next = 0; // instruction of the call
    int position = 0;
    bool entered = false, posted = false;
    Clock clock;
  };
  struct Rank {
    const planpb::Program *program = nullptr;
    std::vector<Lane> lanes;
    // By call: the clock of each stream at its end, and of recorded events.
    std::vector<std::vector<Clock>> finished;
    std::vector<std::map<uint32_t, Clock>> events;
    // By call and instruction; and by call and stream, where they begin.
    std::map<std::pair<int, int>, Place> places;
    std::map<std::pair<int, uint32_t>, Clock> begins;
    std::map<std::pair<int, uint32_t>, int> ends; // positions
  };

  bool advance(int rank, uint32_t stream);
  bool enter(Rank &rank, uint32_t stream);
  bool communicate(int rank, uint32_t stream, const planpb::Instruction &what);
  void pass(int rank, uint32_t stream);
  std::pair<std::string, std::set<int>>
  meeting(int rank, const planpb::Instruction &what) const;

  const LoadedPlan &plan_;
  RankMap map_;
  std::vector<Rank> ranks_;
  // Who waits in each meeting: rank and stream.
  std::map<std::string, std::vector<std::pair<int, uint32_t>>> waiting_;
};

} // namespace merak::test
