#include "runtime/data/Shuffle.h"

#include "runtime/data/Npy.h"
#include "runtime/data/ReadAhead.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

TEST(Shuffle, IsAPermutationOfEveryEpoch) {
  for (int64_t count : {1, 2, 3, 4, 5, 15, 16, 17, 100, 1023, 1025, 5000})
    for (uint64_t epoch : {0, 1, 7}) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = shuffledIndex(i, count, 42, epoch);
        ASSERT_TRUE(at >= 0 && at < count) << count;
        seen.insert(at);
      }
      EXPECT_EQ(int64_t(seen.size()), count);
    }
  // Counts beyond any file are walked back inside, too.
  const int64_t most = INT64_MAX;
  EXPECT_LT(shuffledIndex(most - 1, most, 1, 0), most);
}

TEST(Shuffle, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  auto order = [](uint64_t seed, uint64_t epoch) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < 64; ++i)
      all.push_back(shuffledIndex(i, 64, seed, epoch));
    return all;
  };
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed : {0, 1, 2})
    for (uint64_t epoch : {0, 1, 2})
      orders.insert(order(seed, epoch));
  EXPECT_EQ(orders.size(), 9u);
  EXPECT_EQ(order(1, 2), order(1, 2));
}

// Over many epochs each sample stands at each position about as often: chi
// square of 16 x 16 cells with 255 degrees of freedom, far below what any bias
// that matters would give.
TEST(Shuffle, IsUniform) {
  constexpr int kCount = 16, kEpochs = 4000;
  std::vector<int> cells(kCount * kCount);
  for (int epoch = 0; epoch < kEpochs; ++epoch)
    for (int i = 0; i < kCount; ++i)
      ++cells[i * kCount + shuffledIndex(i, kCount, 3, uint64_t(epoch))];
  double chi = 0;
  const double expected = double(kEpochs) / kCount;
  for (int cell : cells)
    chi += (cell - expected) * (cell - expected) / expected;
  EXPECT_LT(chi, 340);
}

namespace {

planpb::PlanFile idsPlan(int64_t batch) {
  planpb::PlanFile plan;
  plan.set_global_batch(batch);
  planpb::Input &input = *plan.add_inputs();
  input.set_name("ids");
  input.set_dtype(planpb::I64);
  input.add_shape(batch);
  input.set_batched(true);
  return plan;
}

std::string numbers(int64_t first, int64_t count) {
  const std::string dir = temporaryFolder();
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(first + i);
  EXPECT_TRUE(
      writeNpy(dir + "/ids.npy", planpb::I64, {count}, values.data()).ok());
  return dir;
}

std::vector<int64_t> take(InputReader &data, int64_t step, int64_t batch,
                          int64_t from, int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count), -1);
  const Status status =
      data.read("ids", step, {{{from}, {0}, {count}}}, values.data(), {count});
  EXPECT_TRUE(status.ok()) << status.str();
  return values;
}

} // namespace

// The same samples whatever the batch, the layout or where a run began.
TEST(ShuffledData, OrderDependsOnPositionAlone) {
  const std::string dir = numbers(0, 10);
  DataOptions options{dir};
  options.shuffle = 5;
  const planpb::PlanFile four = idsPlan(4), two = idsPlan(2);
  auto data = openData(four, options);
  auto halves = openData(two, options);
  auto resumed = openData(two, options);
  ASSERT_TRUE(data.ok() && halves.ok() && resumed.ok());
  (*resumed)->setPosition(50, 12);
  std::vector<int64_t> all;
  for (int64_t step = 0; step < 10; ++step)
    for (int64_t value : take(**data, step, 4, 0, 4))
      all.push_back(value);
  for (int64_t step = 0; step < 20; ++step) {
    const std::vector<int64_t> expected(all.begin() + step * 2,
                                        all.begin() + step * 2 + 2);
    EXPECT_EQ(take(**halves, step, 2, 0, 2), expected);
    if (step >= 6) {
      EXPECT_EQ(take(**resumed, 50 + step - 6, 2, 0, 2), expected);
    }
    // A replica's part of the batch of four.
    EXPECT_EQ(take(**data, step / 2, 4, step % 2 * 2, 2), expected);
  }
  // Four epochs: each has all samples, in other orders.
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const std::vector<int64_t> order(all.begin() + epoch * 10,
                                     all.begin() + epoch * 10 + 10);
    orders.insert(order);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 10u);
  }
  EXPECT_EQ(orders.size(), 4u);
  EXPECT_DOUBLE_EQ((*data)->epochs(5), 2.0);
}

