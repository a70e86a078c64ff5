// Who sends what, in which buckets; and pairs of plans that are refused.
#include "test/unit/migration/MigrationTesting.h"

#include <fmt/format.h>

namespace merak::migration::test {
namespace {

// Messages as "sender>receiver:bytes", bucket by bucket.
std::string str(const Migration &migration) {
  std::string text;
  for (const Bucket &bucket : migration.buckets) {
    text += text.empty() ? "" : " |";
    for (const Message &message : bucket.messages)
      text += fmt::format(" {}>{}:{}", message.sender, message.receiver,
                          message.bytes);
  }
  return text;
}

Migration planned(const Holder &source, const Holder &target,
                  const Options &options = {}) {
  auto migration = planMigration(source.plan, target.plan, options);
  EXPECT_TRUE(migration.ok()) << migration.status().str();
  return migration ? *migration : Migration();
}

TEST(PlanMigration, EqualPlansKeepAll) {
  for (int kind = 0; kind < runtime::test::kLayouts; ++kind) {
    auto holder = runtime::test::holder(kind);
    const Migration migration = planned(*holder, *holder);
    EXPECT_TRUE(migration.buckets.empty());
    EXPECT_TRUE(migration.copies.empty());
    int64_t bytes = 0;
    for (const runtime::RankMemory &rank : holder->ranks)
      for (const planpb::Buffer &buffer : rank.program->proto().buffers())
        bytes += int64_t(buffer.bytes());
    EXPECT_EQ(migration.total().kept, bytes);
  }
}

TEST(PlanMigration, WhatADeviceHasItTakesFromItself) {
  auto source = split(16, 2), target = replicated(16, 2);
  const Migration out = planned(*source, *target);
  EXPECT_EQ(str(out), " 0>1:32 1>0:32");
  EXPECT_EQ(out.total().copied, 64);
  const Migration back = planned(*target, *source);
  EXPECT_EQ(str(back), "");
  EXPECT_EQ(back.total().copied, 64);
}

// Of replicas on nodes {0, 1} and {2, 3}: 4 and 5 are on the first node, 6 is
// on one of its own.
TEST(PlanMigration, OwnersOfTheNodeSendThoseWithTheLeast) {
  auto source = replicated(16, 4), target = replicated(16, 3);
  const Places places{{0, 1, 2, 3}, {4, 5, 6}, {0, 0, 1, 1, 0, 0, 2}};
  const Migration migration = planned(*source, *target, {places});
  // To 6 the first of all owners, whose bytes inside its node do not count.
  EXPECT_EQ(str(migration), " 0>4:64 1>5:64 0>6:64");
}

TEST(PlanMigration, RemoteOwnersShareWhatGoesBetweenNodes) {
  auto source = replicated(16, 2), target = replicated(16, 4);
  const Places places{{0, 1}, {2, 3, 4, 5}, {0, 0, 1, 1, 1, 1}};
  EXPECT_EQ(str(planned(*source, *target, {places})),
            " 0>2:64 1>3:64 0>4:64 1>5:64");
}

// What one device sends and receives in a bucket fits into it.
TEST(PlanMigration, BucketsAreBounded) {
  auto source = split(96, 2), target = replicated(96, 2);
  // 192 bytes each way, half of 128 in a bucket.
  const Migration migration = planned(*source, *target, {{}, 128});
  EXPECT_EQ(migration.buckets.size(), 3u);
  EXPECT_EQ(migration.byDevice()[0].buffers, 128);
  EXPECT_EQ(migration.total().buffers, 128);
  EXPECT_EQ(migration.total().sent, 2 * 192);
  EXPECT_EQ(planned(*source, *target).buckets.size(), 1u);
}

// A part that is too large for a bucket comes from several owners.
TEST(PlanMigration, OwnersShareALargePiece) {
  auto source = replicated(96, 2), target = replicated(96, 1);
  const Migration migration =
      planned(*source, *target, {{{0, 1}, {2}, {}}, 256});
  std::map<int, int64_t> sent;
  for (const Bucket &bucket : migration.buckets)
    for (const Message &message : bucket.messages)
      sent[message.sender] += message.bytes;
  EXPECT_EQ(sent, (std::map<int, int64_t>{{0, 192}, {1, 192}}));
}

TEST(PlanMigration, OtherModelsAreRefusedWithEveryDifference) {
  Holder source(1, 1, 1), target(1, 1, 1);
  source.add("w", {6, 9}, Dims{{6, {}}, {9, {}}});
  source.add("w.momentum", {6, 9}, Dims{{6, {}}, {9, {}}}, {0},
             planpb::Tensor::OPTIMIZER);
  source.add("typed", {2}, Dims{{2, {}}});
  target.add("w", {9, 6}, Dims{{9, {}}, {6, {}}});
  target.add("typed", {2}, Dims{{2, {}}});
  target.add("extra", {2}, Dims{{2, {}}});
  target.plan.file.mutable_tensors(1)->set_dtype(planpb::F64);
  EXPECT_EQ(planMigration(source.plan, target.plan).status().str(),
            "tensor \"w\" is f32[6,9] in the source plan and f32[9,6] in the "
            "target plan\n"
            "tensor \"typed\" is f32[2] in the source plan and f64[2] in the "
            "target plan\n"
            "the source plan has no tensor \"extra\"\n"
            "the target plan has no tensor \"w.momentum\"");
}

TEST(PlanMigration, WhatNobodyHoldsIsRefused) {
  Holder source(1, 1, 2);
  source.add("w", {8}, Dims{{8, {"tp"}}});
  source.plan.file.mutable_ranks()->RemoveLast();
  auto target = replicated(8, 1);
  EXPECT_EQ(planMigration(source.plan, target->plan).status().str(),
            "tensor \"w\": no rank of the source plan holds 4 of the 8 "
            "elements that device 0 needs");
}

TEST(PlanMigration, PlacesAreChecked) {
  auto source = replicated(8, 2), target = replicated(8, 2);
  auto refusal = [&](Places places, int64_t bucketBytes = kBucketBytes) {
    return planMigration(source->plan, target->plan,
                         {std::move(places), bucketBytes})
        .status()
        .str();
  };
  EXPECT_EQ(refusal({{0, 0}, {0, 1}, {}}),
            "ranks 0 and 1 of the source plan are both on device 0");
  EXPECT_EQ(refusal({{}, {0, 7}, {0, 0}}),
            "rank 1 of the target plan is on device 7: there are 2");
  EXPECT_EQ(refusal({{0}, {-1, 1}, {}}),
            "the source plan has 2 ranks, but devices are given for 1\n"
            "rank 0 of the target plan is on device -1: there are 2");
  EXPECT_EQ(refusal({}, 63), "buckets of 63 bytes are too small: 64 at least");
}

} // namespace
} // namespace merak::migration::test
