// Slicing and makespans against golden vectors.
#include "passes/Resharding/FairShares.h"
#include "passes/Resharding/HostProblem.h"

#include "Golden.h"

#include <gtest/gtest.h>

namespace merak::resharding {
namespace {

using nlohmann::json;

// [host, device] as a device of the case, numbered from `first` on.
std::vector<int64_t> devicesOf(const json &pairs, const json &side,
                               int64_t first) {
  std::vector<int64_t> result;
  const int64_t each = side["mesh"][1];
  for (const json &pair : pairs)
    result.push_back(first + pair[0].get<int64_t>() * each +
                     pair[1].get<int64_t>());
  return result;
}

TEST(Golden, UnitTasks) {
  int tasks = 0;
  for (const json &entry : golden()["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const GoldenCase c = goldenCase(entry);
    Result<std::vector<UnitTask>> found = unitTasks(c.source, c.target);
    ASSERT_TRUE(found.ok()) << found.status().str();
    ASSERT_EQ(found->size(), entry["tasks"].size());
    const int64_t first = int64_t(c.source.devices.size());
    for (size_t t = 0; t < found->size(); ++t, ++tasks) {
      const UnitTask &task = (*found)[t];
      const json &expected = entry["tasks"][t];
      ASSERT_EQ(task.boxes().size(), 1u);
      const SharedBox box = task.boxes()[0];
      json bounds = json::array();
      for (size_t d = 0; d < box.extent.size(); ++d)
        bounds.push_back({box.global[d], box.global[d] + box.extent[d]});
      EXPECT_EQ(bounds, expected["box"]);
      EXPECT_EQ(task.elements() * c.elementBytes, expected["bytes"]);
      EXPECT_EQ(task.senders, devicesOf(expected["senders"], entry["src"], 0));
      EXPECT_EQ(task.receivers,
                devicesOf(expected["receivers"], entry["dst"], first));
      EXPECT_TRUE(task.keepers.empty());
    }
  }
  EXPECT_EQ(tasks, 145);
}

// Makespans of one strategy over the host interfaces, in bytes.
HostProblem problemOf(const GoldenCase &c, Strategy strategy) {
  std::vector<UnitTask> tasks = *unitTasks(c.source, c.target);
  return hostProblem(tasks, std::vector<Strategy>(tasks.size(), strategy),
                     c.elementBytes, c.cluster);
}

TEST(Golden, MakespansOfEachRule) {
  int compared = 0;
  for (const json &entry : golden()["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const HostProblem problem =
        problemOf(goldenCase(entry), Strategy::Broadcast);
    const double bound = entry["lower_bound"];
    EXPECT_EQ(lowerBound(problem.order), bound);
    for (auto [name, rule] : {std::pair("naive", OrderRule::Naive),
                              std::pair("size_only", OrderRule::Size),
                              std::pair("size_sorted", OrderRule::Sorted),
                              std::pair("optimum", OrderRule::Best)}) {
      EXPECT_EQ(orderTasks(problem.order, rule).makespan,
                entry["makespan"][name].get<double>())
          << name;
      ++compared;
    }
    for (uint64_t seed = 1; seed <= 20; ++seed, ++compared) {
      OrderOptions options;
      options.seed = seed;
      EXPECT_EQ(orderTasks(problem.order, OrderRule::Greedy, options).makespan,
                entry["makespan"]["greedy"].get<double>())
          << seed;
    }
    if (entry["tasks"].size() <= 6) {
      EXPECT_EQ(orderTasks(problem.order, OrderRule::Search).makespan,
                entry["makespan"]["optimum"].get<double>());
    }
  }
  EXPECT_EQ(compared, 22 * 24);
}

// The witnesses of the file have the makespans it says.
TEST(Golden, WitnessesHaveTheirMakespan) {
  int compared = 0;
  for (const json &entry : golden()["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    if (!entry.contains("witness"))
      continue;
    const GoldenCase c = goldenCase(entry);
    const HostProblem problem = problemOf(c, Strategy::Broadcast);
    std::vector<int> choice;
    for (size_t t = 0; t < problem.senders.size(); ++t)
      for (size_t k = 0; k < problem.senders[t].size(); ++k)
        if (c.host(problem.senders[t][k][0]) ==
            entry["witness"]["sender_host"][t])
          choice.push_back(int(k));
    ASSERT_EQ(choice.size(), problem.senders.size());
    EXPECT_EQ(makespanOf(problem.order, choice, entry["witness"]["order"]),
              entry["witness"]["makespan"].get<double>());
    ++compared;
  }
  EXPECT_EQ(compared, 22);
}

TEST(Golden, BoundsOfMessages) {
  for (const json &entry : golden()["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const GoldenCase c = goldenCase(entry);
    const json &expected = entry["point_to_point_bound"];
    EXPECT_EQ(lowerBound(problemOf(c, Strategy::SendRecv).order),
              expected["send_recv"].get<double>());
    EXPECT_EQ(lowerBound(problemOf(c, Strategy::Alpa).order),
              expected["local_allgather"].get<double>());
  }
}

// A chain of A hosts and K chunks takes t * (K + A - 1) / K.
TEST(Golden, BroadcastChains) {
  for (const json &entry : golden()["broadcast_chain"]) {
    const int hosts = entry["A"], chunks = entry["K"];
    const costmodel::Cluster cluster = hostCluster(hosts + 1, 1, 1, 0);
    Transfer transfer{0, TransferKind::Broadcast, {}, 0, 27720000, chunks};
    for (int64_t device = 0; device <= hosts; ++device)
      transfer.participants.push_back(device);
    LinkClock clock(cluster, 1);
    const double time = clock.run(transfer, 0).end;
    const double expected = entry["time_over_t"][0].get<double>() /
                            entry["time_over_t"][1].get<double>();
    EXPECT_NEAR(time / 27720000, expected, 1e-9) << entry;
    EXPECT_NEAR(chainSeconds(27720000, chunks, transfer.participants, cluster),
                time, 1e-3);
  }
}

// Under fair sharing the naive order of case 3 ends at the bound too, if all
// transfers run at the same time; not if each device takes them in turn.
TEST(Golden, FairSharingHidesANaiveOrder) {
  const json &entry = golden()["cases"][2];
  ASSERT_EQ(entry["name"], "case3");
  const GoldenCase c = goldenCase(entry);
  ReshardOptions options;
  options.strategy = Strategy::Broadcast;
  options.order = OrderRule::Naive;
  const Resharding naive =
      *reshard(c.source, c.target, c.elementBytes, c.cluster, options);
  const double bound = entry["lower_bound"];
  auto fair = [&](bool inOrder) {
    return fairSeconds(naive.legs[0].transfers, inOrder, c.elementBytes,
                       c.cluster);
  };
  EXPECT_NEAR(fair(false) / bound, 1, 1e-9);
  EXPECT_NEAR(fair(true) / bound, 1.5, 1e-9);
}

} // namespace
} // namespace merak::resharding
