// State that is moved is what a checkpoint would have brought, bit by bit, in
// the bytes and with the memory that the program says.
#include "test/unit/migration/MigrationTesting.h"

#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/core/ConvertFloats.h"
#include "runtime/core/HostMemory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace merak::migration::test {
namespace {

using runtime::test::holder;
using runtime::test::kLayouts;

// Stands for a device: the host finds nothing but inverted bits in its memory,
// other than by copies, and what it writes is there when it has waited.
class Inverted final : public runtime::Backend {
public:
  const char *name() const override { return "inverted"; }
  bool isHost() const override { return false; }
  Result<void *> allocate(uint64_t bytes) override {
    return host_.allocate(bytes);
  }
  void release(void *memory) override { host_.release(memory); }
  Status copyToDevice(void *device, const void *host, uint64_t bytes,
                      runtime::StreamHandle) override {
    std::lock_guard lock(mutex_);
    const char *data = static_cast<const char *>(host);
    pending_.push_back({device, {data, data + bytes}});
    return {};
  }
  Status synchronize(runtime::StreamHandle) override {
    std::lock_guard lock(mutex_);
    for (const auto &[device, data] : std::exchange(pending_, {}))
      invert(device, data.data(), data.size());
    return {};
  }
  Status copyToHost(void *host, const void *device, uint64_t bytes,
                    runtime::StreamHandle) override {
    MERAK_RETURN_IF_ERROR(synchronize(nullptr)); // one stream, in order
    invert(host, device, bytes);
    return {};
  }
  Status clear(void *, uint64_t, runtime::StreamHandle) override {
    return Status::error("nothing is cleared");
  }
  Status loadKernels(const std::string &) override { return {}; }
  Result<std::unique_ptr<runtime::Prepared>>
  prepare(const planpb::Instruction &, std::span<const runtime::View>,
          std::span<const runtime::View>) override {
    return Status::error("nothing is computed");
  }
  Status run(const runtime::KernelCall &) override {
    return Status::error("nothing is computed");
  }

  // Takes the memory of all ranks over, or gives it back to the host.
  void invertAll(Holder &holder) {
    for (runtime::RankMemory &rank : holder.ranks) {
      if (rank.program->proto().buffers_size() == 0)
        continue;
      void *arena = rank.program->bufferData(0);
      invert(arena, arena, rank.program->proto().arena_bytes());
      std::swap(rank.backend, backendOf_[&rank]);
      if (!rank.backend)
        rank.backend = this;
    }
  }

private:
  static void invert(void *to, const void *from, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i)
      static_cast<char *>(to)[i] = char(~static_cast<const char *>(from)[i]);
  }
  runtime::HostMemory host_;
  std::mutex mutex_;
  std::vector<std::pair<void *, std::vector<char>>> pending_;
  std::map<runtime::RankMemory *, Backend *> backendOf_;
};

int64_t largestBuffer(const Holder &holder) {
  uint64_t largest = 0;
  for (const runtime::RankMemory &rank : holder.ranks)
    for (const planpb::Buffer &buffer : rank.program->proto().buffers())
      largest = std::max<uint64_t>(largest, buffer.bytes());
  return int64_t(largest);
}

// Whether all arenas, which hold nothing else, are those of `expected`.
void expectEqual(const Holder &found, const Holder &expected) {
  for (size_t r = 0; r < found.ranks.size(); ++r) {
    if (found.ranks[r].program->proto().buffers_size() == 0)
      continue;
    EXPECT_EQ(std::memcmp(found.ranks[r].program->bufferData(0),
                          expected.ranks[r].program->bufferData(0),
                          expected.ranks[r].program->proto().arena_bytes()),
              0)
        << "rank " << r;
  }
}

