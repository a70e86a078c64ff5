#include "passes/Stragglers/Problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <map>

namespace merak::stragglers {

namespace {

// layers * microbatches * rate * price stays below 2^63.
constexpr int64_t kMostWork = 10'000'000;
constexpr int64_t kMostRate = 10'000 * kOne, kMostPrice = 1000 * kOne;
constexpr int64_t kMostBytes = int64_t(1) << 50;
constexpr int64_t kMostStages = 64, kMostOnNode = 64;

class Checker {
public:
  explicit Checker(const Problem &problem) : p(problem) {}

  Status run() {
    checkNumbers();
    checkPrices();
    checkDevices();
    checkMemory();
    return std::move(status);
  }

private:
  template <typename... T>
  void require(bool holds, fmt::format_string<T...> text, T &&...values) {
    if (!holds)
      status.merge(
          Status::error(fmt::format(text, std::forward<T>(values)...)));
  }

  void checkNumbers() {
    for (auto [name, value] : {std::pair("layers", p.layers),
                               {"microbatches", p.microbatches},
                               {"dp", p.dp},
                               {"tp", p.tp},
                               {"pp", p.pp}})
      require(value >= 1 && value <= kMostWork,
              "{}: expected a number from 1 to {}, found {}", name, kMostWork,
              value);
    isSane = status.ok();
    if (!isSane)
      return;
    require(p.layers * p.microbatches <= kMostWork,
            "layers and microbatches: their product is at most {}, found {}",
            kMostWork, p.layers * p.microbatches);
    require(p.pp <= p.layers, "pp: {} stages are more than {} layers", p.pp,
            p.layers);
    require(p.dp <= p.microbatches,
            "dp: {} pipelines are more than {} "
            "microbatches",
            p.dp, p.microbatches);
    require(p.threshold >= kOne && p.threshold <= kMostRate,
            "threshold: expected a number from 1 to {}, found {}",
            kMostRate / kOne, double(p.threshold) / kOne);
    require(std::has_single_bit(uint64_t(p.tp)),
            "tp: expected a power of two, found {}", p.tp);
  }

  void checkPrices() {
    const bool any = !p.shrink.empty();
    require(any && p.shrink.front() == kOne,
            "rho: expected 1 for full groups first, found {}",
            any ? double(p.shrink.front()) / kOne : 0.0);
    for (size_t k = 1; k < p.shrink.size(); ++k)
      require(p.shrink[k] >= p.shrink[k - 1] && p.shrink[k] <= kMostPrice,
              "rho[{}]: expected a number from {} to {}, found {}", k,
              double(p.shrink[k - 1]) / kOne, kMostPrice / kOne,
              double(p.shrink[k]) / kOne);
    require(!isSane || p.shrink.size() < 2 ||
                (p.shrink.size() <= 60 && (p.tp >> (p.shrink.size() - 1)) >= 1),
            "rho: groups of {} devices can be halved {} times, found {} "
            "numbers",
            p.tp, std::bit_width(uint64_t(p.tp)) - 1, p.shrink.size());
  }

  void checkDevices() {
    std::map<int64_t, int64_t> onNode;
    for (size_t i = 0; i < p.devices.size(); ++i) {
      const Device &device = p.devices[i];
      ++onNode[device.node];
      require(device.rate == kFailed ||
                  (device.rate >= 1 && device.rate <= kMostRate),
              "device {}: expected a rate above 0 and up to {}, found {}", i,
              kMostRate / kOne, double(device.rate) / kOne);
    }
    const int64_t count = int64_t(p.devices.size());
    if (!isSane)
      return;
    require(p.dp * p.tp <= count && p.dp * p.tp * p.pp <= count,
            "dp * tp * pp: {} * {} * {} are more than {} devices", p.dp, p.tp,
            p.pp, count);
    int64_t largest = 0;
    for (const auto &[node, devices] : onNode)
      largest = std::max(largest, devices);
    require(largest <= kMostOnNode, "devices: a node has at most {}, found {}",
            kMostOnNode, largest);
    require(p.tp <= largest, "tp: a group of {} does not fit into a node of {}",
            p.tp, largest);
  }

