// When a value is on its way between two stages, as places in their lists: so
// long can it lie with its sender, and so early does its receiver need room for
// it. The planner's memory and the plan's slots are both counted with this.
//
// Lists are run with every action taking one unit, twice if they are ahead of
// their transfers, as eager is: with transfers that take no time, and with the
// longest ones that the lists hide (docs/Resharding.md, "Hiding what is left").
// 1F1B hides none, and of lists with several parts a stage none are known.
#pragma once

#include "passes/Planning/StepOrder.h"

namespace merak::planning {

class TransferPlaces {
public:
  // `transfers`: what stages wait for; empty: their neighbours. The schedule
  // is not kept.
  explicit TransferPlaces(const Schedule &schedule,
                          std::vector<Transfer> transfers = {});

  // By microbatch: so many of the receiver's steps have ended when the value
  // needs room there at the latest.
  //
  // Where transfers take no time that is when the sender may want the buffer
  // again, at the second next run of its action at the earliest (slots are
  // planned for the action and one more; passes/Memory/SlotPlan.h): with room
  // from here, or from earlier, to the last use, that run is possible with the
  // buffers there are, without a wait, so no list that can run at all deadlocks
  // in its transfers. Where they take as long as the lists hide, or `atOnce`,
  // the transfer begins when the run ends. The list's length where neither
  // asks for room, and everywhere if the lists cannot run.
  std::vector<int> arrivals(const Transfer &transfer,
                            bool atOnce = false) const;
  // The same of the sender's own steps: so many have begun when the value has
  // left; 0 where transfers take no time.
  std::vector<int> departures(const Transfer &transfer) const;

  // Places of an action of a virtual stage in the list of its stage, ascending.
  const std::vector<int> &placesOf(int virtualStage, Action action) const {
    return runsOf(virtualStage, action).places;
  }

private:
  struct Runs {
    std::vector<int> places, microbatches;
  };
  struct Run { // of all lists
    bool finished = true;
    std::vector<std::vector<int>> ends; // by stage and place
  };
  Run runWith(const StepOrder &order, const Schedule &schedule,
              const std::vector<BoundaryCost> &boundaries) const;
  const Runs &runsOf(int virtualStage, Action action) const {
    return runs[size_t(virtualStage) * kActions + size_t(action)];
  }
  // Units of the transfers of a virtual stage.
  int unitsOf(int virtualStage, Action action) const;

  int stages, microbatches;
  std::vector<Runs> runs;  // by virtual stage and action
  std::vector<int> hidden; // units by boundary; empty: none
  Run atZero, hiding;      // the second one where something is hidden
};

// The same for given transfers, by microbatch.
struct TransferRoom {
  std::vector<int> arrivals, departures;
};
std::vector<TransferRoom> roomsOf(const Schedule &schedule,
                                  const std::vector<Transfer> &transfers,
                                  bool atOnce = false);

} // namespace merak::planning
