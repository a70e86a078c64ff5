#include "passes/Resharding/Legs.h"

#include "passes/Resharding/HostProblem.h"

#include <algorithm>
#include <map>

namespace merak::resharding {

using costmodel::Cluster;

namespace {

// When transfers may begin: a sender has what the leg before brought, packed;
// a gather has its members' parts.
class Readiness {
public:
  Readiness(int64_t elementBytes, const Cluster &cluster)
      : elementBytes(elementBytes), cluster(cluster) {}

  void beginLeg() {
    held = arrived;
    parts.clear();
    packed.clear();
  }

  double of(const Transfer &transfer, const UnitTask &task) {
    if (transfer.kind != TransferKind::Gather)
      return whenPacked(transfer, task);
    double ready = 0;
    for (int64_t member : transfer.participants)
      ready = std::max(ready, parts[{transfer.task, member}]);
    return ready;
  }

  // Returns when the receivers have it where it belongs.
  double finish(const Transfer &transfer, const UnitTask &task, double end) {
    const bool sends = transfer.kind == TransferKind::Message ||
                       transfer.kind == TransferKind::Broadcast;
    double last = end;
    for (size_t i = sends ? 1 : 0; i < transfer.participants.size(); ++i) {
      const int64_t device = transfer.participants[i];
      parts[{transfer.task, device}] = end;
      const double there =
          end + (task.contiguousInTarget() ? 0 : moving(transfer, device));
      arrived[device] = std::max(arrived[device], there);
      last = std::max(last, there);
    }
    return last;
  }

private:
  double moving(const Transfer &transfer, int64_t device) const {
    const double speed = cluster.device(device).memoryBandwidth;
    const double bytes = double((transfer.end - transfer.begin) * elementBytes);
    return speed > 0 ? 2 * bytes / speed : 0;
  }
  double whenPacked(const Transfer &transfer, const UnitTask &task) {
    const int64_t device = transfer.participants[0];
    double ready = held.count(device) ? held[device] : 0;
    if (transfer.kind == TransferKind::Copy || task.contiguousInSource())
      return ready;
    // A device packs one message after another.
    double &at = packed[device];
    at = std::max(at, ready) + moving(transfer, device);
    return at;
  }

  int64_t elementBytes;
  const Cluster &cluster;
  std::map<int64_t, double> held, arrived, packed; // by device
  std::map<std::pair<int, int64_t>, double> parts; // by task and device
};

// Of these strategies the first that is fastest by itself.
class Chooser {
public:
  Chooser(int64_t elementBytes, const Cluster &cluster)
      : elementBytes(elementBytes), cluster(cluster) {}

  TaskPlan priced(const UnitTask &task, int64_t sender,
                  Strategy strategy) const {
    TaskPlan plan{resolve(strategy, task, cluster), sender, 1, 0};
    if (plan.strategy == Strategy::Broadcast) {
      std::vector<int64_t> chain{sender};
      for (const auto &node : receiversByNode(task, sender, cluster))
        chain.insert(chain.end(), node.begin(), node.end());
      plan.chunks =
          chunkCount(double(task.elements() * elementBytes), chain, cluster);
      plan.chunks = int(std::min<int64_t>(plan.chunks, task.elements()));
    }
    plan.seconds = alone(task, plan);
    return plan;
  }

  TaskPlan cheapest(const UnitTask &task, int64_t sender) const {
    TaskPlan best = priced(task, sender, Strategy::SendRecv);
    if (task.receivers.size() > 1)
      for (Strategy strategy : {Strategy::LocalGather, Strategy::Broadcast,
                                Strategy::ScatterGather})
        if (TaskPlan next = priced(task, sender, strategy);
            next.seconds < best.seconds * (1 - 1e-9))
          best = next;
    return best;
  }

private:
  double alone(const UnitTask &task, const TaskPlan &plan) const {
    LinkClock clock(cluster, elementBytes);
    Readiness readiness(elementBytes, cluster);
    double end = 0;
    for (const Transfer &transfer :
         transfersOf(task, 0, plan.sender, plan.strategy, plan.chunks, cluster))
      end = std::max(
          end, readiness.finish(
                   transfer, task,
                   clock.run(transfer, readiness.of(transfer, task)).end));
    return end;
  }

  int64_t elementBytes;
  const Cluster &cluster;
};

std::vector<Strategy> strategiesOf(const std::vector<UnitTask> &tasks,
                                   const Chooser &chooser,
                                   const ReshardOptions &options) {
  std::vector<Strategy> result;
  for (const UnitTask &task : tasks)
    result.push_back(options.strategy ? *options.strategy
                     : task.receivers.empty()
                         ? Strategy::SendRecv
                         : chooser.cheapest(task, task.senders[0]).strategy);
  return result;
}

// Of the devices behind the interface chosen for each task the one that sends
// least; the first one where nothing is to be balanced.
std::vector<int64_t> sendersOf(const Leg &leg, const HostProblem &problem,
                               int64_t elementBytes) {
  std::vector<int64_t> result(leg.tasks.size(), -1);
  std::map<int64_t, int64_t> sent;
  for (int task : leg.order.order) {
    const std::vector<int64_t> &devices =
        problem.senders[task][leg.order.choice[task]];
    if (leg.tasks[task].receivers.empty())
      continue;
    int64_t best = devices[0];
    if (leg.order.rule != OrderRule::Naive)
      for (int64_t device : devices)
        if (sent[device] < sent[best])
          best = device;
    sent[best] += leg.tasks[task].elements() * elementBytes;
    result[task] = best;
  }
  return result;
}

} // namespace

Leg planLeg(const Placement &source, const Placement &target,
            std::vector<UnitTask> tasks, int64_t elementBytes,
            const Cluster &cluster, const ReshardOptions &options) {
  Leg leg{source, target, std::move(tasks), {}, {}, {}, {}};
  const Chooser chooser(elementBytes, cluster);
  const std::vector<Strategy> strategies =
      strategiesOf(leg.tasks, chooser, options);
  const HostProblem problem =
      hostProblem(leg.tasks, strategies, elementBytes, cluster);
  leg.order = orderTasks(problem.order, options.order, options.orderOptions);
  const std::vector<int64_t> senders = sendersOf(leg, problem, elementBytes);
  for (size_t t = 0; t < leg.tasks.size(); ++t)
    leg.plans.push_back(
        senders[t] < 0
            ? TaskPlan{}
            : chooser.priced(leg.tasks[t], senders[t], strategies[t]));
  for (int t : leg.order.order)
    for (Transfer &transfer :
         transfersOf(leg.tasks[t], t, leg.plans[t].sender,
                     leg.plans[t].strategy, leg.plans[t].chunks, cluster))
      leg.transfers.push_back(std::move(transfer));
  return leg;
}

double predict(std::vector<Leg> &legs, int64_t elementBytes,
               const Cluster &cluster) {
  LinkClock clock(cluster, elementBytes);
  Readiness readiness(elementBytes, cluster);
  double end = 0;
  for (Leg &leg : legs) {
    readiness.beginLeg();
    leg.times.clear();
    for (const Transfer &transfer : leg.transfers) {
      const UnitTask &task = leg.tasks[transfer.task];
      leg.times.push_back(clock.run(transfer, readiness.of(transfer, task)));
      end =
          std::max(end, readiness.finish(transfer, task, leg.times.back().end));
    }
  }
  return end;
}

} // namespace merak::resharding
