// How long a sent value can wait with its sender, and so from when on its
// receiver needs room for it. The planner's memory and the plan's slots are
// both counted with this, whatever the stages between the two ends.
#pragma once

#include "passes/Planning/ScheduleSimulate.h"

namespace merak::planning {

// For each transfer and microbatch a place in the list of the receiving stage:
// so many of its steps have ended when the sender may want the buffer again,
// which is at the second next run of the sending action at the earliest (slots
// are planned for the action and one more; passes/Memory/SlotPlan.h). Counted
// where every action takes one unit and transfers none.
//
// With room from here, or from earlier, to the last use, that run is possible
// with the buffers there are, without a wait: no list that can run at all
// deadlocks in its transfers. The list's length where the sender needs the
// buffer no more, and everywhere if the lists cannot run.
//
// `atOnce`: the sender wants the buffer again when its run ends, since it waits
// for the transfer.
std::vector<std::vector<int>>
receiveDeadlines(const Schedule &schedule,
                 const std::vector<Transfer> &transfers, bool atOnce = false);

} // namespace merak::planning
