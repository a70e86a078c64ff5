#include "passes/Planning/StageCosts.h"

#include "passes/CostModel/DeviceGroup.h"
#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>

namespace merak::planning {

// Sizes of buckets that are looked at, bytes; powers of two between them.
constexpr double kSmallestBucket = 4 << 10, kLargestBucket = 1 << 30;
// Two messages become one if that saves more than this part of their time.
constexpr double kWorthJoining = 0.25;

std::string Degrees::str() const {
  return fmt::format("pp={} dp={} tp={}, {} microbatches", pp, dp, tp,
                     microbatches);
}

StageProblem makeStageProblem(const Graph &graph, const Assignment &assignment,
                              const Outcome &outcome,
                              const StageCostOptions &options,
                              ListedKernels *listed) {
  ListedKernels own;
  return StageProblemBuilder(graph, assignment, outcome, options)
      .build(listed ? *listed : own);
}

PipelineShape makePipelineShape(const costmodel::Cluster &cluster,
                                const Degrees &d, double memoryBytes,
                                const ReductionOptions &reduction) {
  PipelineShape shape;
  shape.stages = int(d.pp);
  shape.microbatches = int(d.microbatches);
  shape.memoryBytes = memoryBytes;
  int64_t inStage = d.dp * d.tp;
  auto between = [&](int64_t a, int64_t b, int64_t sharing) {
    const costmodel::Link &l = cluster.between(a, b);
    bool leaves = cluster.node(a) != cluster.node(b);
    double share = l.shared && leaves ? double(sharing) : 1;
    // The tp ranks of both ends meet inside their nodes or outside, too.
    bool same = d.tp > 1;
    for (int64_t first : {a, b})
      same &= leaves == (cluster.node(first) != cluster.node(first + d.tp - 1));
    return BoundaryLink{l.latency, share / l.bandwidth, same};
  };
  // All ranks of a node send at once: those of its stages to the next ones.
  for (int64_t s = 0; s + 1 < d.pp; ++s)
    shape.links.push_back(between(s * inStage, (s + 1) * inStage,
                                  std::min(cluster.perNode, inStage)));
  if (!cluster.rateOf.empty())
    for (int64_t s = 0; s < d.pp; ++s) {
      double least = 1;
      for (int64_t i = 0; i < inStage; ++i)
        least = std::min(least, cluster.rateOf[size_t(std::min(
                                    s * inStage + i, cluster.count - 1))]);
      shape.slowness.push_back(1 / least);
    }
  // Over `n` devices, `stride` apart, with that many groups side by side.
  auto reduced = [&](int64_t n, int64_t stride) {
    std::vector<int64_t> devices;
    for (int64_t i = 0; i < n; ++i)
      devices.push_back(std::min(i * stride, cluster.count - 1));
    auto group = std::make_shared<const costmodel::DeviceGroup>(
        devices, cluster, std::min(cluster.perNode, stride));
    return [group](double bytes) {
      return group->seconds(costmodel::Collective::AllReduce, bytes);
    };
  };
  shape.reduce.early = reduction.early;
  if (d.dp > 1) {
    shape.reduce.replicas = d.dp;
    shape.reduce.seconds = reduced(d.dp, d.tp);
  }
  if (d.tp > 1) {
    shape.reduce.tensorSeconds = reduced(inStage, 1);
    shape.tensorNorm = reduced(d.tp, 1);
  }
  if (d.pp > 1)
    shape.stageNorm = reduced(d.pp, inStage);
  const auto leaves = [&](int64_t last) {
    return cluster.node(0) != cluster.node(std::min(last, cluster.count - 1));
  };
  shape.reduce.shared =
      d.tp > 1 && leaves(d.tp - 1) == leaves((d.dp - 1) * d.tp);
  if (inStage > 1)
    shape.reduce.bucketBytes = reduction.bucketBytes.value_or(worthJoining(
        d.dp > 1 ? shape.reduce.seconds : shape.reduce.tensorSeconds));
  return shape;
}

double worthJoining(const std::function<double(double)> &seconds) {
  double bytes = kSmallestBucket;
  while (bytes < kLargestBucket && 2 * seconds(bytes) - seconds(2 * bytes) >
                                       kWorthJoining * 2 * seconds(bytes))
    bytes *= 2;
  return bytes;
}

} // namespace merak::planning
