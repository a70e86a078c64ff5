// From two placements of a tensor to an ordered list of transfers that every
// device executes its part of, with the time that a cluster should need.
// docs/Resharding.md explains the method.
#pragma once

#include "passes/Resharding/LinkClock.h"
#include "passes/Resharding/TaskOrder.h"

#include <optional>

namespace merak::resharding {

struct ReshardOptions {
  std::optional<Strategy> strategy; // of all tasks; nothing: the cheapest
  OrderRule order = OrderRule::Best;
  OrderOptions orderOptions;
  // A task for each receiver: what several get may come from several senders,
  // each of which then sends less. For strategies without forwarding.
  bool apart = false;
  // Only stops at which each device has a part of what it has in the target:
  // nothing is kept beside that.
  bool inPlace = false;
};

// What was chosen for a task.
struct TaskPlan {
  Strategy strategy = Strategy::SendRecv;
  int64_t sender = -1; // -1: keepers only, nothing is sent
  int chunks = 1;
  double seconds = 0; // by itself, on idle links
};

// A change of placement without a stop between.
struct Leg {
  Placement source, target;
  std::vector<UnitTask> tasks;
  std::vector<TaskPlan> plans; // by task
  TaskOrder order;
  std::vector<Transfer> transfers; // in the order of their execution
  std::vector<TransferTime> times; // of the transfers, predicted
};

struct Resharding {
  // One, or two where the layout changes on one of the meshes before or after.
  std::vector<Leg> legs;
  int64_t elementBytes = 1;
  double bound = 0;   // seconds, below which no resharding can be
  double seconds = 0; // predicted, with packing and latencies

  // Over links between nodes: bytes that all devices send.
  double sentBytes(const costmodel::Cluster &cluster) const;
};

// Errors: those of unitTasks, devices that the cluster lacks.
Result<Resharding> reshard(const Placement &source, const Placement &target,
                           int64_t elementBytes,
                           const costmodel::Cluster &cluster,
                           const ReshardOptions &options = {});

// The same transfers on another machine: other times, another bound. Errors:
// devices that the cluster lacks.
Status predictOn(Resharding &resharding, const costmodel::Cluster &cluster);

// Messages that a plan has already, each from one device to one: only their
// order is chosen.
struct PlannedMessage {
  int64_t sender = 0, receiver = 0, bytes = 0;
};
Result<Resharding> orderMessages(const std::vector<PlannedMessage> &messages,
                                 const costmodel::Cluster &cluster,
                                 const ReshardOptions &options = {});

// A value that several placements read, in the order of their need: it goes to
// each mesh once, from where that is cheapest, and is kept there.
struct Delivery {
  int reader = 0;
  int from = -1; // a reader that has it; -1: the source
  // No legs: it is there in this layout already.
  Resharding resharding;
};
Result<std::vector<Delivery>> deliver(const Placement &source,
                                      const std::vector<Placement> &readers,
                                      int64_t elementBytes,
                                      const costmodel::Cluster &cluster,
                                      const ReshardOptions &options = {});

// One total order of the transfers of several reshardings that run at the same
// time; of each the order of its own, and of those that could be next the one
// that can begin first.
struct OrderedTransfer {
  int resharding = 0, leg = 0, transfer = 0;
  bool operator==(const OrderedTransfer &) const = default;
};
std::vector<OrderedTransfer>
totalOrder(const std::vector<const Resharding *> &reshardings,
           const costmodel::Cluster &cluster);
// What one device takes part in: every device that executes its restriction of
// one total order gets to its end, whatever it blocks on.
std::vector<OrderedTransfer>
restriction(const std::vector<OrderedTransfer> &order,
            const std::vector<const Resharding *> &reshardings, int64_t device);

} // namespace merak::resharding
