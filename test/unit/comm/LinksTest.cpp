// Emulated links: what they take, that they are shared, and that values stay.
#include "runtime/comm/inproc/LinkEmulation.h"
#include "test/unit/comm/CommTesting.h"

#include <random>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

// Time moves only when somebody sleeps.
class FakeClock : public LinkClock {
public:
  double now() override { return time.load(); }
  void sleepUntil(double end, const std::atomic<bool> &) override {
    double seen = time.load();
    while (seen < end && !time.compare_exchange_weak(seen, end))
      ;
  }
  std::atomic<double> time{0};
};

struct SlowWorld {
  explicit SlowWorld(int size, const Links &links) {
    auto owned = std::make_unique<FakeClock>();
    clock = owned.get();
    inproc = std::make_unique<InprocWorld>(
        size, std::make_unique<LinkEmulation>(links, size, std::move(owned)));
  }
  FakeClock *clock;
  std::unique_ptr<InprocWorld> inproc;
};

CommSpec collective(CommSpec::Kind kind, std::vector<int> members) {
  CommSpec spec;
  spec.kind = kind;
  spec.members = std::move(members);
  return spec;
}

const Links kUnit{1, {1, 4}, {1, 4}}; // 1 s, 4 bytes a second

} // namespace

TEST(CollectiveCost, MatchesTheClosedForms) {
  EXPECT_EQ(collectiveCost("all_reduce", 100, 1, false).bytes, 0);
  EXPECT_DOUBLE_EQ(collectiveCost("all_reduce", 100, 4, false).bytes, 150);
  EXPECT_EQ(collectiveCost("all_reduce", 100, 4, false).rounds, 6);
  EXPECT_DOUBLE_EQ(collectiveCost("all_gather", 100, 4, false).bytes, 75);
  EXPECT_EQ(collectiveCost("reduce_scatter", 100, 4, false).rounds, 3);
  EXPECT_DOUBLE_EQ(collectiveCost("broadcast", 100, 4, false).bytes, 100);
  // All others are read at once.
  EXPECT_DOUBLE_EQ(collectiveCost("all_reduce", 100, 4, true).bytes, 150);
  EXPECT_EQ(collectiveCost("all_reduce", 100, 4, true).rounds, 2);
  EXPECT_EQ(collectiveCost("all_to_all", 100, 4, true).rounds, 1);
}

TEST(LinkUse, LevelsAndDirections) {
  const Links links{2, {1, 10}, {5, 1}};
  LinkUse use(links, 4);
  auto end = [&](int from, int to, double bytes, double ready) {
    return use.transfer(from, to, bytes, ready).end;
  };
  EXPECT_EQ(end(0, 1, 10, 0), 2);  // inside the node: 1 s, then latency
  EXPECT_EQ(end(1, 0, 10, 0), 2);  // the other direction is free
  EXPECT_EQ(end(0, 2, 10, 0), 15); // the other level, too
  EXPECT_EQ(end(0, 3, 10, 0), 25); // out of rank 0 is taken until 10
  EXPECT_EQ(end(1, 3, 10, 0), 35); // into rank 3 is taken until 20
  EXPECT_EQ(end(2, 3, 10, 0), 2);
  // Everybody's ports to other nodes: in of 3 is free at 30.
  const int all[] = {0, 1, 2, 3};
  EXPECT_EQ(use.collective(all, {8, 3}, 7).begin, 30);
  EXPECT_EQ(end(2, 0, 1, 0), 44); // 30 + 8 + 1 + latency 5
}

