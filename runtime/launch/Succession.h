// Who goes on with a run whose agent is lost, and when: those that stand by,
// in the order in which they came to it. No clock, no connection.
//
//   leader lost ─► first of them ─► second ─► ...
//                  asks hosts       has waited for the first to lead
#pragma once

#include "runtime/core/Status.h"

#include <string>
#include <vector>

namespace merak::runtime {

// In times of silence (AgentOptions::agentSeconds): who is silent has become
// so after one, and has by then ended its run after two more, if it is the one
// that is cut off.
constexpr double kCutOffSilences = 3;
// For one that comes before to ask all hosts, and to lead.
constexpr double kTurnSilences = 3;

// Seconds from the last sign of life of the leader until the agent in this
// `place` (0: the first) asks hosts for the next start. `isGone`: the leader's
// process is known to have ended.
double secondsToTurn(size_t place, bool isGone, double silenceSeconds);

// Where an agent listens.
struct AgentPlace {
  std::string host;
  int port = 0;
  bool operator==(const AgentPlace &) const = default;
};
// "a:29600,[::1]:29600". Errors: all that is no HOST:PORT.
Result<std::vector<AgentPlace>> parseAgents(const std::string &text);

} // namespace merak::runtime
