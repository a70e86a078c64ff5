#include "passes/CostModel/Cost.h"
#include "passes/CostModel/DeviceGroup.h"

#include "runtime/plan/LibraryKernels.h"

#include <algorithm>
#include <cmath>

namespace merak::costmodel {

std::string kernelClass(const std::string &variant) {
  const std::string name = variant.substr(0, variant.find(':'));
  if (const LibraryKernel *kernel = findLibraryKernel(name))
    return nameOf(kernel->rates);
  for (int i = 0; i < kRateClasses; ++i)
    if (name == nameOf(RateClass(i)))
      return name;
  return nameOf(name.empty() ? RateClass::Elementwise : RateClass::Rows);
}

namespace {

// A point's rate at a distance.
double at(const ShapePoint &point, size_t level) {
  return level == 0 || point.farther.empty() ? point.efficiency
                                             : point.farther[level - 1];
}
double at(const SizePoint &point, size_t level) {
  return level == 0 || point.farther.empty() ? point.bandwidth
                                             : point.farther[level - 1];
}

// Mean of the measured efficiencies, weighted by the inverse fourth power of
// the distance in log2 of m, n and k (Shepard 1968): exact at the points, and
// beyond them the nearest ones.
double efficiencyAt(const std::vector<ShapePoint> &points, const Kernel &work,
                    size_t level) {
  if (points.empty() || work.m <= 0 || work.n <= 0 || work.k <= 0)
    return points.empty() ? 1 : at(points.back(), level);
  double sum = 0, weights = 0;
  for (const ShapePoint &point : points) {
    double distance = std::pow(std::log2(work.m / point.m), 2) +
                      std::pow(std::log2(work.n / point.n), 2) +
                      std::pow(std::log2(work.k / point.k), 2);
    if (distance < 1e-9)
      return at(point, level);
    double weight = 1 / (distance * distance);
    sum += weight * at(point, level);
    weights += weight;
  }
  return sum / weights;
}

// Straight lines through the points in logarithms of bytes and bandwidth; the
// ends continue level.
double bandwidthAt(const std::vector<SizePoint> &points, double bytes,
                   size_t level) {
  if (bytes <= points.front().bytes)
    return at(points.front(), level);
  for (size_t i = 1; i < points.size(); ++i) {
    const SizePoint &a = points[i - 1], &b = points[i];
    if (bytes > b.bytes)
      continue;
    double t = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
    return at(a, level) * std::pow(at(b, level) / at(a, level), t);
  }
  return at(points.back(), level);
}

double secondsAt(const Device &device, const KernelRates &rates,
                 const Kernel &kernel, size_t level) {
  double compute = 0, memory = 0;
  if (kernel.flops > 0) {
    double rate = rates.flops > 0 ? rates.flops : device.flops(kernel.dtype);
    compute = kernel.flops / (rate * efficiencyAt(rates.shapes, kernel, level));
  }
  if (kernel.bytes > 0)
    memory =
        kernel.bytes / (rates.sizes.empty()
                            ? device.memoryBandwidth
                            : bandwidthAt(rates.sizes, kernel.bytes, level));
  return rates.adds ? compute + memory : std::max(compute, memory);
}

} // namespace

std::string ratesName(const std::string &name, const std::string &dtype) {
  return dtype == "f32" ? name : name + "@" + dtype;
}

const KernelRates *findRates(const Device &device, const std::string &name,
                             const std::string &dtype) {
  if (device.kernels.empty())
    return nullptr;
  for (const std::string &key :
       {name, name.substr(0, name.find(':')), kernelClass(name)}) {
    auto it = device.kernels.find(ratesName(key, dtype));
    if (it == device.kernels.end() && dtype == "f8")
      it = device.kernels.find(ratesName(key, "bf16"));
    if (it == device.kernels.end() && dtype != "f32")
      it = device.kernels.find(key);
    if (it != device.kernels.end())
      return &it->second;
  }
  return nullptr;
}

namespace {

// Of each factor a pass finds the largest magnitude and another one rounds.
// Rates of f8 alone were measured with both.
double roundingSeconds(const Device &device, const Kernel &kernel,
                       const KernelRates *rates) {
  constexpr double kPasses = 2 * 2, kBytes = 2 + 2 + 1; // of an element
  if (kernel.rounded == 0 ||
      (rates && rates != findRates(device, kernel.name, "bf16")))
    return 0;
  return kPasses * device.launchSeconds +
         kBytes * kernel.rounded / device.memoryBandwidth;
}

} // namespace

double kernelSeconds(const Device &device, const Kernel &kernel) {
  static const KernelRates kNone;
  const KernelRates *found = findRates(device, kernel.name, kernel.dtype);
  const KernelRates &rates = found ? *found : kNone;
  const double launch = rates.launch < 0 ? device.launchSeconds : rates.launch;
  const double besides = launch + roundingSeconds(device, kernel, found);
  const size_t levels = device.distances.size();
  if (kernel.shares.size() != levels || levels == 0)
    return secondsAt(device, rates, kernel, levels / 2) + besides;
  double seconds = besides;
  for (size_t level = 0; level < levels; ++level)
    if (kernel.shares[level] > 0)
      seconds += kernel.shares[level] * secondsAt(device, rates, kernel, level);
  return seconds;
}

double opSeconds(const Device &device, double flops, double bytes) {
  double compute = flops > 0 ? flops / device.flops() : 0;
  double memory = bytes > 0 ? bytes / device.memoryBandwidth : 0;
  return std::max(compute, memory) + device.launchSeconds;
}

namespace {

const char *const kCollectives[] = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};

const char *nameOf(Collective kind) { return kCollectives[int(kind)]; }

// What the devices themselves do for a communication, if that is known.
double hostSeconds(const Device &device, const std::string &name,
                   double bytes) {
  return device.kernels.count(name) ? kernelSeconds(device, {name, 0, bytes})
                                    : 0;
}

} // namespace

