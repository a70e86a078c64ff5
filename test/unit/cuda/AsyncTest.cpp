// The emulated device with a seed: what streams, events and the host's waits
// order happens in that order for every seed, and what they do not happens the
// other way round for some. With it, that the CUDA backend and the communicator
// of ranks that share a device wait for all that they have to.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/comm/inproc/DeviceCommunicator.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

#include <barrier>
#include <numeric>
#include <thread>

namespace merak::cuda {
namespace {

using runtime::View;

constexpr uint64_t kSeeds = 64;

std::shared_ptr<EmulatedDevice> deviceOf(uint64_t seed) {
  Emulation emulation;
  emulation.seed = seed;
  return std::make_shared<EmulatedDevice>(emulation);
}

// Copies a to b on one stream and b to c on another, with and without an event;
// the host waits for the second.
int chained(uint64_t seed, bool ordered) {
  auto device = deviceOf(seed);
  Stream first = *device->createStream(), second = *device->createStream();
  Event event = *device->createEvent();
  int a = 1, b = 0, c = 0;
  EXPECT_TRUE(device->copy(&b, &a, sizeof(int), first).ok());
  if (ordered) {
    EXPECT_TRUE(device->record(event, first).ok());
    EXPECT_TRUE(device->wait(second, event).ok());
  }
  EXPECT_TRUE(device->copy(&c, &b, sizeof(int), second).ok());
  EXPECT_TRUE(device->synchronize(second).ok());
  const int found = c;
  device->destroyStream(first);
  device->destroyStream(second);
  device->destroyEvent(event);
  EXPECT_EQ(device->live(), 0u);
  return found;
}

TEST(Async, AnEventOrdersTwoStreams) {
  int late = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_EQ(chained(seed, true), 1) << seed;
    late += chained(seed, false) == 0;
  }
  EXPECT_GT(late, 0);
  EXPECT_LT(late, int(kSeeds));
}

TEST(Async, AStreamDoesItsWorkInOrder) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto device = deviceOf(seed);
    Stream stream = *device->createStream();
    std::vector<int> line(50);
    line[0] = 7;
    for (size_t i = 1; i < line.size(); ++i)
      ASSERT_TRUE(
          device->copy(&line[i], &line[i - 1], sizeof(int), stream).ok());
    ASSERT_TRUE(device->synchronize(stream).ok());
    EXPECT_EQ(line.back(), 7);
    device->destroyStream(stream);
  }
}

// A wait is for what had been recorded when it was asked for.
TEST(Async, AnEventMayBeRecordedAgain) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto device = deviceOf(seed);
    Stream first = *device->createStream(), second = *device->createStream();
    Event event = *device->createEvent();
    int values[3] = {1, 2, 3}, b = 0, c = 0;
    ASSERT_TRUE(device->copy(&b, &values[0], sizeof(int), first).ok());
    ASSERT_TRUE(device->record(event, first).ok());
    ASSERT_TRUE(device->wait(second, event).ok());
    ASSERT_TRUE(device->copy(&c, &b, sizeof(int), second).ok());
    ASSERT_TRUE(device->record(event, second).ok());
    ASSERT_TRUE(device->wait(first, event).ok());
    ASSERT_TRUE(device->copy(&b, &values[1], sizeof(int), first).ok());
    ASSERT_TRUE(device->record(event, first).ok());
    ASSERT_TRUE(device->synchronizeEvent(event).ok());
    EXPECT_EQ(c, 1) << seed;
    EXPECT_EQ(b, 2) << seed;
    device->destroyStream(first);
    device->destroyStream(second);
    device->destroyEvent(event);
  }
}

TEST(Async, TheHostSeesNothingBeforeItWaits) {
  int unseen = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto device = deviceOf(seed);
    Stream stream = *device->createStream();
    int a = 1, b = 0;
    ASSERT_TRUE(device->copy(&b, &a, sizeof(int), stream).ok());
    unseen += b == 0;
    ASSERT_TRUE(device->synchronize(stream).ok());
    EXPECT_EQ(b, 1);
    device->destroyStream(stream);
  }
  EXPECT_GT(unseen, 0);
}

TEST(Async, AFailureIsToldLater) {
  auto device = deviceOf(3);
  Stream stream = *device->createStream();
  (void)device->enqueue(stream, [] { return Status::error("broke"); });
  EXPECT_EQ(device->synchronize(stream).str(), "broke");
  EXPECT_EQ(device->synchronize(nullptr).str(), "broke");
  device->destroyStream(stream);
}

