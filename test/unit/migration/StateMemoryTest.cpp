// Which buffers can lie apart from their arena, and that a session of another
// plan takes them over as they are.
#include "runtime/migration/StateMemory.h"
#include "runtime/plan/Joined.h"
#include "test/unit/migration/MigrationTesting.h"

namespace merak::migration::test {
namespace {

TEST(StateMemory, IsOfWhatACheckpointHolds) {
  Holder holder(1, 2, 1);
  holder.add("w", {8}, Dims{{8, {}}});
  holder.add("grad:w", {8}, Dims{{8, {}}});
  holder.add("constant", {8}, Dims{{8, {}}}, {0}, planpb::Tensor::CONSTANT);
  holder.add("m", {8}, Dims{{8, {"dp"}}}, {0}, planpb::Tensor::OPTIMIZER);
  for (int rank : {0, 1})
    EXPECT_EQ(buffersApart(holder.plan, rank), (std::vector<int>{0, 3}));
}

TEST(StateMemory, IsNotOfBuffersThatLieBesideOthers) {
  Holder holder(1, 2, 1);
  for (const char *name : {"a", "b", "c", "slots", "first", "second"})
    holder.add(name, {8}, Dims{{8, {}}});
  planpb::Program &program = holder.plan.programs[0];
  // a and b are one array for a collective; the last two overlap.
  runtime::test::ProgramBuilder builder(program);
  builder.procedure("p");
  (*builder.add(planpb::Instruction::COLLECTIVE, "", {0, 1}, {0, 1})
        .mutable_attrs())[kJoinedAttr];
  builder.at(3).set_slots(2);
  builder.at(5).set_offset(builder.at(4).offset());
  EXPECT_EQ(buffersApart(holder.plan, 0), std::vector<int>{2});
}

TEST(StateMemory, KeepsWhatIsThere) {
  auto holder = replicated(8, 1);
  auto first = stateMemory(holder->plan, 0, {});
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->count(0), 1u);
  auto same = stateMemory(holder->plan, 0, *first);
  auto other = stateMemory(holder->plan, 0, {{0, nullptr}});
  ASSERT_TRUE(same.ok() && other.ok());
  EXPECT_EQ(same->at(0), first->at(0));
  EXPECT_NE(other->at(0), first->at(0));
  EXPECT_NE(other->at(0), nullptr);
}

} // namespace
} // namespace merak::migration::test
