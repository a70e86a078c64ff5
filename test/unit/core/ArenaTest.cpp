// Buffers in allocations of their own: where they lie, and that every byte
// around a slot is looked at.
#include "runtime/core/Arena.h"
#include "runtime/core/MemoryCount.h"
#include "runtime/plan/Joined.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace merak::runtime::test {
namespace {

class ArenaTest : public testing::Test {
protected:
  ArenaTest() {
    ProgramBuilder builder(program);
    a = int(builder.buffer("a", planpb::F32, {3}));
    b = int(builder.buffer("b", planpb::F32, {5}, 3));
    g = int(builder.buffer("g", planpb::F32, {16}));
    h = int(builder.buffer("h", planpb::F32, {16}));
    builder.procedure("p");
    planpb::Instruction &sum =
        builder.add(Instruction::COLLECTIVE, "", {uint32_t(g), uint32_t(h)},
                    {uint32_t(g), uint32_t(h)});
    (*sum.mutable_attrs())[kJoinedAttr];
  }

  planpb::Program program;
  ThreadPool pool{1};
  TestBackend backend{pool};
  int a = 0, b = 0, g = 0, h = 0;
};

TEST_F(ArenaTest, PackedBuffersLieWhereThePlanSays) {
  Arena arena(program, backend);
  ASSERT_TRUE(arena.take(false).ok());
  EXPECT_EQ(arena.base(b) - arena.base(a),
            int64_t(program.buffers(b).offset()));
  EXPECT_EQ(arena.stride(b), program.buffers(b).slot_stride());
  arena.base(a)[12] = 1;
  EXPECT_TRUE(arena.check(a, 0, nullptr).ok());
  EXPECT_EQ(Arena::bytes(program, false), program.arena_bytes());
}

// What lies behind a given buffer moves up.
TEST_F(ArenaTest, GivenMemoryIsNoPartOfTheAllocation) {
  auto memory = sharedHostMemory(12);
  ASSERT_TRUE(memory.ok());
  const int64_t held = MemoryCount::held();
  {
    Arena arena(program, backend);
    ASSERT_TRUE(arena.take(false, {{a, *memory}}).ok());
    EXPECT_EQ(MemoryCount::held() - held, int64_t(program.arena_bytes() - 64));
    EXPECT_EQ(arena.base(a), memory->get());
    EXPECT_EQ(arena.given(a), *memory);
    EXPECT_EQ(arena.given(b), nullptr);
    EXPECT_EQ(
        arena.base(g) - arena.base(b),
        int64_t(program.buffers(g).offset() - program.buffers(b).offset()));
    arena.base(a)[0] = 7;
    // The last byte of the last buffer is inside.
    arena.base(h)[63] = 1;
  }
  EXPECT_EQ(MemoryCount::held(), held);
  EXPECT_EQ(memory->get()[0], 7);
  memory->reset();
  EXPECT_EQ(MemoryCount::held(), held - 12);
  Arena separate(program, backend);
  EXPECT_EQ(separate.take(true, {{a, nullptr}}).str(),
            "buffers that lie apart have no red zones");
}

TEST_F(ArenaTest, JoinedBuffersStayBesideEachOther) {
  Arena arena(program, backend);
  ASSERT_TRUE(arena.take(true).ok());
  EXPECT_EQ(arena.base(h) - arena.base(g),
            int64_t(program.buffers(h).offset() - program.buffers(g).offset()));
  EXPECT_GT(Arena::bytes(program, true),
            program.arena_bytes() + 6 * Arena::kZone);
}

// Each slot from its first byte to its last is the instruction's own; each byte
// before and behind is not.
TEST_F(ArenaTest, EachByteAroundASlotIsLookedAt) {
  for (const auto &[buffer, slots] :
       std::initializer_list<std::pair<int, uint32_t>>{{a, 1}, {b, 3}}) {
    const int64_t bytes = int64_t(program.buffers(buffer).bytes());
    for (uint32_t slot = 0; slot < slots; ++slot)
      for (int64_t at : {int64_t{-1024}, int64_t{-1}, int64_t{0}, bytes - 1,
                         bytes, bytes + 1, bytes + 1023}) {
        Arena arena(program, backend);
        ASSERT_TRUE(arena.take(true).ok());
        ASSERT_TRUE(arena.checkAll(nullptr).ok());
#if defined(__SANITIZE_ADDRESS__)
        if (at < 0 || at >= bytes)
          continue; // the write itself is an error
#endif
        arena.base(buffer)[slot * arena.stride(buffer) + uint64_t(at)] = 0;
        const Status one = arena.check(buffer, slot, nullptr);
        const Status all = arena.checkAll(nullptr);
        const std::string name = program.buffers(buffer).name();
        if (at >= 0 && at < bytes) {
          EXPECT_TRUE(one.ok() && all.ok()) << at;
        } else if (at < 0) {
          EXPECT_EQ(one.str(),
                    fmt::format("wrote before buffer \"{}\", {} bytes from its "
                                "begin",
                                name, -at));
          EXPECT_FALSE(all.ok());
        } else {
          EXPECT_EQ(one.str(),
                    fmt::format("wrote behind buffer \"{}\", {} bytes from its "
                                "end",
                                name, at - bytes));
          EXPECT_FALSE(all.ok());
        }
      }
  }
}

} // namespace
} // namespace merak::runtime::test
