// The verifier finds each planted fault, and says where it is.
#include "test/unit/migration/MigrationTesting.h"

#include <functional>

namespace merak::migration::test {
namespace {

class VerifyMigration : public ::testing::Test {
protected:
  // Two devices hold a half each; afterwards both have all, and a third one.
  void SetUp() override {
    source = split(16, 2);
    target = replicated(16, 3);
    auto planned = planMigration(source->plan, target->plan, {{}, 256});
    ASSERT_TRUE(planned.ok()) << planned.status().str();
    migration = *planned;
    ASSERT_TRUE(verify().ok()) << verify().str();
  }
  Status verify() const {
    return verifyMigration(migration, source->plan, target->plan);
  }
  // The first message between the two.
  Message &message(int sender, int receiver) {
    for (Bucket &bucket : migration.buckets)
      for (Message &entry : bucket.messages)
        if (entry.sender == sender && entry.receiver == receiver)
          return entry;
    ADD_FAILURE() << "no message from " << sender << " to " << receiver;
    return migration.buckets[0].messages[0];
  }
  void expectFound(const std::string &sentence) const {
    const std::string found = verify().str();
    EXPECT_NE(found.find(sentence), std::string::npos)
        << "'" << sentence << "' is not in: " << found;
  }

  std::unique_ptr<Holder> source, target;
  Migration migration;
};

TEST_F(VerifyMigration, ADroppedPiece) {
  Message &entry = message(0, 2);
  entry.bytes -= entry.pieces.back().bytes;
  entry.pieces.pop_back();
  expectFound("device 2: buffer 0 of \"w\": 8 of 16 elements never arrive");
}

TEST_F(VerifyMigration, ADroppedCopy) {
  migration.copies.erase(migration.copies.begin());
  EXPECT_EQ(verify().str(),
            "device 0: buffer 0 of \"w\": 8 of 16 elements never arrive");
}

TEST_F(VerifyMigration, APieceTwice) {
  Message &entry = message(0, 2);
  entry.pieces.push_back(entry.pieces.back());
  entry.bytes += entry.pieces.back().bytes;
  expectFound("device 2: buffer 0 of \"w\": the 8 at [0] arrives twice");
}

// As many elements arrive as are needed, but not all.
TEST_F(VerifyMigration, TwiceForAnother) {
  migration.copies[1] = migration.copies[0];
  expectFound("device 0: buffer 0 of \"w\": the 8 at [0] arrives twice");
  expectFound("device 1: buffer 0 of \"w\": 8 of 16 elements never arrive");
}

TEST_F(VerifyMigration, AnotherPlaceOfTheTensor) {
  message(1, 0).pieces[0].to = {0};
  expectFound("what lies at [8] of \"w\" goes to [0]");
}

TEST_F(VerifyMigration, ASenderThatDoesNotOwnIt) {
  Piece &piece = message(0, 2).pieces[0];
  piece.from = {4};
  expectFound("device 0 does not hold the 8 at [4] of \"w\" that it sends");
}

TEST_F(VerifyMigration, ASenderWithoutTheBuffer) {
  message(0, 2).pieces[0].source = 5;
  expectFound("buffer 5 of device 0 does not hold the source's \"w\"");
}

TEST_F(VerifyMigration, ASenderThatHasNoRank) {
  message(0, 1).sender = 2;
  expectFound("message from 2 to 1: nobody of the source plan sends it");
}

TEST_F(VerifyMigration, AMessageWithoutAReceiver) {
  message(0, 2).receiver = 3;
  expectFound("message from 0 to 3: nobody of the target plan receives it");
  expectFound("device 2: buffer 0 of \"w\": 8 of 16 elements never arrive");
}

TEST_F(VerifyMigration, APieceForNobody) {
  message(0, 2).pieces[0].to = {12};
  expectFound("device 2 does not need the 8 at [12] of \"w\"");
}

TEST_F(VerifyMigration, ABucketOverItsCap) {
  migration.bucketBytes = 64;
  expectFound("bucket 0: device 0 needs 96 bytes, more than the 64 of a "
              "bucket");
}

TEST_F(VerifyMigration, WrongBytes) {
  message(0, 1).pieces[0].bytes = 4;
  expectFound("a piece of \"w\" has 32 bytes, not 4");
  expectFound("message from 0 to 1: its pieces have 4 bytes, not 32");
}

TEST_F(VerifyMigration, AnotherType) {
  message(0, 1).pieces[0].dtype = planpb::BF16;
  expectFound("a piece of \"w\" is bf16, its buffer f32");
}

TEST_F(VerifyMigration, MessagesThatAreNone) {
  Bucket &bucket = migration.buckets[0];
  bucket.messages.push_back({0, 2, 0, {}});
  expectFound("message from 0 to 2: there are two");
  expectFound("message from 0 to 2: it is empty");
  bucket.messages.back() = {1, 1, 0, {}};
  expectFound("message from 1 to 1: it goes nowhere");
}

TEST_F(VerifyMigration, KeptBuffersThatDiffer) {
  migration.copies.clear();
  migration.kept = {{0, 0, 0, 0, 64}};
  expectFound("kept on device 0: buffers 0 and 0 of \"w\" differ");
}

// Two buffers cannot be one memory.
TEST_F(VerifyMigration, ABufferKeptForTwo) {
  auto one = split(8, 1);
  Holder two(1, 1, 1);
  two.add("w", {8}, Dims{{8, {}}});
  runtime::test::ProgramBuilder builder(two.plan.programs[0]);
  const uint32_t again = builder.buffer("again", planpb::F32, {8});
  builder.at(again).set_tensor("w");
  *builder.at(again).mutable_layout() = runtime::test::layoutOf({{8, {}}});
  two.start();
  auto planned = planMigration(one->plan, two.plan);
  ASSERT_TRUE(planned.ok()) << planned.status().str();
  EXPECT_EQ(planned->total().kept, 32);
  EXPECT_EQ(planned->total().copied, 32);
  planned->copies.clear();
  planned->kept.push_back({0, 0, 0, int(again), 32});
  EXPECT_EQ(verifyMigration(*planned, one->plan, two.plan).str(),
            "kept on device 0: buffer 0 of \"w\" is kept for two");
}

TEST_F(VerifyMigration, AnUnknownTensor) {
  migration.copies[0].piece.tensor = 9;
  expectFound("copy on device 0: tensor 9 is none of 1");
}

TEST_F(VerifyMigration, RanksThatAreNowhere) {
  migration.targetRank[2] = 1;
  EXPECT_EQ(verify().str(),
            "rank 1 of the target plan is on device 2, which cannot be\n"
            "rank 2 of the target plan is on no device");
}

// Whatever is changed in a program of random plans is found: none of these
// leaves it sound.
TEST(VerifyMigrations, RandomFaultsInRandomPlans) {
  Random random(7);
  int planted = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    auto source = randomHolder(random), target = randomHolder(random);
    auto planned = planMigration(source->plan, target->plan,
                                 {randomPlaces(random, *source, *target),
                                  int64_t(64) << pick(random, 0, 8)});
    ASSERT_TRUE(planned.ok()) << planned.status().str();
    if (planned->buckets.empty())
      continue;
    auto any = [&](auto &list) -> auto & {
      return list[size_t(pick(random, 0, int64_t(list.size()) - 1))];
    };
    const std::vector<std::function<void(Message &)>> faults = {
        [&](Message &m) {
          m.bytes -= m.pieces.back().bytes;
          m.pieces.pop_back();
        },
        [&](Message &m) {
          m.pieces.push_back(any(m.pieces));
          m.bytes += m.pieces.back().bytes;
        },
        [&](Message &m) { any(m.pieces).source += 5; },
        [&](Message &m) { any(m.pieces).target += 5; },
        [&](Message &m) { m.receiver = m.sender; },
        [&](Message &m) {
          Piece &piece = any(m.pieces);
          if (piece.to.empty())
            piece.bytes += 1;
          else
            piece.to[0] += 1;
        }};
    for (const auto &fault : faults) {
      Migration broken = *planned;
      fault(any(any(broken.buckets).messages));
      EXPECT_FALSE(verifyMigration(broken, source->plan, target->plan).ok());
      ++planted;
    }
  }
  EXPECT_GT(planted, 600);
}

} // namespace
} // namespace merak::migration::test