bool parseCollective(const std::string &name, Collective &kind) {
  for (int i = 0; i < 5; ++i)
    if (name == kCollectives[i]) {
      kind = Collective(i);
      return true;
    }
  return false;
}

double ringBytes(Collective kind, double bytes, int64_t devices) {
  if (devices <= 1)
    return 0;
  double share = double(devices - 1) / double(devices);
  switch (kind) {
  case Collective::AllReduce:
    return 2 * bytes * share;
  case Collective::AllGather:
  case Collective::ReduceScatter:
  case Collective::AllToAll:
    return bytes * share;
  case Collective::Broadcast:
    return bytes;
  }
  return 0;
}

double ncclSeconds(Collective kind, double bytes, const GroupShape &group) {
  const bool allReduce = kind == Collective::AllReduce;
  const double ways = allReduce ? 2 : 1; // reduce, then distribute
  auto seconds = [&](double inside, double between, double moved) {
    double carried = 0;
    if (group.devices > group.nodes)
      carried = moved / group.intra.bandwidth;
    if (group.nodes > 1)
      carried = std::max(carried, moved / group.inter.bandwidth);
    return ways *
               (inside * group.intra.latency + between * group.inter.latency) +
           carried;
  };
  if (group.devices <= 1)
    return 0;
  const double ring =
      seconds(double(group.devices - group.nodes), double(group.nodes - 1),
              ringBytes(kind, bytes, group.devices));
  if (!allReduce)
    return ring;
  const double chain = double((group.devices - 1) / group.nodes);
  const double height = std::floor(std::log2(double(group.nodes)));
  return std::min(ring, seconds(chain, height, 2 * bytes));
}

double collectiveSeconds(Collective kind, double bytes, int64_t devices,
                         const Link &link, Algorithm algorithm) {
  if (devices <= 1)
    return 0;
  if (algorithm == Algorithm::Nccl)
    return ncclSeconds(kind, bytes, {devices, devices, link, link});
  int64_t rounds = devices - 1;
  double moved = ringBytes(kind, bytes, devices);
  if (algorithm == Algorithm::Direct)
    rounds = 1;
  if (algorithm == Algorithm::Tree)
    rounds = int64_t(std::ceil(std::log2(double(devices))));
  if (kind == Collective::AllReduce)
    rounds *= 2; // reduce, then distribute
  if (algorithm == Algorithm::Tree &&
      (kind == Collective::AllReduce || kind == Collective::Broadcast))
    moved = bytes * double(rounds);
  return double(rounds) * link.latency + moved / link.bandwidth;
}