TEST(ShardedData, FollowEachOtherByName) {
  const std::string dir = temporaryFolder();
  const planpb::PlanFile plan = idsPlan(4);
  std::filesystem::rename(numbers(0, 3), dir + "/a");
  std::filesystem::rename(numbers(3, 1), dir + "/b");
  std::filesystem::rename(numbers(4, 6), dir + "/c");
  auto data = openData(plan, {dir});
  ASSERT_TRUE(data.ok()) << data.status().str();
  EXPECT_EQ((*data)->samples(), 10);
  for (int64_t step = 0; step < 5; ++step) {
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 4; ++i)
      expected.push_back((step * 4 + i) % 10);
    EXPECT_EQ(take(**data, step, 4, 0, 4), expected);
  }
  EXPECT_EQ((*data)->describe(0, 5), "\"" + dir + "/c/ids.npy\" sample 1");
  // Shuffled over all shards.
  DataOptions options{dir};
  options.shuffle = 1;
  auto shuffled = openData(plan, options);
  std::set<int64_t> seen;
  for (int64_t step = 0; step < 5; ++step)
    for (int64_t value : take(**shuffled, step, 4, 0, 4))
      seen.insert(value);
  EXPECT_EQ(seen.size(), 10u);
}

TEST(ShardedData, EveryBrokenShardIsReported) {
  const std::string dir = temporaryFolder();
  std::filesystem::rename(numbers(0, 4), dir + "/a");
  for (const char *name : {"/b", "/c"}) {
    std::filesystem::create_directory(dir + name);
    writeFile(dir + name + "/ids.npy", "?");
  }
  EXPECT_EQ(openData(idsPlan(2), {dir}).status().str(),
            "\"" + dir + "/b/ids.npy\": not a .npy file\n\"" + dir +
                "/c/ids.npy\": not a .npy file");
}

TEST(DataSource, ABatchIsNotLargerThanTheData) {
  const std::string dir = numbers(0, 7);
  EXPECT_EQ(openData(idsPlan(8), {dir}).status().str(),
            "\"" + dir + "\": 7 samples are fewer than the 8 of one step");
  EXPECT_TRUE(openData(idsPlan(7), {dir}).ok());
}

TEST(DataSource, ShrunkFilesAreASentence) {
  const std::string dir = numbers(0, 100000);
  const planpb::PlanFile plan = idsPlan(4);
  auto data = openData(plan, {dir});
  ASSERT_TRUE(data.ok());
  std::filesystem::resize_file(dir + "/ids.npy", 5000);
  std::vector<int64_t> values(4);
  const Status status =
      (*data)->read("ids", 20000, {{{0}, {0}, {4}}}, values.data(), {4});
  EXPECT_EQ(status.str(), "\"" + dir +
                              "/ids.npy\" became shorter while it was read: "
                              "expected 800128 bytes, found 5000");
}

// The same values as without it, and those of later steps come from memory.
TEST(ReadAhead, GivesTheSameSamples) {
  const std::string dir = numbers(0, 23);
  const planpb::PlanFile plan = idsPlan(4);
  DataOptions options{dir};
  options.shuffle = 9;
  auto data = openData(plan, options);
  ReadAhead ahead(**data, plan);
  for (int64_t step = 0; step < 50; ++step)
    for (int64_t replica : {0, 0, 1}) // two ranks ask for the same
      EXPECT_EQ(take(ahead, step, 4, replica * 2, 2),
                take(**data, step, 4, replica * 2, 2));
  EXPECT_EQ(ahead.hits(), 49 * 3);
  // A step that nobody foresaw is read when it is asked for.
  EXPECT_EQ(take(ahead, 7, 4, 0, 2), take(**data, 7, 4, 0, 2));
}

TEST(ReadAhead, RanksAskAtOnce) {
  const std::string dir = numbers(0, 100);
  const planpb::PlanFile plan = idsPlan(8);
  auto data = openData(plan, {dir});
  ReadAhead ahead(**data, plan);
  std::vector<std::thread> ranks;
  std::atomic<int> wrong{0};
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, rank] {
      for (int64_t step = 0; step < 200; ++step) {
        std::vector<int64_t> values(2);
        const int64_t from = rank / 2 * 2; // two pairs of replicas
        wrong +=
            !ahead.read("ids", step, {{{from}, {0}, {2}}}, values.data(), {2})
                 .ok();
        wrong += values[1] != (step * 8 + from + 1) % 100;
      }
    });
  for (std::thread &rank : ranks)
    rank.join();
  EXPECT_EQ(wrong, 0);
}

// An error of a step that never comes is nobody's; of one that does, it is
// told.
TEST(ReadAhead, ErrorsBelongToTheirStep) {
  planpb::PlanFile plan = idsPlan(2);
  plan.mutable_inputs(0)->set_limit(4);
  const std::string dir = numbers(0, 6);
  auto data = openData(plan, {dir});
  ReadAhead ahead(**data, plan);
  take(ahead, 0, 2, 0, 2);
  take(ahead, 1, 2, 0, 2);
  std::vector<int64_t> values(2);
  EXPECT_EQ(ahead.read("ids", 2, {{{0}, {0}, {2}}}, values.data(), {2}).str(),
            "\"" + dir +
                "/ids.npy\" sample 4: value 4 of \"ids\" is not in [0, 4)");
}