// What was done is what the program says of each device.
void expectCounts(const Migration &migration, const std::vector<Moved> &moved) {
  Moved sum;
  for (size_t d = 0; d < moved.size(); ++d) {
    EXPECT_EQ(moved[d].peakBytes, migration.byDevice()[d].buffers) << d;
    EXPECT_LE(moved[d].peakBytes, migration.bucketBytes) << d;
    sum.keptBytes += moved[d].keptBytes + moved[d].keptByCopyBytes;
    sum.copiedBytes += moved[d].copiedBytes;
    sum.sentBytes += moved[d].sentBytes;
    sum.receivedBytes += moved[d].receivedBytes;
    sum.messages += moved[d].messages;
  }
  EXPECT_EQ(sum.keptBytes, migration.total().kept);
  EXPECT_EQ(sum.copiedBytes, migration.total().copied);
  EXPECT_EQ(sum.sentBytes, migration.total().sent);
  EXPECT_EQ(sum.receivedBytes, migration.total().sent);
  EXPECT_EQ(sum.messages, migration.messages());
}

TEST(ExecuteMigration, EveryLayoutMovesIntoEveryOther) {
  for (int from = 0; from < kLayouts; ++from)
    for (int to = 0; to < kLayouts; ++to)
      for (int64_t bucketBytes : {kLeastBucketBytes, kBucketBytes}) {
        SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
        auto source = holder(from), target = holder(to), expected = holder(to);
        source->fill(1000);
        target->fill(-1);
        expected->fill(1000);
        auto migration =
            planMigration(source->plan, target->plan, {{}, bucketBytes});
        ASSERT_TRUE(migration.ok()) << migration.status().str();
        expectCounts(*migration, migrate(*migration, *source, *target));
        expectEqual(*target, *expected);
      }
}

TEST(ExecuteMigration, RandomPairsOnRandomDevices) {
  Random random(20);
  int64_t sent = 0, copied = 0, kept = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const Random twin = random;
    auto target = randomHolder(random);
    Random again = twin;
    auto expected = randomHolder(again), source = randomHolder(random);
    source->fill(1000);
    target->fill(-1);
    expected->fill(1000);
    const Options options{randomPlaces(random, *source, *target),
                          int64_t(64) << pick(random, 0, 8)};
    auto migration = planMigration(source->plan, target->plan, options);
    ASSERT_TRUE(migration.ok()) << migration.status().str();
    auto twice = planMigration(source->plan, target->plan, options);
    EXPECT_TRUE(*migration == *twice);
    expectCounts(*migration, migrate(*migration, *source, *target));
    expectEqual(*target, *expected);
    sent += migration->total().sent;
    copied += migration->total().copied;
    kept += migration->total().kept;
  }
  EXPECT_GT(sent, 100000);
  EXPECT_GT(copied, 100000);
  EXPECT_GT(kept, 10000);
}

// Copies of lower precision are rounded from the values, here and where they
// are sent from.
TEST(ExecuteMigration, RoundedCopiesAreMadeOfTheValues) {
  auto source = split(8, 2);
  source->fill(0.1f);
  Holder target(1, 2, 1);
  target.add("w", {8}, Dims{{8, {"dp"}}});
  runtime::test::ProgramBuilder builder(target.plan.programs[0]);
  const uint32_t copy = builder.buffer("w16", planpb::BF16, {8});
  builder.at(copy).set_tensor("w");
  *builder.at(copy).mutable_layout() = runtime::test::layoutOf({{8, {}}});
  target.start();
  auto migration = planMigration(source->plan, target.plan);
  ASSERT_TRUE(migration.ok()) << migration.status().str();
  // The other half, of two bytes each.
  EXPECT_EQ(migration->total().sent, 2 * 4 * 2);
  EXPECT_EQ(migration->total().copied, 2 * 4 * 2);
  EXPECT_EQ(migration->total().kept, 2 * 4 * 4);
  migrate(*migration, *source, target);
  std::vector<float> values(8);
  for (int i = 0; i < 8; ++i)
    values[size_t(i)] = 0.1f + float(i);
  std::vector<char> rounded(16);
  ASSERT_TRUE(runtime::convertFloats(
      planpb::F32, reinterpret_cast<const char *>(values.data()), planpb::BF16,
      rounded.data(), 8));
  for (const runtime::RankMemory &rank : target.ranks)
    EXPECT_EQ(std::memcmp(rank.program->bufferData(int(copy)), rounded.data(),
                          rounded.size()),
              0);
}