// Rings leave a node through the adapters of all its members, as many as the
// node with the fewest has, or share its one adapter.
static GroupShape shapeOf(const std::vector<int64_t> &devices,
                          const Cluster &cluster, int64_t sharing) {
  // Devices of each node, by node: of devices in order the last one is meant.
  std::vector<std::pair<int64_t, int64_t>> members;
  for (int64_t device : devices) {
    const int64_t node = cluster.node(device);
    auto at = members.end();
    if (!members.empty() && members.back().first >= node)
      at = std::lower_bound(members.begin(), members.end(),
                            std::pair(node, int64_t(0)));
    if (at == members.end() || at->first != node)
      at = members.emplace(at, node, 0);
    ++at->second;
  }
  int64_t fewest = int64_t(devices.size());
  for (auto [node, count] : members)
    fewest = std::min(fewest, count);
  GroupShape group{int64_t(devices.size()), int64_t(members.size()),
                   cluster.intra, cluster.inter};
  group.inter.bandwidth *= cluster.inter.shared
                               ? 1 / double(std::max<int64_t>(sharing, 1))
                               : double(fewest);
  if (cluster.intra.shared)
    group.intra.bandwidth /= double(std::max<int64_t>(sharing, 1));
  return group;
}

// Between neighbours of a ring, all that differ.
static std::vector<Link> linksOf(const std::vector<int64_t> &devices,
                                 const Cluster &cluster, int64_t sharing) {
  std::vector<Link> links;
  for (size_t i = 0; i < devices.size(); ++i) {
    Link link = cluster.between(devices[i], devices[(i + 1) % devices.size()]);
    if (link.shared)
      link.bandwidth /= double(std::max<int64_t>(sharing, 1));
    if (std::find(links.begin(), links.end(), link) == links.end())
      links.push_back(link);
  }
  return links;
}

DeviceGroup DeviceGroup::within(const std::vector<int64_t> &devices,
                                const Cluster &cluster, int64_t sharing) {
  DeviceGroup group;
  group.count = int64_t(devices.size());
  group.algorithm = cluster.algorithm;
  if (group.count < 2)
    return group;
  group.host = {std::shared_ptr<void>(), &cluster.device(devices.front())};
  if (cluster.algorithm == Algorithm::Nccl)
    group.shape = shapeOf(devices, cluster, sharing);
  else
    group.links = linksOf(devices, cluster, sharing);
  return group;
}

DeviceGroup::DeviceGroup(const std::vector<int64_t> &devices,
                         const Cluster &cluster, int64_t sharing)
    : DeviceGroup(within(devices, cluster, sharing)) {
  const bool works =
      host && std::any_of(std::begin(kCollectives), std::end(kCollectives),
                          [&](const char *name) {
                            return host->kernels.count(name) > 0;
                          });
  host = works ? std::make_shared<const Device>(*host) : nullptr;
}

double DeviceGroup::seconds(Collective kind, double bytes) const {
  if (count < 2)
    return 0;
  double seconds = host ? hostSeconds(*host, nameOf(kind), bytes) : 0;
  if (algorithm == Algorithm::Nccl)
    return std::max(seconds, ncclSeconds(kind, bytes, shape));
  for (const Link &link : links)
    seconds = std::max(seconds,
                       collectiveSeconds(kind, bytes, count, link, algorithm));
  return seconds;
}

double collectiveSeconds(Collective kind, double bytes,
                         const std::vector<int64_t> &devices,
                         const Cluster &cluster, int64_t sharing) {
  return DeviceGroup::within(devices, cluster, sharing).seconds(kind, bytes);
}

double transferSeconds(const Link &link, double bytes) {
  return link.latency + bytes / link.bandwidth;
}

double transferSeconds(double bytes, int64_t from, int64_t to,
                       const Cluster &cluster, int64_t sharing) {
  Link link = cluster.between(from, to);
  if (link.shared)
    link.bandwidth /= double(std::max<int64_t>(sharing, 1));
  return std::max(hostSeconds(cluster.device(from), "transfer", bytes),
                  transferSeconds(link, bytes));
}

} // namespace merak::costmodel
