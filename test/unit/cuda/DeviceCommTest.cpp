// Ranks that share a device against ranks that are threads of the host: the
// same collectives on the same values.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/comm/inproc/DeviceCommunicator.h"
#include "test/unit/cuda/CommExamples.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

namespace merak::runtime::test {
namespace {

TEST(DeviceComm, CollectivesEqualThoseOfTheHost) {
  std::mt19937 random(3);
  for (int ranks : {1, 2, 3, 4}) {
    std::vector<Example> examples;
    for (int i = 0; i < 60; ++i)
      examples.push_back(randomExample(random, ranks));
    InprocWorld host(ranks), shared(ranks);
    const auto expected =
        runAll(examples, ranks, host,
               [&](int rank, Backend **) { return host.communicator(rank); });
    auto device = std::make_shared<cuda::EmulatedDevice>();
    {
      std::vector<std::unique_ptr<cuda::CudaBackend>> backends;
      for (int rank = 0; rank < ranks; ++rank)
        backends.push_back(std::make_unique<cuda::CudaBackend>(device));
      const auto found =
          runAll(examples, ranks, shared, [&](int rank, Backend **backend) {
            *backend = backends[rank].get();
            return deviceCommunicator(shared, rank, *backends[rank]);
          });
      for (size_t i = 0; i < examples.size(); ++i)
        EXPECT_EQ(found[i], expected[i])
            << commKindName(examples[i].spec.kind) << " of "
            << dtypeName(examples[i].dtype) << " over " << ranks << " ranks";
    }
    EXPECT_EQ(device->live(), 0u);
  }
}

TEST(DeviceComm, TransfersInBothDirections) {
  auto device = std::make_shared<cuda::EmulatedDevice>();
  InprocWorld world(2);
  cuda::CudaBackend backend(device);
  std::vector<std::unique_ptr<Endpoint>> endpoints[2];
  std::vector<std::thread> threads;
  double received[2] = {0, 0};
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto comm = deviceCommunicator(world, rank, backend);
      Tensor mine(planpb::F32, {3, 2}, 1), theirs(planpb::F32, {3, 2});
      for (int64_t i = 0; i < 6; ++i)
        theirs.set(i, 0);
      auto spec = [&](bool sends, const char *channel) {
        CommSpec spec;
        spec.kind = sends ? CommSpec::Send : CommSpec::Recv;
        spec.peer = 1 - rank;
        spec.channel = channel;
        spec.accumulate = !sends;
        return spec;
      };
      const View out[] = {mine.view()}, in[] = {theirs.view()};
      auto send = comm->prepare(spec(true, rank == 0 ? "up" : "down"), out, {});
      auto recv = comm->prepare(spec(false, rank == 0 ? "down" : "up"), {}, in);
      ASSERT_TRUE(send.ok() && recv.ok());
      for (int step = 0; step < 50; ++step) {
        for (int64_t i = 0; i < 6; ++i)
          mine.set(i, double(rank + 1));
        // One sends first, the other receives first.
        for (bool sends : {rank == 0, rank == 1}) {
          const Status status =
              comm->run(sends ? CommCall{send->get(), out, {}, nullptr}
                              : CommCall{recv->get(), {}, in, nullptr});
          ASSERT_TRUE(status.ok()) << status.str();
        }
      }
      received[rank] = theirs.at(5);
      endpoints[rank].push_back(std::move(*send));
      endpoints[rank].push_back(std::move(*recv));
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(received[0], 50 * 2.0);
  EXPECT_EQ(received[1], 50 * 1.0);
}

TEST(DeviceComm, AnAbortEndsTheWait) {
  auto device = std::make_shared<cuda::EmulatedDevice>();
  InprocWorld world(2);
  cuda::CudaBackend backend(device);
  auto comm = deviceCommunicator(world, 0, backend);
  Tensor tensor(planpb::F32, {4});
  const View views[] = {tensor.view()};
  CommSpec spec;
  spec.members = {0, 1};
  auto endpoint = comm->prepare(spec, views, views);
  ASSERT_TRUE(endpoint.ok());
  std::thread other([&] { world.abort(Status::error("rank 1 is gone")); });
  const Status status = comm->run({endpoint->get(), views, views, nullptr});
  other.join();
  EXPECT_EQ(status.str(), "waits for rank 1: rank 1 is gone");
}

} // namespace
} // namespace merak::runtime::test