// From memory of devices into that of others, and between a device and a host.
// More host memory than for messages is taken for two buffers at most.
TEST(ExecuteMigration, MemoryOfDevicesMovesThroughTheHost) {
  for (int from = 0; from < kLayouts; ++from)
    for (int to = 0; to < kLayouts; ++to)
      for (int which = 1; which < 4; ++which) { // source, target, both
        SCOPED_TRACE(fmt::format("{} to {}, {}", from, to, which));
        auto source = holder(from), target = holder(to), expected = holder(to);
        source->fill(1000);
        target->fill(-1);
        expected->fill(1000);
        auto migration = planMigration(source->plan, target->plan);
        ASSERT_TRUE(migration.ok()) << migration.status().str();
        Inverted device;
        if (which & 1)
          device.invertAll(*source);
        if (which & 2)
          device.invertAll(*target);
        const std::vector<Moved> moved = migrate(*migration, *source, *target);
        if (which & 2)
          device.invertAll(*target);
        expectEqual(*target, *expected);
        const int64_t rows = largestBuffer(*source) + largestBuffer(*target);
        int64_t kept = 0;
        for (size_t d = 0; d < moved.size(); ++d) {
          EXPECT_LE(moved[d].peakBytes,
                    migration->byDevice()[d].buffers + rows);
          kept += moved[d].keptByCopyBytes;
        }
        EXPECT_EQ(kept, migration->total().kept);
      }
}

// Buffers at one address are left alone.
TEST(ExecuteMigration, WhatIsThereIsNotTouched) {
  auto plan = replicated(8, 2);
  plan->fill(5);
  auto migration = planMigration(plan->plan, plan->plan);
  ASSERT_TRUE(migration.ok());
  const std::vector<Moved> moved = migrate(*migration, *plan, *plan);
  for (const Moved &device : moved) {
    EXPECT_EQ(device.keptBytes, 32);
    EXPECT_EQ(device.keptByCopyBytes, 0);
    EXPECT_EQ(device.peakBytes, 0);
  }
}

TEST(ExecuteMigration, MemoryOfOtherRanksIsRefused) {
  auto source = split(8, 2), target = replicated(8, 2);
  auto migration = planMigration(source->plan, target->plan);
  ASSERT_TRUE(migration.ok());
  runtime::InprocWorld world(2);
  auto communicator = world.communicator(0);
  const std::vector<DeviceMemory> memories = {
      {0, &source->ranks[1], nullptr, nullptr},
      {1, &source->ranks[1], &target->ranks[1], communicator.get()},
      {2, nullptr, nullptr, nullptr}};
  const auto moved = executeMigration(*migration, memories);
  EXPECT_EQ(moved.status().str(),
            "device 0: has rank 1 of the source plan, not 0\n"
            "device 0: has rank -1 of the target plan, not 0\n"
            "device 0: has nothing to communicate by\n"
            "device 1: communicates as 0 of 2, not of 2\n"
            "device 2: there are 2 devices");
}

// The others of a run do not wait for ever for a device that cannot go on.
TEST(ExecuteMigration, AFailureEndsAllDevices) {
  auto source = split(8, 2), target = replicated(8, 2);
  auto migration = planMigration(source->plan, target->plan);
  ASSERT_TRUE(migration.ok());
  runtime::InprocWorld world(2);
  world.abort(Status::error("somebody left"));
  auto first = world.communicator(0), second = world.communicator(1);
  const std::vector<DeviceMemory> memories = {
      {0, &source->ranks[0], &target->ranks[0], first.get()},
      {1, &source->ranks[1], &target->ranks[1], second.get()}};
  const auto moved = executeMigration(*migration, memories);
  EXPECT_NE(moved.status().str().find("somebody left"), std::string::npos)
      << moved.status().str();
}

} // namespace
} // namespace merak::migration::test