// On every port transfers follow each other, and none begins early; together
// the transfers of a port take at least its bytes over its bandwidth.
TEST(LinkUse, PortsCarryOneAfterAnother) {
  std::mt19937 random(7);
  auto pick = [&](int n) { return int(random() % uint32_t(n)); };
  for (int round = 0; round < 200; ++round) {
    const int ranks = 2 + pick(5);
    const Links links{1 + pick(3), {0.5, 8}, {2, 2}};
    LinkUse use(links, ranks);
    struct Taken {
      double begin, carried;
    };
    std::map<std::tuple<int, int, int>, std::vector<Taken>> taken;
    double ready = 0;
    for (int i = 0; i < 30; ++i) {
      ready += pick(3);
      const double bytes = pick(40);
      std::vector<int> members(static_cast<size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      std::shuffle(members.begin(), members.end(), random);
      const bool ring = pick(3) == 0;
      members.resize(ring ? size_t(2 + pick(ranks - 1)) : 2);
      int nodes = 0;
      for (int member : members)
        nodes += member / links.perNode != members[0] / links.perNode;
      const LinkSpeed &speed = nodes ? links.inter : links.intra;
      const double rounds = ring ? 3 : 1;
      const LinkUse::Window window =
          ring ? use.collective(members, {bytes, rounds}, ready)
               : use.transfer(members[0], members[1], bytes, ready);
      EXPECT_GE(window.begin, ready);
      EXPECT_NEAR(window.end - window.begin,
                  bytes / speed.bandwidth + rounds * speed.latency, 1e-9);
      const Taken use{window.begin, window.end - rounds * speed.latency};
      for (int member : members)
        for (int in : {0, 1})
          if (ring || in == (member == members[1]))
            taken[{member, nodes > 0, in}].push_back(use);
    }
    for (const auto &[port, list] : taken)
      for (size_t i = 1; i < list.size(); ++i)
        EXPECT_GE(list[i].begin, list[i - 1].carried - 1e-9);
  }
}

TEST(EmulatedLinks, ATransferTakesItsTime) {
  SlowWorld world(2, kUnit);
  const auto statuses = runRanks(*world.inproc, [&](Communicator &comm) {
    Tensor x(planpb::F32, {4}); // 16 bytes
    CommSpec spec;
    spec.kind = comm.rank() ? CommSpec::Recv : CommSpec::Send;
    spec.peer = 1 - comm.rank();
    spec.channel = "h";
    for (int i = 0; i < 4; ++i)
      x.set(i, comm.rank() ? 0 : i + 1);
    MERAK_RETURN_IF_ERROR(comm.rank()
                              ? runOnce(comm, spec, nullptr, &x.view())
                              : runOnce(comm, spec, &x.view(), nullptr));
    for (int i = 0; i < 4; ++i)
      if (x.at(i) != i + 1)
        return Status::error("wrong value");
    return world.clock->now() < 5 ? Status::error("left early") : Status();
  });
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
  EXPECT_EQ(world.clock->now(), 5); // 16 / 4 + 1
}

// The values are those of a world without links, for every collective, and the
// end is that of the ring; operands of one instruction share the latency.
TEST(EmulatedLinks, CollectivesKeepTheirValues) {
  struct Case {
    CommSpec::Kind kind;
    int64_t in, out;
    double seconds; // of two operands over 4 ranks
  };
  const Case cases[] = {{CommSpec::AllReduce, 8, 8, 2 * 12 + 6},
                        {CommSpec::AllReduce, 8192, 8192, 2 * 12288 + 6},
                        {CommSpec::AllGather, 8, 32, 2 * 24 + 3},
                        {CommSpec::ReduceScatter, 8, 2, 2 * 6 + 3},
                        {CommSpec::AllToAll, 8, 8, 2 * 6 + 3},
                        {CommSpec::Broadcast, 8, 8, 2 * 8 + 3}};
  for (const Case &test : cases) {
    std::vector<double> results[2];
    SlowWorld emulated(4, kUnit);
    InprocWorld plain(4);
    for (bool slow : {false, true}) {
      InprocWorld &world = slow ? *emulated.inproc : plain;
      results[slow].resize(size_t(4 * 2 * test.out));
      const auto statuses = runRanks(world, [&](Communicator &comm) {
        CommSpec spec = collective(test.kind, everybody(world));
        Tensor inputs[] = {{planpb::F32, {test.in}}, {planpb::F32, {test.in}}};
        Tensor outputs[] = {{planpb::F32, {test.out}},
                            {planpb::F32, {test.out}}};
        std::vector<View> in, out;
        for (int operand : {0, 1}) {
          for (int64_t i = 0; i < test.in; ++i)
            inputs[operand].set(i, 0.1 * double(i + 7 * comm.rank() + operand));
          in.push_back(inputs[operand].view());
          out.push_back(outputs[operand].view());
        }
        auto endpoint = comm.prepare(spec, in, out);
        if (!endpoint)
          return endpoint.status();
        MERAK_RETURN_IF_ERROR(comm.run({endpoint->get(), in, out}));
        for (int operand : {0, 1})
          for (int64_t i = 0; i < test.out; ++i)
            results[slow][size_t((comm.rank() * 2 + operand) * test.out + i)] =
                outputs[operand].at(i);
        return Status();
      });
      for (const Status &status : statuses)
        EXPECT_TRUE(status.ok()) << status.str();
    }
    EXPECT_EQ(results[0], results[1]) << commKindName(test.kind);
    EXPECT_EQ(emulated.clock->now(), test.seconds) << commKindName(test.kind);
  }
}

// Two channels from one rank share its link: together they take twice as long.
TEST(EmulatedLinks, TransfersShareALink) {
  SlowWorld world(3, kUnit);
  const auto statuses = runRanks(*world.inproc, [&](Communicator &comm) {
    Tensor x(planpb::F32, {4});
    CommSpec spec;
    spec.channel = "h";
    if (comm.rank()) {
      spec.kind = CommSpec::Recv;
      spec.peer = 0;
      return runOnce(comm, spec, nullptr, &x.view());
    }
    Status other;
    spec.kind = CommSpec::Send;
    CommSpec second = spec;
    spec.peer = 1;
    second.peer = 2;
    std::thread thread(
        [&] { other = runOnce(comm, second, &x.view(), nullptr); });
    Status status = runOnce(comm, spec, &x.view(), nullptr);
    thread.join();
    status.merge(other);
    return status;
  });
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
  // Twice 4 s for the bytes and 1 s of latency; more if the first was through
  // before the second came.
  EXPECT_GE(world.clock->now(), 9);
}

TEST(EmulatedLinks, AnAbortWakesWhoSleeps) {
  const auto clock = steadyLinkClock();
  std::atomic<bool> abort{true};
  clock->sleepUntil(clock->now() + 1e6, abort); // would take days
  abort = false;
  const double end = clock->now() + 0.01;
  clock->sleepUntil(end, abort);
  EXPECT_GE(clock->now(), end);
}
