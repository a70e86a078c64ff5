// Processes that meet over TCP: values, collections, deaths.
#include "test/unit/rendezvous/StoreTesting.h"

#include <csignal>
#include <latch>
#include <mutex>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

TEST(Store, ValuesCollectionsNumbers) {
  runStores(5, [](Store &store) {
    const std::string me = std::to_string(store.rank());
    // A value may be asked for before it is there.
    if (store.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ASSERT_TRUE(store.put("id", std::string(100000, 'x')).ok());
    }
    auto id = store.get("id", 20);
    ASSERT_TRUE(id.ok()) << id.status().str();
    EXPECT_EQ(id->size(), 100000u);
    for (int round = 0; round < 50; ++round) {
      auto all =
          store.gather("same name", me + "." + std::to_string(round), 20);
      ASSERT_TRUE(all.ok()) << all.status().str();
      ASSERT_EQ(all->size(), 5u);
      for (int rank = 0; rank < 5; ++rank)
        EXPECT_EQ((*all)[rank],
                  std::to_string(rank) + "." + std::to_string(round));
    }
    // Keys have one number each, whoever asks first.
    auto own = store.number("own " + me), shared = store.number("shared");
    ASSERT_TRUE(own.ok() && shared.ok());
    auto numbers = store.gather(
        "numbers", std::to_string(*own) + "," + std::to_string(*shared), 20);
    std::set<std::string> owns, shareds;
    for (const std::string &text : *numbers) {
      owns.insert(text.substr(0, text.find(',')));
      shareds.insert(text.substr(text.find(',') + 1));
    }
    EXPECT_EQ(owns.size(), 5u);
    EXPECT_EQ(shareds.size(), 1u);
    EXPECT_FALSE(owns.count(*shareds.begin()));
  });
}

// As many takers as values: each value goes to one.
TEST(Store, TakenValuesAreGone) {
  runStores(4, [](Store &store) {
    if (store.rank() == 0) {
      for (int i = 1; i < 4; ++i) {
        ASSERT_TRUE(store.put("work", std::to_string(i)).ok());
        EXPECT_TRUE(store.take("taken", 20).ok());
      }
      EXPECT_EQ(store.get("work", 0.01).status().str(),
                "no rank has put \"work\" in 0.01 seconds");
    } else {
      EXPECT_TRUE(store.take("work", 20).ok());
      EXPECT_TRUE(store.put("taken", "").ok());
    }
  });
}

TEST(Store, ABarrierNamesWhoIsMissing) {
  runStores(4, [](Store &store) {
    if (store.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT_TRUE(store.contribute("save", "").ok());
      return;
    }
    Status status = store.barrier("save", 0.05);
    EXPECT_EQ(status.str(), "rank 3 did not come to \"save\" in 0.05 seconds");
  });
}

TEST(Store, NoticesReachAllOthers) {
  runStores(3, [](Store &store) {
    std::mutex mutex;
    std::vector<std::string> heard;
    store.listen(
        [&](int from, const std::string &topic, const std::string &text) {
          std::lock_guard lock(mutex);
          heard.push_back(std::to_string(from) + " " + topic + " " + text);
        });
    EXPECT_TRUE(store.barrier("listening", 20).ok());
    if (store.rank() == 2) {
      EXPECT_TRUE(store.notify("pause", "now").ok());
    }
    // What was sent before the barrier has arrived after it.
    EXPECT_TRUE(store.barrier("sent", 20).ok());
    store.listen(nullptr);
    EXPECT_EQ(heard.size(), store.rank() == 2 ? 0u : 1u);
    if (store.rank() != 2) {
      EXPECT_EQ(heard.at(0), "2 pause now");
    }
  });
}

TEST(Store, AnAbortFailsPendingCallsOnAllRanks) {
  // Opening one's store fails, too, when another rank has stopped the run; so
  // does a barrier of the store that not all ranks have left.
  std::latch open(4);
  runStores(4, [&](Store &store) {
    open.arrive_and_wait();
    if (store.rank() == 2) {
      Status reason = Status::error("the disk is full");
      reason.merge(Status::error("second line"));
      store.abort(reason);
      store.abort(Status::error("too late"));
    }
    auto never = store.get("never", 20);
    EXPECT_EQ(never.status().str(), "the disk is full\nsecond line");
    EXPECT_EQ(store.abortReason().str(), "the disk is full\nsecond line");
    EXPECT_EQ(store.abortedBy(), 2);
    EXPECT_TRUE(store.aborted());
    EXPECT_FALSE(store.put("x", "y").ok());
  });
}

