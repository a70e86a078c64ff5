// An agent that others stand by for (Standby.h): it tells them all that they
// need to go on without it, and it goes on itself only as long as none of them
// can have taken over.
//
//   all of them answer, or their processes are gone ─► it leads
//   one is silent ─► all hosts are asked for the next start (StartVote.h)
//        more than half grant it ─► it leads, and that one does no more
//        else ─► it may be the one that is cut off: it ends its run and itself
#pragma once

#include "runtime/comm/rendezvous/AgentHub.h"
#include "runtime/launch/AgentState.h"
#include "runtime/launch/HostLooks.h"
#include "runtime/launch/StartVote.h"

#include <functional>

namespace merak::runtime {

// This program, as other hosts have it too.
std::string thisProgram();
// The secret that agents show each other, made of the run's (LaunchIdentity.h),
// so that a rank cannot be taken for an agent.
Result<std::string> agentToken();
// Whose a folder of checkpoints is; empty: nobody's, or there is none.
std::string saverOf(const std::string &folder);

class AgentLead {
public:
  using Names = std::set<std::string>;

  AgentLead(AgentTask task, std::unique_ptr<AgentHub> hub);
  // Of the agent that begins a run; `options.standbys` is its port.
  static Result<std::unique_ptr<AgentLead>>
  open(const AgentRun &run, const AgentOptions &options, const std::string &id);

  int port() const { return hub_->port(); }
  // To all that stand by; `leader` is filled in.
  void publish(AgentSituation situation);

  // Those of the hosts that grant a start.
  Names grants(const Names &hosts, const CopyRun &start) const;
  // Behind that, of a run that is over: why this agent may not start it again;
  // empty: it may. `voters`: hosts that were not lost before.
  std::string refusal(const Names &granted, const Names &voters);
  // While a run is under way, again and again; does not wait. As above;
  // `claim` says the next start, the same until it is begun.
  std::string look(const Names &voters, const std::function<CopyRun()> &claim);
  // Why another one leads; empty: none does.
  std::string successor() const;

  // The run is over.
  void finish(int code) { hub_->finish(code); }

private:
  std::string judge(const Names &granted, const Names &voters,
                    const std::vector<AgentMember> &silent);
  std::vector<std::string> voteCommand(const CopyRun &start) const;

  AgentTask task_;
  std::unique_ptr<AgentHub> hub_;
  // Hosts that are being asked, because of some that are silent.
  HostLooks looks_;
  Names granted_;
  std::chrono::steady_clock::time_point asked_;
  std::vector<AgentMember> silent_;
};

// As runAgent, with `options.standbys`.
int runLead(const AgentRun &run, const AgentOptions &options,
            const PlanPrices &prices);

} // namespace merak::runtime
