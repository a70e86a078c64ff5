#include "test/unit/comm/CommTesting.h"

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

CommSpec transfer(CommSpec::Kind kind, int peer, const std::string &channel) {
  CommSpec spec;
  spec.kind = kind;
  spec.peer = peer;
  spec.channel = channel;
  return spec;
}

} // namespace

// Many messages, with either end late, in order, dense and strided.
TEST(Transfer, KeepsOrderUnderAnyTiming) {
  for (int late : {0, 1, 2}) {
    InprocWorld world(2);
    const auto statuses = runRanks(world, [&](Communicator &comm) {
      const bool sends = comm.rank() == 0;
      Tensor x(planpb::F32, {3, 5}, sends ? 0 : 2);
      const auto spec = transfer(sends ? CommSpec::Send : CommSpec::Recv,
                                 1 - comm.rank(), "h");
      std::span<const View> view(&x.view(), 1), none;
      auto endpoint =
          comm.prepare(spec, sends ? view : none, sends ? none : view);
      for (int64_t round = 0; round < 300; ++round) {
        if (late == comm.rank() && round % 50 == 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (int64_t i = 0; i < 15; ++i)
          x.set(i, sends ? double(100 * round + i) : -1);
        MERAK_RETURN_IF_ERROR(comm.run(
            {endpoint->get(), sends ? view : none, sends ? none : view}));
        for (int64_t i = 0; !sends && i < 15; ++i)
          if (x.at(i) != double(100 * round + i))
            return Status::error("wrong message");
      }
      return Status();
    });
    for (const Status &status : statuses)
      EXPECT_TRUE(status.ok()) << status.str();
  }
}

// Both directions and two channels at a time do not disturb each other.
TEST(Transfer, ChannelsAreApart) {
  InprocWorld world(2);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    const int peer = 1 - comm.rank();
    Tensor a(planpb::I32, {1}), b(planpb::I32, {1}), in(planpb::I32, {2});
    a.set(0, 10 + comm.rank());
    b.set(0, 20 + comm.rank());
    Status first, second;
    std::thread one([&] {
      first = runOnce(comm, transfer(CommSpec::Send, peer, "a"), &a.view(),
                      nullptr);
    });
    std::thread two([&] {
      second = runOnce(comm, transfer(CommSpec::Send, peer, "b"), &b.view(),
                       nullptr);
    });
    Tensor x(planpb::I32, {1}), y(planpb::I32, {1});
    // Received in the other order.
    Status status =
        runOnce(comm, transfer(CommSpec::Recv, peer, "b"), nullptr, &y.view());
    status.merge(
        runOnce(comm, transfer(CommSpec::Recv, peer, "a"), nullptr, &x.view()));
    one.join();
    two.join();
    status.merge(first);
    status.merge(second);
    if (x.at(0) != 10 + peer || y.at(0) != 20 + peer)
      status.merge(Status::error("crossed"));
    return status;
  });
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
}

TEST(Transfer, ReceiverMayAdd) {
  InprocWorld world(2);
  double result = 0;
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    Tensor x(planpb::F32, {1});
    x.set(0, comm.rank() ? 40 : 2);
    CommSpec spec = transfer(comm.rank() ? CommSpec::Recv : CommSpec::Send,
                             1 - comm.rank(), "g");
    spec.accumulate = comm.rank() == 1;
    Status status = comm.rank() ? runOnce(comm, spec, nullptr, &x.view())
                                : runOnce(comm, spec, &x.view(), nullptr);
    if (comm.rank() == 1)
      result = x.at(0);
    return status;
  });
  EXPECT_TRUE(statuses[0].ok() && statuses[1].ok());
  EXPECT_EQ(result, 42);
}

TEST(Transfer, EndsMustAgreeOnShapeAndType) {
  InprocWorld world(2);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    Tensor x(comm.rank() ? planpb::I32 : planpb::F32, {4, comm.rank() ? 2 : 3});
    return comm.rank() ? runOnce(comm, transfer(CommSpec::Recv, 0, "h"),
                                 nullptr, &x.view())
                       : runOnce(comm, transfer(CommSpec::Send, 1, "h"),
                                 &x.view(), nullptr);
  });
  for (const Status &status : statuses)
    EXPECT_EQ(status.str(),
              "\"h\": the sender has 4x3xf32, the receiver 4x2xi32");
}

TEST(Transfer, AbortNamesThePeer) {
  InprocWorld world(3);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    if (comm.rank() == 2)
      return Status::error("rank 2 broke");
    Tensor x(planpb::F32, {4});
    return comm.rank() ? runOnce(comm, transfer(CommSpec::Recv, 2, "h"),
                                 nullptr, &x.view())
                       : runOnce(comm, transfer(CommSpec::Send, 2, "h"),
                                 &x.view(), nullptr);
  });
  EXPECT_EQ(statuses[0].str(), "waits for rank 2: rank 2 broke");
  EXPECT_EQ(statuses[1].str(), "waits for rank 2: rank 2 broke");
}

TEST(Transfer, PeerMustExist) {
  InprocWorld world(2);
  auto comm = world.communicator(0);
  Tensor x(planpb::F32, {4});
  for (int peer : {-1, 0, 2})
    EXPECT_FALSE(
        comm->prepare(transfer(CommSpec::Send, peer, "h"), {&x.view(), 1}, {})
            .ok());
}