// One launch of a graph whose two streams nothing orders, and what an update
// after the launch changes.
TEST(Async, GraphsRunInTheirStreamsTurnInAnyOrder) {
  int late = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto device = deviceOf(seed);
    Stream first = *device->createStream(), second = *device->createStream();
    Event fork = *device->createEvent(), join = *device->createEvent();
    int a = 1, b = 0, c = 0, d = 0;
    ASSERT_TRUE(device->beginCapture(first).ok());
    ASSERT_TRUE(device->record(fork, first).ok());
    ASSERT_TRUE(device->wait(second, fork).ok());
    ASSERT_TRUE(device->copy(&b, &a, sizeof(int), first).ok());
    ASSERT_TRUE(device->copy(&c, &b, sizeof(int), second).ok());
    ASSERT_TRUE(device->record(join, second).ok());
    ASSERT_TRUE(device->wait(first, join).ok());
    auto graph = device->endCapture(first);
    ASSERT_TRUE(graph.ok());
    ASSERT_TRUE((*graph)->launch(first).ok());
    ASSERT_TRUE(device->copy(&d, &b, sizeof(int), first).ok());
    ASSERT_TRUE(device->synchronize(first).ok());
    late += c == 0;
    EXPECT_EQ(d, 1);
    for (Stream stream : {first, second})
      device->destroyStream(stream);
    for (Event event : {fork, join})
      device->destroyEvent(event);
  }
  EXPECT_GT(late, 0);
  EXPECT_LT(late, int(kSeeds));
}

// ---------------------------------------------------------------- backend

// Does not wait on the host, for events or for streams.
class Hasty : public EmulatedDevice {
public:
  Hasty(uint64_t seed, bool events, bool streams)
      : EmulatedDevice([&] {
          Emulation emulation;
          emulation.seed = seed;
          return emulation;
        }()),
        events_(events), streams_(streams) {}
  Status synchronizeEvent(Event event) override {
    return events_ ? Status() : EmulatedDevice::synchronizeEvent(event);
  }
  Status synchronize(Stream stream) override {
    return streams_ ? Status() : EmulatedDevice::synchronize(stream);
  }

private:
  bool events_, streams_;
};

// Whether what is copied to the device and back in many pieces is whole.
bool survives(std::shared_ptr<EmulatedDevice> device) {
  std::vector<int> values((13 << 20) / sizeof(int)), found(values.size());
  std::iota(values.begin(), values.end(), 0);
  const uint64_t bytes = values.size() * sizeof(int);
  CudaBackend backend(device);
  auto memory = backend.allocate(bytes);
  auto stream = backend.createStream();
  EXPECT_TRUE(memory.ok() && stream.ok());
  EXPECT_TRUE(
      backend.copyToDevice(*memory, values.data(), bytes, *stream).ok());
  EXPECT_TRUE(backend.copyToHost(found.data(), *memory, bytes, *stream).ok());
  backend.destroyStream(*stream);
  backend.release(*memory);
  return found == values;
}

TEST(Async, CopiesThroughPinnedMemoryWaitForIt) {
  int noEvents = 0, noStreams = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    EXPECT_TRUE(survives(std::make_shared<Hasty>(seed, false, false))) << seed;
    noEvents += !survives(std::make_shared<Hasty>(seed, true, false));
    noStreams += !survives(std::make_shared<Hasty>(seed, false, true));
  }
  EXPECT_GT(noEvents, 0);
  EXPECT_GT(noStreams, 0);
}

// ---------------------------------------------------------------- ranks

using runtime::CommSpec;

// Two ranks on the device: each writes x, they meet, x is overwritten; twice.
// The values that both got, and how often each stream waited.
struct Meetings {
  std::vector<float> values;
  std::vector<size_t> waits;
};

