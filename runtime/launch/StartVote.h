// Who may start a run. Each start has a number, and each host grants a number
// to one agent: the first that asks it, unless it has granted a later start
// before. Its word stands in the run's folder in the host's memory
// (runtime/checkpoint/CopyFolder.h), file "granted": NUMBER AGENT.
//
// So of two agents that each take the other for lost at most one is granted
// the next start by more than half of the hosts.
#pragma once

#include "runtime/checkpoint/CopyFolder.h"

namespace merak::runtime {

struct StartVote {
  CopyRun start;     // id and number
  std::string agent; // its host
};

// ID:NUMBER:AGENT, for --grant of merak-run on a host.
std::string grantArgument(const StartVote &vote);
// On this host. Errors: another agent was granted it, or a later one; the
// folder cannot be written; the text is none.
Status grantStart(const std::string &text,
                  const std::string &base = copiesBase());

// The start that an agent asks for. Until it is begun it is asked for again
// with the same number: hosts that have granted that to another agent meanwhile
// would grant a later one, as they do to whoever succeeds that agent.
class StartClaim {
public:
  // Of the numbers from `next` on the first; false if there was one already.
  bool make(int64_t &next) {
    if (isOpen_)
      return false;
    number_ = next++;
    return isOpen_ = true;
  }
  void begin() { isOpen_ = false; }
  int64_t number() const { return number_; } // that comes, or came last

private:
  int64_t number_ = 0;
  bool isOpen_ = false;
};

// Whether an agent that some others do not hear may lead: `granted` of `hosts`
// have granted it the next start. Who leads needs more than half. Of those
// that stand by the first needs half, all others more: so no two sides of a
// network that is torn apart go on, and if there is one half only, it does.
bool mayLead(size_t granted, size_t hosts, bool isFirstStandby);

} // namespace merak::runtime
