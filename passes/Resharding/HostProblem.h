// Unit tasks as a problem of order over the interfaces of a cluster.
#pragma once

#include "passes/Resharding/TaskOrder.h"
#include "passes/Resharding/Transfers.h"

namespace merak::resharding {

// The problem of section 3 of the paper: bytes over bandwidth alone, a task
// occupies all that it needs for its whole time. Choices are interfaces to send
// by; `senders[task][choice]` are the devices behind them. Only senders from
// which the message has to go to the fewest other nodes are choices.
struct HostProblem {
  OrderProblem order;
  std::vector<std::vector<std::vector<int64_t>>> senders;
};
HostProblem hostProblem(const std::vector<UnitTask> &tasks,
                        const std::vector<Strategy> &strategies,
                        int64_t elementBytes,
                        const costmodel::Cluster &cluster);

} // namespace merak::resharding
