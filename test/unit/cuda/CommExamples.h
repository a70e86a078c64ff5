// Random collectives, run by all ranks of a world through any communicator.
#pragma once

#include "test/unit/comm/CommTesting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <deque>
#include <random>

namespace merak::runtime::test {

struct Example {
  CommSpec spec;
  planpb::DType dtype = planpb::F32;
  std::vector<int64_t> in, out;
  int64_t pad = 0;
  bool inPlace = false;
  unsigned seed = 0;
};

inline Example randomExample(std::mt19937 &random, int ranks) {
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
inline std::vector<Values> runAll(const std::vector<Example> &examples,
                                  int ranks, InprocWorld &world,
                                  const MakeCommunicator &make) {
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

} // namespace merak::runtime::test
