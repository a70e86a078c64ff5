// Predicted seconds: of one task by each strategy against formulas, of the nine
// cases of the paper against its bounds.
#include "Golden.h"

#include <gtest/gtest.h>

namespace merak::resharding {
namespace {

constexpr double kBytes = 64 << 20, kBandwidth = 1.25e9, kInside = 50e9;

// One sender, `nodes` nodes with `each` receivers that all want kBytes.
double seconds(Strategy strategy, int64_t nodes, int64_t each,
               double latency = 0) {
  const costmodel::Cluster cluster = hostCluster(
      nodes + 1, std::max<int64_t>(each, 1), kBandwidth, latency, kInside, 0);
  Placement source, target;
  source.layout = target.layout = layout::Layout::replicated({64 << 20});
  source.devices = {0};
  target.axes = {{"n", nodes}, {"d", each}};
  for (int64_t i = 0; i < nodes * each; ++i)
    target.devices.push_back(each + i);
  ReshardOptions options;
  options.strategy = strategy;
  return reshard(source, target, 1, cluster, options)->seconds;
}

TEST(Strategies, TakeWhatTheFormulasSay) {
  const double t = kBytes / kBandwidth, inside = kBytes / kInside;
  for (int64_t nodes : {1, 2, 4})
    for (int64_t each : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << nodes << " x " << each);
      const double n = double(nodes), b = double(each);
      EXPECT_NEAR(seconds(Strategy::SendRecv, nodes, each), n * b * t, 1e-9);
      EXPECT_NEAR(seconds(Strategy::LocalGather, nodes, each),
                  n * t + (b - 1) / b * inside, 1e-9);
      EXPECT_NEAR(seconds(Strategy::Alpa, nodes, each),
                  nodes == 1 ? t + (b - 1) / b * inside : n * b * t, 1e-9);
      // One part to each, then a ring in which each node sends and receives
      // (n - 1) parts of n.
      const double members = n * b;
      const double ring =
          nodes == 1 ? (b - 1) / b * inside : (members - 1) / members * t;
      EXPECT_NEAR(seconds(Strategy::ScatterGather, nodes, each), t + ring,
                  1e-9);
      // Without latency as many chunks as may be: 1024.
      const double chunks = nodes * each == 1 ? 1 : 1024;
      EXPECT_NEAR(seconds(Strategy::Broadcast, nodes, each),
                  t * (chunks + n - 1) / chunks + n * (b - 1) * inside / chunks,
                  1e-9);
    }
}

// The number of chunks is the best one, by trying all.
TEST(Strategies, ChunkCountIsTheBest) {
  for (double latency : {1e-6, 2e-5, 1e-3})
    for (int64_t nodes : {2, 3, 5})
      for (double bytes : {1e5, 3e6, 1e8}) {
        const costmodel::Cluster cluster =
            hostCluster(nodes + 1, 2, kBandwidth, latency, kInside, 1e-7);
        std::vector<int64_t> chain;
        for (int64_t device = 1; device < 2 * (nodes + 1); ++device)
          chain.push_back(device);
        const int found = chunkCount(bytes, chain, cluster);
        double best = 1e300;
        const int most =
            std::clamp(int(bytes / kSmallestChunk), 1, kMostChunks);
        for (int chunks = 1; chunks <= most; ++chunks)
          best = std::min(best, chainSeconds(bytes, chunks, chain, cluster));
        // The formula takes one latency for that of the slowest hop.
        EXPECT_NEAR(chainSeconds(bytes, found, chain, cluster), best,
                    2e-3 * best)
            << bytes << " bytes, latency " << latency;
      }
  // sqrt((A - 1) * t / latency) with equal hops.
  const costmodel::Cluster equal = hostCluster(4, 1, 1e9, 1e-4);
  EXPECT_EQ(chunkCount(2e8, {0, 1, 2, 3}, equal), 63); // sqrt(2 * 0.2 / 1e-4)
}

// ---------------------------------------------------------- the nine cases

// 4 V100 a node with one interface of 10 Gb/s.
costmodel::Cluster slowLinks(const GoldenCase &c) {
  costmodel::Cluster cluster = c.cluster;
  cluster.inter = {1.25e9, 2e-5, true};
  cluster.intra = {5e10, 5e-6, false};
  cluster.kinds[0].memoryBandwidth = 8e11;
  return cluster;
}

double predicted(const GoldenCase &c, std::optional<Strategy> strategy,
                 OrderRule order) {
  ReshardOptions options;
  options.strategy = strategy;
  options.order = order;
  return reshard(c.source, c.target, c.elementBytes, slowLinks(c), options)
      ->seconds;
}

TEST(NineCases, OrderedBroadcastIsNearTheBound) {
  int cases = 0;
  for (const nlohmann::json &entry : golden()["cases"]) {
    const std::string name = entry["name"];
    if (name.rfind("x_", 0) == 0)
      continue;
    const GoldenCase c = goldenCase(entry);
    const double bound = entry["lower_bound"].get<double>() / 1.25e9;
    for (std::optional<Strategy> strategy :
         {std::optional<Strategy>(), std::optional(Strategy::Broadcast)}) {
      const double time = predicted(c, strategy, OrderRule::Best);
      EXPECT_GE(time, bound) << name;
      EXPECT_LE(time, 1.02 * bound) << name;
    }
    EXPECT_DOUBLE_EQ(
        reshard(c.source, c.target, c.elementBytes, slowLinks(c))->bound,
        bound);
    ++cases;
  }
  EXPECT_EQ(cases, 16);
}

TEST(NineCases, OthersAreWhereTheyShouldBe) {
  for (const nlohmann::json &entry : golden()["cases"]) {
    const std::string name = entry["name"];
    if (name.rfind("x_", 0) == 0)
      continue;
    SCOPED_TRACE(name);
    const GoldenCase c = goldenCase(entry);
    auto ideal = [&](const nlohmann::json &bytes) {
      return bytes.get<double>() / 1.25e9;
    };
    const nlohmann::json &makespan = entry["makespan"];
    const std::pair<OrderRule, const char *> rules[] = {
        {OrderRule::Naive, "naive"},
        {OrderRule::Size, "size_only"},
        {OrderRule::Sorted, "size_sorted"}};
    for (auto [rule, key] : rules)
      EXPECT_NEAR(predicted(c, Strategy::Broadcast, rule), ideal(makespan[key]),
                  0.02 * ideal(makespan[key]))
          << key;
    // Bounds of bandwidth alone, which messages in a good order come near.
    const nlohmann::json &messages = entry["point_to_point_bound"];
    const std::pair<Strategy, const char *> strategies[] = {
        {Strategy::SendRecv, "send_recv"}, {Strategy::Alpa, "local_allgather"}};
    for (auto [strategy, key] : strategies) {
      const double time = predicted(c, strategy, OrderRule::Best);
      EXPECT_GE(time, ideal(messages[key]) * (1 - 1e-12)) << key;
      EXPECT_LE(time, 1.05 * ideal(messages[key])) << key;
    }
  }
}

// Where links are slow to start, one device with all goes first: the choice is
// by price.
TEST(Convert, IsTakenWhereManySmallMessagesCostMore) {
  costmodel::Cluster cluster = hostCluster(2, 8, 1e9, 1e-3, 1e11, 1e-7);
  const layout::Factor cut{64, {"d"}}, whole{64, {}};
  Placement source, target;
  source.layout.dims = {{{cut}}, {{whole}}};
  target.layout.dims = {{{whole}}, {{cut}}};
  source.axes = target.axes = {{"d", 8}};
  for (int64_t i = 0; i < 8; ++i) {
    source.devices.push_back(i);
    target.devices.push_back(8 + i);
  }
  const Resharding chosen = *reshard(source, target, 4, cluster);
  EXPECT_EQ(chosen.legs.size(), 2u);
  for (Strategy strategy : {Strategy::SendRecv, Strategy::Broadcast}) {
    ReshardOptions options;
    options.strategy = strategy;
    EXPECT_GT(reshard(source, target, 4, cluster, options)->seconds,
              2 * chosen.seconds);
  }
  // With much to send and quick links one leg is enough.
  cluster.inter.latency = 0;
  EXPECT_EQ(reshard(source, target, 1 << 20, cluster)->legs.size(), 1u);
}

// The cheapest strategy is not dearer than any other, on random placements.
TEST(Strategies, TheChoiceIsNeverDearer) {
  for (int64_t each : {1, 2, 4})
    for (double latency : {0.0, 1e-4}) {
      const costmodel::Cluster cluster =
          hostCluster(3, each, kBandwidth, latency, kInside, 1e-6);
      Placement source, target;
      source.layout = target.layout = layout::Layout::replicated({1 << 20});
      source.devices = {0};
      target.axes = {{"n", 2 * each}};
      for (int64_t i = 0; i < 2 * each; ++i)
        target.devices.push_back(each + i);
      const double chosen = reshard(source, target, 1, cluster)->seconds;
      for (int s = 0; s < 6; ++s) {
        ReshardOptions options;
        options.strategy = Strategy(s);
        EXPECT_LE(chosen,
                  reshard(source, target, 1, cluster, options)->seconds *
                      (1 + 1e-9));
      }
    }
}

} // namespace
} // namespace merak::resharding
