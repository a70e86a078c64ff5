// Processes that end together: after a signal, after an error, by force.
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/launch/AbortTimer.h"
#include "runtime/launch/CpuShare.h"
#include "runtime/launch/StopTogether.h"
#include "test/unit/rendezvous/StoreTesting.h"

#include <mutex>
#include <random>
#include <set>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

// One rank is asked at a time that only chance knows; each step needs all
// ranks, so that any disagreement about the last one would hang.
TEST(StopTogether, AllDoTheSameSteps) {
  std::mt19937 random(7);
  for (int round = 0; round < 10; ++round) {
    const int asked = int(random() % 4), when = int(random() % 6);
    std::mutex mutex;
    std::set<int> counts;
    runStores(4, [&](Store &store) {
      StopTogether together(&store);
      ASSERT_TRUE(store.barrier("begin", 20).ok());
      int done = 0;
      while (true) {
        const bool signal = store.rank() == asked && done >= when;
        auto turn = together.next({false, signal ? "SIGTERM" : ""});
        ASSERT_TRUE(turn.ok()) << turn.status().str();
        EXPECT_FALSE(turn->save);
        if (!turn->step)
          break;
        ASSERT_TRUE(store.barrier("step", 20).ok());
        ++done;
      }
      EXPECT_EQ(together.cause(), "SIGTERM");
      std::lock_guard lock(mutex);
      counts.insert(done);
    });
    EXPECT_EQ(counts.size(), 1u);
    EXPECT_GE(*counts.begin(), when);
  }
}

// Ranks are asked to save at times that only chance knows, several at once, one
// of them again and again, and at last one to stop: all save after the same
// steps.
TEST(StopTogether, AllSaveAfterTheSameSteps) {
  std::mt19937 random(9);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::set<int>> asked(4);
    for (int rank = 0; rank < 4; ++rank)
      for (int k = int(random() % 3); k-- > 0;)
        asked[size_t(rank)].insert(int(random() % 8));
    const int stopper = int(random() % 4), last = 8 + int(random() % 6);
    std::mutex mutex;
    std::set<std::vector<int>> saves;
    runStores(4, [&](Store &store) {
      StopTogether together(&store);
      ASSERT_TRUE(store.barrier("begin", 20).ok());
      std::vector<int> mine;
      int done = 0;
      while (true) {
        Wish wish;
        wish.save = asked[size_t(store.rank())].contains(done);
        if (store.rank() == stopper && done >= last)
          wish.stop = "SIGHUP";
        auto turn = together.next(wish);
        ASSERT_TRUE(turn.ok()) << turn.status().str();
        if (turn->save) {
          mine.push_back(done);
          ASSERT_TRUE(store.barrier("save", 20).ok());
        }
        if (!turn->step)
          break;
        ASSERT_TRUE(store.barrier("step", 20).ok());
        ++done;
      }
      EXPECT_EQ(together.cause(), "SIGHUP");
      mine.push_back(done);
      std::lock_guard lock(mutex);
      saves.insert(mine);
    });
    EXPECT_EQ(saves.size(), 1u) << round;
    bool any = false;
    for (const std::set<int> &one : asked)
      any |= !one.empty();
    EXPECT_EQ(saves.begin()->size() > 1, any) << round;
  }
}

TEST(StopTogether, AloneItStopsAtOnce) {
  StopTogether together(nullptr);
  EXPECT_TRUE(together.next({})->step);
  auto turn = together.next({true, ""});
  EXPECT_TRUE(turn->save && turn->step);
  EXPECT_FALSE(together.next({})->save);
  turn = together.next({true, "SIGINT"});
  EXPECT_TRUE(turn->save && !turn->step);
  EXPECT_EQ(together.cause(), "SIGINT");
}

TEST(Agree, RankZeroTellsAllProblemsOnce) {
  runStores(3, [](Store &store) {
    EXPECT_TRUE(agree(&store, "good", Status()).ok());
    Status mine = Status::error("everybody has this");
    if (store.rank())
      mine.merge(Status::error("no such file"));
    const Status all = agree(&store, "bad", mine);
    EXPECT_TRUE(isAgreed(all));
    EXPECT_EQ(all.str(), store.rank() ? ""
                                      : "everybody has this\n"
                                        "ranks 1,2: no such file");
  });
  const Status alone = Status::error("x");
  EXPECT_EQ(agree(nullptr, "alone", alone).str(), "x");
  EXPECT_FALSE(isAgreed(alone));
}

TEST(CpuShare, CoresAreDividedAmongThoseWhoMayUseThem) {
  using Cores = std::vector<std::vector<int>>;
  EXPECT_EQ(cpuShare(Cores{{0, 1, 2, 3}}, 0), 4);
  // Not bound: all share all.
  EXPECT_EQ(cpuShare(Cores{{0, 1, 2, 3}, {0, 1, 2, 3}}, 1), 2);
  // Bound to cores of their own.
  EXPECT_EQ(cpuShare(Cores{{0, 1, 2}, {3}}, 0), 3);
  EXPECT_EQ(cpuShare(Cores{{0, 1, 2}, {3}}, 1), 1);
  // More processes than cores; three thirds are one.
  EXPECT_EQ(cpuShare(Cores{{0}, {0}, {0}}, 2), 1);
  EXPECT_EQ(cpuShare(Cores{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, 2), 1);
}

TEST(AbortTimer, EndsAProcessThatIsBusy) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        auto listener = StoreListener::open(0);
        auto store =
            openTcpStore({0, 1, {}, 0, "t", 20, 7}, std::move(*listener));
        AbortTimer last(**store, 0.1);
        (*store)->abort(Status::error("rank 3 on host n1 is gone"));
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::ExitedWithCode(1),
      "rank 0 is busy and is ended: rank 3 on host n1 is gone");
}

TEST(AbortTimer, LeavesAProcessThatEnds) {
  runStores(1, [](Store &store) {
    AbortTimer last(store, 60);
    store.abort(Status::error("x"));
  });
}