  void checkMemory() {
    const StageMemory &m = p.memory;
    for (auto [name, value] :
         {std::pair("limit", m.limit), {"fixed", m.fixed}, {"edge", m.edge}})
      require(value >= 0 && value <= kMostBytes,
              "memory.{}: expected bytes up to 2^50, found {}", name, value);
    for (size_t d = 0; d < m.layer.size(); ++d)
      require(m.layer[d] >= 1 && m.layer[d] <= kMostBytes,
              "memory.layer[{}]: expected bytes from 1 to 2^50, found {}", d,
              m.layer[d]);
    if (!p.isLimited())
      return;
    require(!m.layer.empty(), "memory.layer: expected bytes of a layer for "
                              "each number of stages behind it");
    require(m.layer.empty() || p.pp <= int64_t(m.layer.size()),
            "pp: {} stages, but memory.layer is known for {}", p.pp,
            m.layer.size());
    require(m.layer.empty() || m.limit >= m.fixed + m.layer.front(),
            "memory.limit: {} bytes do not hold one layer of {} beside {}",
            m.limit, m.layer.empty() ? 0 : m.layer.front(), m.fixed);
  }

  const Problem &p;
  Status status;
  bool isSane = false; // products of degrees do not overflow
};

// k of tp / 2^k.
int halvings(const Problem &problem, int64_t size) {
  return std::bit_width(uint64_t(problem.tp / size)) - 1;
}

} // namespace

Status check(const Problem &problem) { return Checker(problem).run(); }

std::vector<Device> devicesOf(const costmodel::Cluster &cluster) {
  std::vector<Device> devices;
  for (int64_t i = 0; i < cluster.count; ++i) {
    const double speed = cluster.rateOf.empty() ? 1 : cluster.rateOf[size_t(i)];
    devices.push_back({cluster.node(i), std::llround(double(kOne) / speed)});
  }
  return devices;
}

bool isFailed(const Problem &problem, int device) {
  return problem.devices[size_t(device)].rate == kFailed;
}

bool isStraggler(const Problem &problem, int device) {
  return !isFailed(problem, device) &&
         problem.devices[size_t(device)].rate >= problem.threshold;
}

bool isGroupSize(const Problem &problem, int64_t size) {
  return size >= 1 && size <= problem.tp &&
         std::has_single_bit(uint64_t(size)) &&
         halvings(problem, size) < int(problem.shrink.size());
}

int64_t groupRate(const Problem &problem, const std::vector<int> &devices) {
  int64_t slowest = 0;
  for (int device : devices)
    slowest = std::max(slowest, problem.devices[size_t(device)].rate);
  if (slowest == kFailed)
    return kFailed;
  const int64_t price =
      problem.shrink[size_t(halvings(problem, int64_t(devices.size())))];
  const int64_t rate = (price * slowest + kOne / 2) / kOne;
  return rate < problem.threshold ? kOne : rate;
}

int64_t mostStages(const Problem &problem) {
  const int64_t known =
      problem.isLimited() ? int64_t(problem.memory.layer.size()) : kMostStages;
  return std::min({problem.layers, known, kMostStages});
}

int64_t layerCap(const Problem &problem, int64_t size, int64_t stagesBehind,
                 bool isEdge) {
  if (!problem.isLimited())
    return problem.layers;
  // A group of size / tp of the devices holds as much on each as tp / size
  // full groups would.
  const StageMemory &m = problem.memory;
  const int64_t room =
      (m.limit - m.fixed) * size - isEdge * m.edge * problem.tp;
  const int64_t layer = m.layer[size_t(stagesBehind)] * problem.tp;
  return std::clamp<int64_t>(room / layer, 0, problem.layers);
}

int64_t stageBytes(const Problem &problem, int64_t size, int64_t stagesBehind,
                   bool isEdge, int64_t layers) {
  const StageMemory &m = problem.memory;
  if (m.layer.empty())
    return 0;
  const int64_t shared =
      m.layer[size_t(stagesBehind)] * layers + isEdge * m.edge;
  return shared * (problem.tp / size) + m.fixed;
}

} // namespace merak::stragglers
