#include "passes/Resharding/HostProblem.h"

#include "passes/Resharding/LinkClock.h"

#include <algorithm>
#include <map>
#include <set>

namespace merak::resharding {

using costmodel::Cluster;

namespace {

// How often each node has to take the message in, and the device that does.
struct Entry {
  int64_t in, out; // devices: first and last of the node's receivers
  double copies;
};

std::vector<Entry> entries(const UnitTask &task, int64_t sender,
                           Strategy strategy, const Cluster &cluster) {
  std::vector<Entry> result;
  const Strategy actual = resolve(strategy, task, cluster);
  for (const auto &node : receiversByNode(task, sender, cluster)) {
    if (cluster.node(node[0]) == cluster.node(sender))
      continue;
    const double copies =
        actual == Strategy::SendRecv ? double(node.size()) : 1;
    result.push_back({node.front(), node.back(), copies});
  }
  return result;
}

// A task that stays inside a node.
Choice insideChoice(const UnitTask &task, int64_t sender, double seconds,
                    const Interfaces &interfaces) {
  std::vector<int> order{interfaces.of(Direction::Out, sender, sender)};
  for (int64_t device : task.receivers)
    order.push_back(interfaces.of(Direction::In, device, sender));
  Choice choice;
  std::set<int> seen;
  for (int interface : order)
    if (seen.insert(interface).second)
      choice.uses.push_back({interface, 0, seconds});
  return choice;
}

Choice choiceOf(const UnitTask &task, int64_t sender, Strategy strategy,
                double bytes, const Cluster &cluster) {
  const Interfaces interfaces(cluster);
  if (task.receivers.empty())
    return {};
  const std::vector<Entry> nodes = entries(task, sender, strategy, cluster);
  if (nodes.empty())
    return insideChoice(task, sender, bytes / cluster.intra.bandwidth,
                        interfaces);
  const double seconds = bytes / cluster.inter.bandwidth;
  const bool forwards = strategy == Strategy::Broadcast;
  double sent = 0;
  for (const Entry &node : nodes)
    sent += node.copies;
  Choice choice;
  const int64_t far = nodes[0].in;
  choice.uses.push_back({interfaces.of(Direction::Out, sender, far), 0,
                         forwards ? seconds : sent * seconds});
  for (size_t i = 0; i < nodes.size(); ++i) {
    choice.uses.push_back({interfaces.of(Direction::In, nodes[i].in, sender), 0,
                           nodes[i].copies * seconds});
    if (forwards && i + 1 < nodes.size())
      choice.uses.push_back(
          {interfaces.of(Direction::Out, nodes[i].out, sender), 0, seconds});
  }
  return choice;
}

// The senders from which the message crosses the fewest links between nodes.
std::vector<int64_t> nearest(const UnitTask &task, const Cluster &cluster) {
  std::vector<int64_t> result;
  size_t least = 0;
  for (int64_t sender : task.senders) {
    const size_t far =
        entries(task, sender, Strategy::Broadcast, cluster).size();
    if (!result.empty() && far > least)
      continue;
    if (far < least)
      result.clear();
    least = far;
    result.push_back(sender);
  }
  return result;
}

// Numbers the interfaces that occur from 0 on.
void compress(OrderProblem &problem) {
  std::map<int, int> number;
  for (std::vector<Choice> &task : problem.tasks)
    for (Choice &choice : task)
      for (Use &use : choice.uses)
        number[use.interface] = 0;
  for (auto &[interface, dense] : number)
    dense = problem.interfaces++;
  for (std::vector<Choice> &task : problem.tasks)
    for (Choice &choice : task)
      for (Use &use : choice.uses)
        use.interface = number[use.interface];
}

} // namespace

HostProblem hostProblem(const std::vector<UnitTask> &tasks,
                        const std::vector<Strategy> &strategies,
                        int64_t elementBytes, const Cluster &cluster) {
  HostProblem problem;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const double bytes = double(tasks[t].elements() * elementBytes);
    std::vector<Choice> choices;
    std::vector<std::vector<int64_t>> senders;
    std::map<int, size_t> byInterface;
    for (int64_t sender : nearest(tasks[t], cluster)) {
      Choice choice = choiceOf(tasks[t], sender, strategies[t], bytes, cluster);
      const int own = choice.uses.empty() ? -1 : choice.uses[0].interface;
      auto [at, isNew] = byInterface.insert({own, choices.size()});
      if (isNew) {
        choices.push_back(std::move(choice));
        senders.emplace_back();
      }
      senders[at->second].push_back(sender);
    }
    problem.order.tasks.push_back(std::move(choices));
    problem.senders.push_back(std::move(senders));
  }
  compress(problem.order);
  return problem;
}

} // namespace merak::resharding