TEST(Store, OtherSizesAndStrangersAreRefused) {
  auto listener = StoreListener::open(0);
  ASSERT_TRUE(listener.ok());
  const int port = (*listener)->port();
  TcpStoreOptions options{0, 3, {"127.0.0.1"}, port, "run 7", 20, 7};
  Status first;
  std::thread server([&] {
    auto store = openTcpStore(options, std::move(*listener));
    first = store.status();
  });
  TcpStoreOptions other = options;
  other.rank = 1;
  other.token = "run 8";
  EXPECT_EQ(openTcpStore(other).status().str(),
            "rank 1 on host " + hostName() +
                " and what listens at 127.0.0.1 port " + std::to_string(port) +
                " know different secrets: another run is there, or the ranks "
                "were not given one MERAK_TOKEN");
  other.token = options.token;
  other.size = 4;
  EXPECT_EQ(openTcpStore(other).status().str(),
            "rank 1 was started as one of 4 ranks, rank 0 as one of 3");
  server.join();
  // Rank 0 need not wait for a rank that will not come.
  EXPECT_EQ(first.str(),
            "rank 1 was started as one of 4 ranks, rank 0 as one of 3");
}

TEST(Store, NobodyThere) {
  auto listener = StoreListener::open(0); // a port that is taken but mute
  TcpStoreOptions options{1,   2, {"127.0.0.1"}, (*listener)->port(), "t",
                          0.3, 7};
  EXPECT_EQ(openTcpStore(options).status().str(), "rank 0 does not answer");
  listener->reset();
  EXPECT_NE(openTcpStore(options).status().str().find(
                "cannot reach rank 0 at 127.0.0.1 port"),
            std::string::npos);
}

namespace {

// A child process as rank 1 of two: enters, then waits for ever.
pid_t startChild(int port) {
  const pid_t child = fork();
  if (child)
    return child;
  auto store = openTcpStore({1, 2, {"127.0.0.1"}, port, "t", 20, 1.5});
  if (!store.ok())
    _exit(3);
  while (true)
    pause();
}

} // namespace

TEST(Store, AKilledProcessIsNamed) {
  for (const int number : {SIGKILL, SIGSTOP}) {
    auto listener = StoreListener::open(0);
    const int port = (*listener)->port();
    const pid_t child = startChild(port);
    auto store =
        openTcpStore({0, 2, {}, 0, "t", 20, 1.5}, std::move(*listener));
    ASSERT_TRUE(store.ok()) << store.status().str();
    kill(child, number);
    // Far less than the time asked for.
    EXPECT_FALSE((*store)->get("never", 300).ok());
    const std::string expected =
        "rank 1 on host " + hostName() +
        (number == SIGKILL ? " is gone: its connection closed without a word"
                           : " has not answered for 1.5 seconds");
    EXPECT_EQ((*store)->abortReason().str(), expected);
    EXPECT_EQ((*store)->abortedBy(), 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST(Store, AKilledRankZeroIsNamed) {
  int ports[2];
  ASSERT_EQ(pipe(ports), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto listener = StoreListener::open(0);
    const int port = (*listener)->port();
    (void)!write(ports[1], &port, sizeof(port));
    auto store = openTcpStore({0, 2, {}, 0, "t", 20, 7}, std::move(*listener));
    while (true)
      pause();
  }
  int port = 0;
  ASSERT_EQ(read(ports[0], &port, sizeof(port)), ssize_t(sizeof(port)));
  auto store = openTcpStore({1, 2, {"127.0.0.1"}, port, "t", 20, 7});
  ASSERT_TRUE(store.ok()) << store.status().str();
  kill(child, SIGKILL);
  EXPECT_EQ((*store)->get("never", 300).status().str(),
            "rank 0 on host " + hostName() +
                " is gone: its connection closed without a word");
  waitpid(child, nullptr, 0);
  close(ports[0]);
  close(ports[1]);
}
