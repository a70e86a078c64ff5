#include "runtime/launch/AgentCopies.h"

#include "runtime/core/SecondsSince.h"
#include "runtime/launch/HostLooks.h"
#include "runtime/launch/Places.h"
#include "runtime/launch/RunCopies.h"

#include <fmt/format.h>

#include <csignal>
#include <sys/wait.h>
#include <thread>

namespace merak::runtime {

// For copies to go from hosts without a rank to others; who is lost meanwhile
// ends it sooner.
constexpr double kPassSeconds = 600;

std::string passCopies(const CopyAgent &agent, const CopyRun &run,
                       const std::vector<Host> &left,
                       const std::vector<Host> &targets, int64_t diskStep) {
  if (targets.size() >= left.size())
    return {};
  std::vector<Host> hosts; // a process on each, targets first
  std::vector<Place> places;
  const auto add = [&](const std::vector<Host> &more) {
    for (const Host &host : more) {
      places.push_back({int(hosts.size()), 0, host.name, int(hosts.size())});
      hosts.push_back({host.name, 1});
    }
  };
  add(targets);
  add(without(left, namesOf(targets)));
  auto child = ChildProcess::start(launch(
      agent.launcher, int64_t(hosts.size()),
      placesOf(hosts, int64_t(hosts.size())),
      {agent.program, passArgument(run, int64_t(targets.size()), diskStep),
       placesArgument(places), "--ranks=env"}));
  if (!child)
    return {}; // nor will the run start
  for (const auto begin = std::chrono::steady_clock::now(); !child->ended();
       std::this_thread::sleep_for(std::chrono::milliseconds(20)))
    if (secondsSince(begin) > kPassSeconds)
      child->signal(SIGKILL);
  const int status = *child->ended();
  return WIFEXITED(status) && WEXITSTATUS(status) == 0
             ? ""
             : "copies of hosts without a rank: " + describeEnd(status);
}

std::string removeCopies(const CopyAgent &agent, const std::string &id,
                         const std::vector<Host> &left) {
  if (agent.launcher.empty())
    return removeCopies(id).str();
  const std::vector<std::string> remove{agent.program, "--remove-copies=" + id};
  std::set<std::string> hosts;
  for (const Host &host : left)
    hosts.insert(host.name);
  HostLooks looks(agent.launcher, hosts, remove);
  if (hosts.empty())
    looks.ask("", launch(agent.launcher, agent.ranks, "", remove));
  looks.wait();
  return {};
}

} // namespace merak::runtime