Meetings meet(uint64_t seed, CommSpec::Kind kind,
              std::optional<std::pair<size_t, size_t>> lost) {
  Emulation emulation;
  emulation.seed = seed;
  emulation.lost = lost;
  auto device = std::make_shared<EmulatedDevice>(emulation);
  runtime::InprocWorld world(2);
  std::vector<std::unique_ptr<CudaBackend>> backends;
  std::vector<runtime::StreamHandle> streams;
  const bool sends = kind == CommSpec::Send;
  const int64_t factor = kind == CommSpec::AllGather ? 2 : 1;
  const int64_t cut = kind == CommSpec::ReduceScatter ? 2 : 1;
  struct Memory {
    float fill[4][4], x[4], y[8], got[2][8];
  };
  std::vector<Memory> memory(2, Memory{});
  for (int rank = 0; rank < 2; ++rank) {
    backends.push_back(std::make_unique<CudaBackend>(device));
    streams.push_back(*backends.back()->createStream());
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 4; ++k)
        memory[size_t(rank)].fill[i][k] = float(100 * rank + 10 * i + k + 1);
  }
  std::barrier asked(2); // so that no rank's work is done in a hurry
  // Their events outlive what others wait for.
  std::unique_ptr<runtime::Endpoint> endpoints[2];
  auto body = [&](int rank) {
    auto comm = runtime::deviceCommunicator(world, rank, *backends[rank]);
    Memory &own = memory[size_t(rank)];
    CommSpec spec;
    spec.kind = sends && rank == 1 ? CommSpec::Recv : kind;
    spec.members = {0, 1};
    spec.peer = 1 - rank;
    spec.channel = "c";
    const View x{own.x, planpb::F32, {4}, {1}};
    const View y{own.y, planpb::F32, {4 * factor / cut}, {1}};
    std::vector<View> in = {x}, out = {y};
    if (sends)
      (rank == 0 ? out : in).clear();
    auto prepared = comm->prepare(spec, in, out);
    ASSERT_TRUE(prepared.ok()) << prepared.status().str();
    auto &endpoint = endpoints[rank] = std::move(*prepared);
    backends[rank]->askWorkspace(streams[rank], endpoint->workspace);
    ASSERT_TRUE(backends[rank]->takeWorkspaces(nullptr).ok());
    const Stream stream = CudaBackend::native(streams[rank]);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(device->copy(own.x, own.fill[2 * i], 16, stream).ok());
      EXPECT_TRUE(comm->run({endpoint.get(), in, out, streams[rank]}).ok());
      EXPECT_TRUE(device->copy(own.x, own.fill[2 * i + 1], 16, stream).ok());
      EXPECT_TRUE(device->copy(own.got[i], own.y, 32, stream).ok());
      EXPECT_TRUE(device->clear(own.y, 32, stream).ok());
    }
    asked.arrive_and_wait();
    EXPECT_TRUE(device->synchronize(stream).ok());
  };
  std::thread other(body, 1);
  body(0);
  other.join();
  Meetings result{{}, device->waits()};
  for (const Memory &own : memory)
    for (const auto &got : own.got)
      result.values.insert(result.values.end(), got, got + 8);
  for (int rank = 0; rank < 2; ++rank)
    backends[rank]->destroyStream(streams[rank]);
  return result;
}

TEST(Async, RanksThatShareTheDeviceNeedEachOfTheirWaits) {
  for (CommSpec::Kind kind :
       {CommSpec::AllReduce, CommSpec::AllGather, CommSpec::ReduceScatter,
        CommSpec::AllToAll, CommSpec::Send}) {
    const Meetings expected = meet(0, kind, std::nullopt);
    for (uint64_t seed = 1; seed <= kSeeds; ++seed)
      ASSERT_EQ(meet(seed, kind, std::nullopt).values, expected.values)
          << commKindName(kind) << " with seed " << seed;
    size_t waits = 0;
    for (size_t stream = 0; stream < expected.waits.size(); ++stream)
      waits += expected.waits[stream];
    EXPECT_EQ(waits, kind == CommSpec::Send ? 4u : 8u) << commKindName(kind);
    // Of a transfer it depends on who comes first which stream waits.
    if (kind == CommSpec::Send)
      continue;
    for (size_t stream = 0; stream < expected.waits.size(); ++stream)
      for (size_t wait = 0; wait < expected.waits[stream]; ++wait) {
        bool found = false;
        for (uint64_t seed = 1; seed <= 4 * kSeeds && !found; ++seed)
          found = meet(seed, kind, std::pair(stream, wait)).values !=
                  expected.values;
        EXPECT_TRUE(found) << commKindName(kind) << ": wait " << wait
                           << " of stream " << stream;
      }
  }
}

} // namespace
} // namespace merak::cuda
