#include "passes/Resharding/Resharding.h"

#include "passes/Resharding/HostProblem.h"
#include "passes/Resharding/Legs.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::resharding {

using costmodel::Cluster;

namespace {

Status checkDevices(const std::vector<int64_t> &devices,
                    const Cluster &cluster) {
  Status status;
  for (int64_t device : devices)
    if (device < 0 || device >= cluster.count)
      status.merge(
          Status::error(fmt::format("the cluster has devices 0-{}, found {}",
                                    cluster.count - 1, device)));
  return status;
}

// The target's layout on the source's devices.
std::optional<Placement> convertedSource(const Placement &source,
                                         const Placement &target) {
  if (source.devices.size() != target.devices.size())
    return std::nullopt;
  return Placement{target.layout, target.axes, source.devices};
}

// The source's layout on the target's devices.
std::optional<Placement> unconvertedTarget(const Placement &source,
                                           const Placement &target) {
  if (source.devices.size() != target.devices.size())
    return std::nullopt;
  return Placement{source.layout, source.axes, target.devices};
}

int64_t partsOf(const layout::Factor &factor, const layout::AxisMap &mesh) {
  int64_t parts = 1;
  for (const std::string &axis : factor.axes)
    parts *= mesh.at(axis);
  return parts;
}

// The target with each replicated axis cutting the first factor that it can cut
// into equal parts: in the major dimensions, where pieces lie in one run.
std::optional<Placement> cutTarget(const Placement &target) {
  Placement cut = target;
  const layout::AxisMap mesh = target.mesh();
  auto uses = [&](const std::string &name) {
    for (const layout::DimLayout &dim : cut.layout.dims)
      for (const layout::Factor &factor : dim.factors)
        if (std::count(factor.axes.begin(), factor.axes.end(), name))
          return true;
    return false;
  };
  auto cutBy = [&](const MeshAxis &axis) {
    for (layout::DimLayout &dim : cut.layout.dims)
      for (layout::Factor &factor : dim.factors)
        if (factor.size % (partsOf(factor, mesh) * axis.size) == 0) {
          factor.axes.push_back(axis.name);
          return;
        }
  };
  for (const MeshAxis &axis : target.axes)
    if (axis.size > 1 && !uses(axis.name))
      cutBy(axis);
  if (cut == target)
    return std::nullopt;
  return cut;
}

// Placements on the way; the direct way is not among them.
std::vector<Placement> stops(const Placement &source, const Placement &target,
                             bool inPlace) {
  std::vector<std::optional<Placement>> all{cutTarget(target)};
  if (!inPlace) {
    all.push_back(convertedSource(source, target));
    all.push_back(unconvertedTarget(source, target));
  }
  std::vector<Placement> result;
  for (std::optional<Placement> &stop : all)
    if (stop && *stop != source && *stop != target &&
        std::find(result.begin(), result.end(), *stop) == result.end())
      result.push_back(std::move(*stop));
  return result;
}

// A task for each receiver; the first one has the keepers.
std::vector<UnitTask> apart(const std::vector<UnitTask> &tasks) {
  std::vector<UnitTask> result;
  for (const UnitTask &task : tasks)
    for (size_t r = 0; r < std::max<size_t>(1, task.receivers.size()); ++r) {
      UnitTask &one = result.emplace_back(task);
      if (!task.receivers.empty())
        one.receivers = {task.receivers[r]};
      if (r > 0)
        one.keepers.clear();
    }
  return result;
}

Resharding planned(std::vector<Leg> legs, int64_t elementBytes,
                   const Cluster &cluster) {
  Resharding result;
  result.legs = std::move(legs);
  result.elementBytes = elementBytes;
  result.seconds = predict(result.legs, elementBytes, cluster);
  return result;
}

double boundOf(const std::vector<UnitTask> &tasks, int64_t elementBytes,
               const Cluster &cluster) {
  const std::vector<Strategy> broadcast(tasks.size(), Strategy::Broadcast);
  return lowerBound(hostProblem(tasks, broadcast, elementBytes, cluster).order);
}

} // namespace

double Resharding::sentBytes(const Cluster &cluster) const {
  double sum = 0;
  for (const Leg &leg : legs)
    for (const Transfer &transfer : leg.transfers) {
      const std::vector<int64_t> &all = transfer.participants;
      const double bytes =
          double((transfer.end - transfer.begin) * elementBytes);
      for (size_t i = 1; i < all.size(); ++i)
        if (cluster.node(all[i - 1]) != cluster.node(all[i]))
          sum += bytes;
      if (transfer.kind == TransferKind::Gather &&
          cluster.node(all.back()) != cluster.node(all.front()))
        sum += bytes;
    }
  return sum;
}

