// A resharding as messages of boxes: what a plan executes.
#pragma once

#include "passes/Resharding/Resharding.h"

namespace merak::resharding {

struct BoxMessage {
  int64_t from = 0, to = 0;
  // The sender is a device of the target too and has the box from messages
  // before this one.
  bool forwarded = false;
  // In the local tensors of both ends: of a forwarded box the one that the
  // target has on the sender.
  std::vector<int64_t> source, target, extent;
  int leg = 0, transfer = 0; // that it is a part of

  bool operator==(const BoxMessage &) const = default;
};

// All messages in one order that devices which send and receive at the same
// time can execute: each one's parts of it, those that it sends and those that
// it receives, and none before it has what it sends. A broadcast goes along its
// chain chunk by chunk, a gather around its members. Devices of the target
// receive into their tensors what belongs there, and send it on from there.
// Errors: a device of both placements, a stop with more than that.
Result<std::vector<BoxMessage>> messagesOf(const Resharding &resharding);

// How a plan asks for a resharding: "" is the cheapest way. Holders share what
// several receivers get by send-recv. Errors: no such strategy.
Result<ReshardOptions> optionsOfPlan(const std::string &strategy);

} // namespace merak::resharding
