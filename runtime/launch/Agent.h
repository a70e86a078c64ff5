// A process that outlives the run that it starts: when the run is lost, it is
// started again from the newest checkpoint, on the hosts that are still there,
// under the fastest plan that has a place on them (AgentPlans.h). With copies
// in the hosts' memory the run itself finds out whether they are newer
// (RunCopies.h). The agent itself trains nothing, and whatever ends a run does
// not end it.
//
//   run lost ─► which hosts answer? ─► plan for these ─► run, from the newest
//                     │                       │          generation of --save
//                     │                       └─ a faster one was made,
//                     └─ or a host answers again: save, end, the same way
//
//   run asks for a plan without a device ─► run, on the devices of that plan
//   (kStartAgain)      │
//                      └─ the device is normal again (LeftOut.h): save, end
//
// What a run is started with is its own command line, but for the plan, --load
// and --steps, so a run under an agent is one that a user could have started.
// Of copies it is told besides whose they are.
#pragma once

#include "runtime/launch/PlanPool.h"

#include <set>
#include <string>
#include <vector>

namespace merak::runtime {

inline constexpr double kLeastAgentSeconds = 2;
// With this exit code a run asks to be started again with another plan, which
// its log names: its state is safe (Replan.h).
inline constexpr int kStartAgain = 75;

struct AgentOptions {
  int64_t restarts = 0;      // at most; 0: no agent
  std::string launcher;      // a shell's; empty: ranks are threads of a process
  std::string hosts;         // HOST:RANKS,... for {hosts} of the launcher
  double silenceSeconds = 0; // without a step: killed; 0: never
  double lookSeconds = 60;   // between looks at lost hosts
  // Other agents may come and stand by (AgentLead.h).
  int standbys = -1;       // a port for them, 0: any; -1: none
  double agentSeconds = 5; // without a sign of life of an agent: silent
  std::string standby;     // HOST:PORT,...: this one stands by (Standby.h)
  std::string grant;       // instead of a run: StartVote.h
  std::string probe;       // instead of a run: LeftOut.h
};

// What an agent has to know of the run's options.
struct AgentRun {
  std::vector<std::string> arguments; // but plan, --steps and --load
  std::string plan, save, load, log;
  PlanSource source; // of plans for fewer hosts
  int64_t steps = 1;
  bool replans = false; // it measures how slow devices are, whatever the plan
  bool copies = false;  // of the state in memory
  int64_t copiesEvery = 0;
  bool trustPlan = false;
};

// Whom an agent works with, and what it goes on from.
class AgentLead;
struct AgentSituation;
struct AgentSuccession {
  std::string id;            // of the run; empty: a new one
  AgentLead *lead = nullptr; // others stand by; null: nobody does
  // Of the agent before this one, with what has changed since, and the hosts
  // that were lost before; null: the run begins.
  const AgentSituation *inherited = nullptr;
  std::set<std::string> lostBefore;
  std::string why; // the run is started again
};

// The exit code of the last run, 1 if it was lost more often than allowed, or
// if another agent leads.
int runAgent(const AgentRun &run, const AgentOptions &options,
             const PlanPrices &prices, const AgentSuccession &succession = {});

} // namespace merak::runtime