Result<Resharding> reshard(const Placement &source, const Placement &target,
                           int64_t elementBytes, const Cluster &cluster,
                           const ReshardOptions &options) {
  Status status = checkDevices(source.devices, cluster).withContext("source");
  status.merge(checkDevices(target.devices, cluster).withContext("target"));
  Result<std::vector<UnitTask>> tasks = unitTasks(source, target);
  status.merge(tasks.status());
  if (!status.ok())
    return status;
  const double bound =
      options.orderOptions.bounded ? boundOf(*tasks, elementBytes, cluster) : 0;
  const bool converts = options.strategy == Strategy::Convert;
  ReshardOptions direct = options;
  if (converts)
    direct.strategy.reset();
  auto directly = [&](std::vector<UnitTask> all, const ReshardOptions &how) {
    return planned(
        {planLeg(source, target, std::move(all), elementBytes, cluster, how)},
        elementBytes, cluster);
  };

  Resharding best = directly(options.apart ? apart(*tasks) : *tasks, direct);
  if (!options.strategy && !options.apart) {
    // Holders share what several receivers get.
    direct.strategy = Strategy::SendRecv;
    if (std::vector<UnitTask> all = apart(*tasks); all.size() > tasks->size())
      if (Resharding next = directly(std::move(all), direct);
          next.seconds < best.seconds * (1 - 1e-9))
        best = std::move(next);
    direct.strategy.reset();
  }
  bool first = converts; // then any stop is better than none
  if (converts || !options.strategy)
    for (const Placement &stop : stops(source, target, options.inPlace)) {
      std::vector<Leg> legs{planLeg(source, stop, *unitTasks(source, stop),
                                    elementBytes, cluster, direct),
                            planLeg(stop, target, *unitTasks(stop, target),
                                    elementBytes, cluster, direct)};
      Resharding next = planned(std::move(legs), elementBytes, cluster);
      if (first || next.seconds < best.seconds * (1 - 1e-9))
        best = std::move(next);
      first = false;
    }
  best.bound = bound;
  return best;
}

Status predictOn(Resharding &resharding, const Cluster &cluster) {
  Status status;
  for (const Leg &leg : resharding.legs)
    for (const Placement *end : {&leg.source, &leg.target})
      status.merge(checkDevices(end->devices, cluster));
  if (!status.ok() || resharding.legs.empty())
    return status;
  Result<std::vector<UnitTask>> tasks =
      unitTasks(resharding.legs.front().source, resharding.legs.back().target);
  MERAK_RETURN_IF_ERROR(tasks.status());
  resharding.bound = boundOf(*tasks, resharding.elementBytes, cluster);
  resharding.seconds =
      predict(resharding.legs, resharding.elementBytes, cluster);
  return {};
}

Result<Resharding> orderMessages(const std::vector<PlannedMessage> &messages,
                                 const Cluster &cluster,
                                 const ReshardOptions &options) {
  Status status;
  std::vector<UnitTask> tasks;
  for (const PlannedMessage &message : messages) {
    status.merge(checkDevices({message.sender, message.receiver}, cluster));
    UnitTask task;
    task.runs = {{{0, 0, 0, 0, message.bytes}}};
    task.shape = task.sourceShape = task.targetShape = {message.bytes};
    task.senders = {message.sender};
    task.receivers = {message.receiver};
    tasks.push_back(std::move(task));
  }
  if (!status.ok())
    return status;
  const double bound = boundOf(tasks, 1, cluster);
  ReshardOptions direct = options;
  direct.strategy = Strategy::SendRecv;
  Resharding result = planned(
      {planLeg({}, {}, std::move(tasks), 1, cluster, direct)}, 1, cluster);
  result.bound = bound;
  return result;
}

namespace {

std::vector<int64_t> sorted(std::vector<int64_t> devices) {
  std::sort(devices.begin(), devices.end());
  return devices;
}

} // namespace

Result<std::vector<Delivery>> deliver(const Placement &source,
                                      const std::vector<Placement> &readers,
                                      int64_t elementBytes,
                                      const Cluster &cluster,
                                      const ReshardOptions &options) {
  std::vector<Delivery> result;
  for (int r = 0; r < int(readers.size()); ++r) {
    const Placement &reader = readers[r];
    // Where it is: the source, and each reader before this one. Those on the
    // reader's own devices go first, and then nobody else sends.
    std::vector<int> holders, own;
    for (int holder = -1; holder < r; ++holder) {
      const Placement &has = holder < 0 ? source : readers[holder];
      holders.push_back(holder);
      if (sorted(has.devices) == sorted(reader.devices))
        own.push_back(holder);
    }
    std::optional<Delivery> best;
    for (int holder : own.empty() ? holders : own) {
      const Placement &has = holder < 0 ? source : readers[holder];
      if (has == reader) {
        best = Delivery{r, holder, {}};
        break;
      }
      Result<Resharding> next =
          reshard(has, reader, elementBytes, cluster, options);
      if (!next)
        return next.status();
      if (!best || next->seconds < best->resharding.seconds * (1 - 1e-9))
        best = Delivery{r, holder, std::move(*next)};
    }
    result.push_back(std::move(*best));
  }
  return result;
}

} // namespace merak::resharding
