#include "tools/merak-bench/Report.h"

#include "passes/CostModel/Reuse.h"

#include <cmath>
#include <fmt/format.h>
#include <map>

namespace merak::bench {

void report(const std::vector<costmodel::Sample> &samples,
            const costmodel::Device &device) {
  std::map<std::string, std::pair<double, int>> errors;
  for (const costmodel::Sample &sample : samples) {
    costmodel::Kernel work = sample.work;
    work.shares = costmodel::distanceShares(device.distances, sample.distance);
    double predicted = costmodel::kernelSeconds(device, work);
    // Contractions have rates of their own in each type.
    auto &[sum, count] =
        errors[work.k > 0 ? costmodel::ratesName(work.name, work.dtype)
                          : work.name];
    sum += std::abs(std::log(predicted / sample.seconds));
    ++count;
  }
  for (const auto &[name, error] : errors)
    fmt::print("{:28} {:4} samples, given back within {:5.1f} % on average\n",
               name, error.second,
               100 * (std::exp(error.first / error.second) - 1));
}

void report(const MeasuredLinks &links, const costmodel::Cluster &cluster) {
  auto say = [](const char *where, const costmodel::Link &link) {
    fmt::print("{:28} {:.1f} us, {:.3f} GB/s{}\n", where, link.latency * 1e6,
               link.bandwidth * 1e-9,
               link.shared ? ", shared by the ranks of a node" : "");
  };
  if (links.intra)
    say("link inside a node", *links.intra);
  if (links.inter)
    say("link between nodes", *links.inter);
  // The formulas know nothing but the links.
  std::vector<int64_t> all;
  for (int64_t rank = 0; rank < cluster.count; ++rank)
    all.push_back(rank);
  std::map<std::string, std::pair<double, int>> errors;
  for (const costmodel::Sample &sample : links.collectives) {
    costmodel::Collective kind;
    if (!costmodel::parseCollective(sample.work.name, kind))
      continue;
    auto &[sum, count] = errors[sample.work.name];
    sum += std::log(
        costmodel::collectiveSeconds(kind, sample.work.bytes, all, cluster) /
        sample.seconds);
    ++count;
  }
  for (const auto &[name, error] : errors)
    fmt::print("{:28} {:4} sizes of {} ranks, the formula says {:.2f} of what "
               "they took, in the mean\n",
               name, error.second, cluster.count,
               std::exp(error.first / error.second));
}

} // namespace merak::bench
