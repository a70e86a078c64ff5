// What an agent knows of its run that another agent needs to go on with it
// (Standby.h): how the run was asked for, and how far it came. One agent sends
// it, others keep the newest.
#pragma once

#include "runtime/launch/Agent.h"
#include "runtime/launch/LeftOut.h"

#include <map>
#include <optional>
#include <set>

namespace merak::runtime {

// A checkpoint to go on from.
struct AgentPosition {
  std::string load, run; // run: its name in the manifest
  int64_t step = 0;
  bool operator==(const AgentPosition &) const = default;
};

// The same from the first start of a run to its end.
struct AgentTask {
  AgentRun run;
  AgentOptions options;
  std::string folder; // that relative paths begin in
  // Variables MERAK_* but secrets.
  std::map<std::string, std::string> environment;
  std::string digest; // of the first plan
};

struct AgentSituation {
  std::string leader; // host
  std::string id;     // of the run, in its hosts' memory too
  int64_t next = 0;   // number of a start that nobody claims yet
  AgentPosition first;
  std::optional<AgentPosition> before; // what --save had before the run
  int64_t last = 0;                    // step to end after
  std::set<std::string> lost;          // hosts
  std::string plan;                    // of the run that is under way
  int64_t restarts = 0, takeOvers = 0;
  int64_t furthest = 0; // step that any run did
  int inVain = 0;
  std::vector<double> rates; // of all devices; empty: not measured
  // By the plan of the run that is under way.
  std::vector<LeftOutDevice> leftOut;
  // The entry of the log for the start that is under way; empty: the first.
  std::string restart;
  // Whose folder --save is by now, as its lock says; empty: nobody's.
  std::string saver;
};

struct AgentState {
  AgentTask task;
  AgentSituation situation;
};

// The same for plans that are equal, wherever they lie.
std::string digestOf(const LoadedPlan &plan);

std::string encodeState(const AgentState &state);
// Errors: it is of another version of this program, or damaged.
Result<AgentState> decodeState(const std::string &text);

} // namespace merak::runtime
