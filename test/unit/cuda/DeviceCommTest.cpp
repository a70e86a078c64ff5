// Ranks that share a device against ranks that are threads of the host: the
// same collectives on the same values.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/comm/inproc/DeviceCommunicator.h"
#include "test/unit/comm/CommTesting.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace merak::runtime::test {
namespace {

struct Example {
  CommSpec spec;
  planpb::DType dtype = planpb::F32;
  std::vector<int64_t> in, out;
  int64_t pad = 0;
  bool inPlace = false;
  unsigned seed = 0;
};

Example randomExample(std::mt19937 &random, int ranks) {
  Example e;
  const CommSpec::Kind kinds[] = {CommSpec::AllReduce, CommSpec::AllGather,
                                  CommSpec::ReduceScatter, CommSpec::AllToAll,
                                  CommSpec::Broadcast};
  const planpb::DType types[] = {planpb::F32, planpb::BF16, planpb::F16,
                                 planpb::I64, planpb::I32,  planpb::F64};
  e.spec.kind = kinds[random() % 5];
  e.spec.maximum = (e.spec.kind == CommSpec::AllReduce ||
                    e.spec.kind == CommSpec::ReduceScatter) &&
                   random() % 3 == 0;
  e.spec.accumulate = !e.spec.maximum && random() % 3 == 0;
  e.spec.dim = random() % 2;
  e.spec.dim2 = random() % 2;
  e.spec.channel = "c";
  for (int r = 0; r < ranks; ++r)
    e.spec.members.push_back(r);
  e.dtype = types[random() % 6];
  e.in = {int64_t(1 + random() % 5), int64_t(1 + random() % 7)};
  if (e.spec.kind == CommSpec::ReduceScatter ||
      e.spec.kind == CommSpec::AllToAll)
    e.in[e.spec.dim] *= ranks;
  e.out = e.in;
  if (e.spec.kind == CommSpec::ReduceScatter ||
      e.spec.kind == CommSpec::AllToAll)
    e.out[e.spec.dim] /= ranks;
  if (e.spec.kind == CommSpec::AllGather)
    e.out[e.spec.dim] *= ranks;
  if (e.spec.kind == CommSpec::AllToAll)
    e.out[e.spec.dim2] *= ranks;
  e.pad = random() % 2 * 3;
  e.inPlace = e.spec.kind == CommSpec::AllReduce && random() % 2;
  e.seed = random();
  return e;
}

using Values = std::vector<std::vector<double>>; // by rank

using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(int rank, Backend **backend)>;

// All examples one after the other on every rank; the outputs of each.
std::vector<Values> runAll(const std::vector<Example> &examples, int ranks,
                           InprocWorld &world, const MakeCommunicator &make) {
  std::vector<Values> results(examples.size(), Values(ranks));
  std::vector<Status> statuses(ranks);
  // Endpoints and their memory stay until all ranks are done.
  std::vector<std::vector<std::unique_ptr<Endpoint>>> endpoints(ranks);
  std::vector<std::deque<Tensor>> tensors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Backend *backend = nullptr;
      auto comm = make(rank, &backend);
      StreamHandle stream = nullptr;
      if (backend)
        stream = *backend->createStream();
      auto body = [&]() -> Status {
        for (size_t i = 0; i < examples.size(); ++i) {
          const Example &e = examples[i];
          Tensor &in = tensors[rank].emplace_back(e.dtype, e.in, e.pad);
          Tensor &out = tensors[rank].emplace_back(e.dtype, e.out, e.pad);
          for (int64_t j = 0; j < in.elements(); ++j)
            in.set(j, double((e.seed + rank * 31 + j * 7) % 11) - 5);
          for (int64_t j = 0; j < out.elements(); ++j)
            out.set(j, double((e.seed + rank + j) % 5));
          Tensor &result = e.inPlace ? in : out;
          const View inputs[] = {in.view()}, outputs[] = {result.view()};
          auto endpoint = comm->prepare(e.spec, inputs, outputs);
          MERAK_RETURN_IF_ERROR(endpoint.status());
          for (int again = 0; again < 3; ++again)
            MERAK_RETURN_IF_ERROR(
                comm->run({endpoint->get(), inputs, outputs, stream}));
          endpoints[rank].push_back(std::move(*endpoint));
          for (int64_t j = 0; j < result.elements(); ++j)
            results[i][rank].push_back(result.at(j));
        }
        return {};
      };
      statuses[rank] = body();
      if (!statuses[rank].ok())
        comm->abort(statuses[rank]);
      if (stream)
        backend->destroyStream(stream);
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
  return results;
}

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
