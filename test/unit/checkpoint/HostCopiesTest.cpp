// Copies in folders that stand for the memory of hosts: each rank is a thread
// that stands for a process of its own.
#include "runtime/checkpoint/CopyStart.h"

#include "runtime/checkpoint/Gather.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "test/unit/checkpoint/Layouts.h"
#include "test/unit/rendezvous/StoreTesting.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

namespace merak::runtime::test {
namespace {

namespace fs = std::filesystem;

constexpr const char *kId = "0123456789abcdef";

class ThreadWorld : public World {
public:
  ThreadWorld(Store &store, InprocWorld &threads)
      : store_(store), threads_(threads), ranks_{store.rank()} {}
  int size() const override { return store_.size(); }
  const std::vector<int> &ranks() const override { return ranks_; }
  Result<std::unique_ptr<Communicator>> communicator(int rank,
                                                     Backend &) override {
    return threads_.communicator(rank);
  }
  void abort(const Status &reason) override { store_.abort(reason); }
  const std::atomic<bool> &aborted() const override { return store_.aborted(); }
  Status abortReason() const override { return store_.abortReason(); }
  Store *store() override { return &store_; }

private:
  Store &store_;
  InprocWorld &threads_;
  std::vector<int> ranks_;
};

// A run's ranks on hosts, start after start.
class Memories {
public:
  Memories() : base(temporaryFolder()) {}

  std::string host(int number) const {
    return base + "/h" + std::to_string(number);
  }
  std::string part(int number, int64_t step, int part) const {
    return copiesPath(kId, host(number)) + "/" + generationName(step) + "/" +
           partName(part);
  }
  void lose(int number) { fs::remove_all(host(number)); }
  bool has(int number, int64_t step) const {
    return fs::exists(copiesPath(kId, host(number)) + "/" +
                      generationName(step) + "/index.json");
  }

  struct Process {
    CopyStart &start;
    HostCopies &copies;
    ThreadWorld &world;
    RankMemory &memory;
    Store &store;
    // A step, and the copy that follows it.
    void step(int64_t number) {
      begin(number);
      copies.wait();
    }
    void begin(int64_t number) {
      EXPECT_TRUE(copies
                      .after(number,
                             [&]() -> Result<CheckpointState> {
                               CheckpointState state{number, 10 * number};
                               state.seed = 7;
                               return state;
                             })
                      .ok());
    }
  };
  struct Outcome {
    std::string load;
    CheckpointState state;
    std::vector<std::string> notes, news;
    uint64_t fetched = 0;
  };

  // Starts the run once more with a plan's ranks on these hosts, loads what it
  // goes on from, then `body` on each. What rank 0 knows.
  Outcome run(Holder &h, const std::vector<int> &hostOfRank,
              const std::function<void(Process &)> &body = nullptr,
              int64_t diskStep = -1, int copies = 1) {
    for (int number : hostOfRank)
      fs::create_directories(host(number));
    const CopyRun run{kId, starts++};
    const int ranks = int(hostOfRank.size());
    InprocWorld threads(
        ranks, latency > 0 ? std::make_unique<LinkEmulation>(
                                 Links{1, {latency, 0}, {latency, 0}}, ranks)
                           : nullptr);
    Outcome outcome;
    std::mutex mutex;
    runStores(int(hostOfRank.size()), [&](Store &store) {
      ThreadWorld world(store, threads);
      const size_t rank = size_t(store.rank());
      RankMemory &memory = h.ranks[rank];
      auto start =
          CopyStart::open(run, &store, diskStep, host(hostOfRank[rank]));
      ASSERT_TRUE(start.ok()) << start.status().str();
      auto fetched = (*start)->fetch({&memory, 1}, &world);
      ASSERT_TRUE(fetched.ok()) << fetched.status().str();
      CheckpointState state;
      if (const std::string &load = (*start)->load(); !load.empty()) {
        TensorStore tensors;
        const Status opened =
            openCheckpoint(h.plan, load, tensors, state, {&memory, 1});
        ASSERT_TRUE(opened.ok()) << opened.str();
        ASSERT_TRUE(loadTensors(h.plan, {&memory, 1}, tensors).ok());
      }
      auto kept =
          HostCopies::open(h.plan, {&memory, 1}, (*start)->folder(),
                           (*start)->hosts(), {copies, 1, 2, false}, &world);
      ASSERT_TRUE(kept.ok()) << kept.status().str();
      (*kept)->wait(); // for its memory
      Process process{**start, **kept, world, memory, store};
      if (body)
        body(process);
      (*kept)->wait();
      if (rank == 0) {
        std::lock_guard lock(mutex);
        outcome = {(*start)->load(), state, (*start)->notes(), (*kept)->news(),
                   *fetched};
      }
    });
    return outcome;
  }

  void pass(const std::vector<int> &hosts, int targets) {
    InprocWorld threads(int(hosts.size()));
    runStores(int(hosts.size()), [&](Store &store) {
      ThreadWorld world(store, threads);
      auto passed = CopyStart::pass({kId, starts}, targets, world, -1,
                                    host(hosts[size_t(store.rank())]));
      ASSERT_TRUE(passed.ok()) << passed.status().str();
      EXPECT_GT(*passed, 0u);
    });
  }

  std::string base;
  int64_t starts = 0;
  double latency = 0; // seconds, of links
};

void flip(const std::string &path) {
  ASSERT_TRUE(fs::exists(path)) << path;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = char(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
}

// Kind 1 on four hosts, whose state is fill(base) at step 2.
void trained(Memories &memories, Holder &source, float base = 100,
             int copies = 1) {
  source.fill(base);
  memories.run(
      source, {0, 1, 2, 3},
      [](Memories::Process &process) {
        process.step(1);
        process.step(2);
      },
      -1, copies);
}

void expectSame(Holder &target, Holder &source) {
  for (const char *name : kNames)
    EXPECT_EQ(target.gather(name), source.gather(name)) << name;
}

} // namespace

TEST(HostCopies, AnyHostMayBeLost) {
  for (int lost = 0; lost < 4; ++lost) {
    Memories memories;
    auto source = holder(1);
    trained(memories, *source);
    for (int host = 0; host < 4; ++host) {
      EXPECT_TRUE(memories.has(host, 2));
      EXPECT_FALSE(memories.has(host, 1)); // one whole one is kept
    }
    memories.lose(lost);
    // On the other hosts, under another plan, of which one host is new.
    auto target = holder(3);
    target->fill(5);
    std::vector<int> places;
    for (int host = 0; host < 4; ++host)
      if (host != lost)
        places.push_back(host);
    places.push_back(7);
    const Memories::Outcome outcome = memories.run(*target, places);
    EXPECT_TRUE(outcome.load.ends_with("/step-2")) << outcome.load;
    EXPECT_EQ(outcome.state.step, 2);
    EXPECT_EQ(outcome.state.samples, 20);
    EXPECT_EQ(outcome.state.seed, 7);
    EXPECT_GT(outcome.fetched, 0u);
    expectSame(*target, *source);
  }
}

TEST(HostCopies, ItGoesOnAndOn) {
  Memories memories;
  auto source = holder(1);
  trained(memories, *source);
  for (int round = 0; round < 3; ++round) {
    memories.lose(round);
    auto target = holder(round % 2 ? 1 : 3);
    const Memories::Outcome outcome =
        memories.run(*target, {0, 1, 2, 3}, [&](Memories::Process &process) {
          process.store.barrier("loaded", 20).ok();
          process.step(3 + round);
        });
    EXPECT_EQ(outcome.state.step, 2 + round);
    EXPECT_TRUE(outcome.news.empty()) << outcome.news.front();
    expectSame(*target, *source);
  }
}

// With two hosts gone something is on neither of the others; what, it says.
TEST(HostCopies, TooManyHostsAreLost) {
  Memories memories;
  auto source = holder(1);
  trained(memories, *source);
  memories.lose(0);
  memories.lose(1);
  memories.lose(2);
  auto target = holder(0);
  const Memories::Outcome outcome = memories.run(*target, {3});
  EXPECT_EQ(outcome.load, "");
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_NE(outcome.notes[0].find("copies of step 2 are not whole"),
            std::string::npos)
      << outcome.notes[0];
  EXPECT_NE(outcome.notes[0].find("on no host"), std::string::npos);
  EXPECT_NE(outcome.notes[0].find("\"w"), std::string::npos)
      << outcome.notes[0];
  // From then on it is of no use, even if they come back.
  EXPECT_FALSE(memories.has(3, 2));
}

// Two of the hosts that are left have no rank under the next plan.
TEST(HostCopies, HostsWithoutARankPassOnWhatTheyHave) {
  for (const bool passes : {false, true}) {
    Memories memories;
    auto source = holder(1);
    trained(memories, *source);
    memories.lose(2);
    if (passes)
      memories.pass({3, 0, 1}, 1);
    auto target = holder(0);
    const Memories::Outcome outcome = memories.run(*target, {3});
    EXPECT_EQ(outcome.state.step, passes ? 2 : 0);
    if (passes)
      expectSame(*target, *source);
  }
}

TEST(HostCopies, MoreCopiesBearMoreLosses) {
  for (int copies : {1, 2}) {
    Memories memories;
    auto source = holder(1);
    trained(memories, *source, 100, copies);
    memories.lose(0);
    memories.lose(2);
    auto target = holder(3);
    const Memories::Outcome outcome = memories.run(*target, {1, 3, 1, 3});
    EXPECT_EQ(outcome.state.step, copies == 2 ? 2 : 0);
    if (copies == 2)
      expectSame(*target, *source);
  }
}

// What a run leaves in its hosts' memory becomes a checkpoint as any other.
TEST(HostCopies, PartsOfHostsAreGathered) {
  Memories memories;
  auto source = holder(1);
  trained(memories, *source);
  std::vector<std::string> folders;
  for (int host : {0, 1, 3})
    folders.push_back(copiesPath(kId, memories.host(host)));
  auto whole = gatherCheckpoint(folders, memories.base + "/whole");
  ASSERT_TRUE(whole.ok()) << whole.status().str();
  CheckpointState state;
  auto target = holder(2);
  ASSERT_TRUE(load(*target, memories.base + "/whole", state).ok());
  EXPECT_EQ(state.step, 2);
  expectSame(*target, *source);
}

TEST(HostCopies, DamagedOnesAreNotTaken) {
  Memories memories;
  auto source = holder(1);
  trained(memories, *source);
  // One of two copies of a part: the other is taken.
  int part = 0;
  while (!fs::exists(memories.part(0, 2, part)))
    ++part;
  flip(memories.part(0, 2, part));
  auto target = holder(1);
  Memories::Outcome outcome = memories.run(*target, {0, 1, 2, 3});
  EXPECT_EQ(outcome.state.step, 2);
  EXPECT_GT(outcome.fetched, 0u);
  expectSame(*target, *source);
  // Both: none.
  Memories others;
  trained(others, *source);
  for (int host = 0; host < 4; ++host)
    if (fs::exists(others.part(host, 2, part)))
      flip(others.part(host, 2, part));
  outcome = others.run(*target, {0, 1, 2, 3});
  EXPECT_EQ(outcome.load, "");
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_NE(outcome.notes[0].find("1 part of"), std::string::npos);
  EXPECT_NE(outcome.notes[0].find("undamaged"), std::string::npos);
}

TEST(HostCopies, TheNewerOfMemoryAndDisk) {
  for (int64_t disk : {1, 2, 3}) {
    Memories memories;
    auto source = holder(1);
    trained(memories, *source);
    auto target = holder(1);
    EXPECT_EQ(memories.run(*target, {0, 1, 2, 3}, nullptr, disk).load.empty(),
              disk == 3);
  }
}

// A host is away while the others go on, and comes back with what it had.
TEST(HostCopies, AHostThatComesBackIsBehind) {
  Memories memories;
  auto source = holder(1);
  trained(memories, *source);
  auto target = holder(1);
  fs::rename(memories.host(3), memories.base + "/away");
  memories.run(*target, {0, 1, 2, 2}, nullptr, 9); // from a checkpoint
  fs::rename(memories.base + "/away", memories.host(3));
  EXPECT_TRUE(memories.has(3, 2));
  EXPECT_EQ(memories.run(*target, {0, 1, 2, 3}).load, "");
  EXPECT_FALSE(memories.has(3, 2));
}

TEST(HostCopies, OfAnotherRunNothingIsTaken) {
  Memories memories;
  auto source = holder(1);
  trained(memories, *source);
  for (int host = 0; host < 4; ++host) { // the folder's name alone is ours
    const std::string path =
        copiesPath(kId, memories.host(host)) + "/step-2/index.json";
    auto manifest = readManifest(path);
    ASSERT_TRUE(manifest.ok());
    manifest->state.run = "ffffffff00000000";
    std::ofstream(path) << manifestText(*manifest);
  }
  auto target = holder(1);
  EXPECT_EQ(memories.run(*target, {0, 1, 2, 3}).load, "");
}

TEST(HostCopies, WhatIsNotFiniteIsNotKept) {
  Memories memories;
  auto source = holder(1);
  source->fill(1);
  const Memories::Outcome outcome =
      memories.run(*source, {0, 1, 2, 3}, [](Memories::Process &process) {
        process.step(1);
        auto *values =
            static_cast<float *>(process.memory.program->bufferData(0));
        const float before = values[0];
        if (process.memory.program->rank() % 2 == 0) // and its replica
          values[0] = NAN;
        process.step(2);
        values[0] = before;
        process.step(3);
      });
  ASSERT_EQ(outcome.news.size(), 1u);
  EXPECT_NE(outcome.news[0].find("\"w\" holds values that are not finite"),
            std::string::npos)
      << outcome.news[0];
  EXPECT_TRUE(memories.has(0, 3));
}

// A copy that is still on its way is not waited for: the next is left out, by
// all processes.
TEST(HostCopies, StepsDoNotWaitForLinks) {
  Memories memories;
  memories.latency = 0.3;
  auto source = holder(1);
  source->fill(1);
  std::atomic<double> longest{0};
  const Memories::Outcome outcome =
      memories.run(*source, {0, 1, 2, 3}, [&](Memories::Process &process) {
        const auto begin = std::chrono::steady_clock::now();
        process.begin(1);
        process.begin(2);
        process.begin(3);
        const std::chrono::duration<double> taken =
            std::chrono::steady_clock::now() - begin;
        if (process.store.rank() == 0)
          longest = taken.count();
        process.copies.wait();
        EXPECT_TRUE(process.copies.summary().ends_with(" 2 skipped"))
            << process.copies.summary();
      });
  EXPECT_LT(longest, 0.3);
  ASSERT_EQ(outcome.news.size(), 1u);
  EXPECT_NE(outcome.news[0].find("step 2: the copy before is still on its way"),
            std::string::npos);
  EXPECT_TRUE(memories.has(0, 1));
  EXPECT_FALSE(memories.has(0, 2));
}

// One process sees its copy done before the others do.
TEST(HostCopies, AllBeginOneOrNoneDoes) {
  Memories memories;
  memories.latency = 0.1;
  auto source = holder(1);
  source->fill(1);
  memories.run(*source, {0, 1, 2, 3}, [&](Memories::Process &process) {
    process.begin(1);
    if (process.store.rank() == 1)
      process.copies.wait();
    process.begin(2);
    process.copies.wait();
    if (process.store.rank() == 1)
      EXPECT_TRUE(memories.has(1, 1));
    process.store.barrier("looked", 20).ok();
    process.step(3);
  });
  for (int host = 0; host < 4; ++host)
    EXPECT_TRUE(memories.has(host, 3));
}

// Ranks that should hold the same and do not are told, and not kept.
TEST(HostCopies, ReplicasThatDiffer) {
  Memories memories;
  auto source = holder(1);
  source->fill(1);
  const Memories::Outcome outcome =
      memories.run(*source, {0, 1, 2, 3}, [](Memories::Process &process) {
        if (process.memory.program->rank() == 2)
          *static_cast<float *>(process.memory.program->bufferData(0)) += 1;
        process.step(1);
      });
  ASSERT_EQ(outcome.news.size(), 1u);
  EXPECT_NE(outcome.news[0].find("have different copies of \"w\""),
            std::string::npos)
      << outcome.news[0];
  EXPECT_FALSE(memories.has(0, 1));
}

TEST(CopyFolder, IsOfThisUserAlone) {
  const std::string base = temporaryFolder();
  const std::string path = copiesPath(kId, base);
  auto refused = [&](const std::string &why) {
    auto folder = CopyFolder::open({kId, 0}, base);
    EXPECT_NE(folder.status().str().find(why), std::string::npos)
        << folder.status().str();
  };
  fs::create_directories(path);
  fs::permissions(path, fs::perms(0755));
  refused("expected owner 0 and mode 700, found 0 and 755");
  fs::remove(path);
  fs::create_directories(base + "/elsewhere");
  fs::create_directory_symlink(base + "/elsewhere", path);
  refused("is no folder of copies");
  fs::remove(path);
  std::ofstream(path) << "x";
  refused("is no folder of copies");
  fs::remove(path);
  auto folder = CopyFolder::open({kId, 0}, base);
  ASSERT_TRUE(folder.ok());
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_NE(checkCopiesBase(base + "/none").str().find("is no folder"),
            std::string::npos);
}

TEST(CopyFolder, RemovesWhatNobodyUses) {
  const std::string base = temporaryFolder();
  const std::string old = "merak-aaaaaaaaaaaaaaaa",
                    used = "merak-bbbbbbbbbbbbbbbb",
                    fresh = "merak-cccccccccccccccc", other = "merak-notes";
  std::unique_ptr<CopyFolder> holder;
  for (const std::string &name : {old, used, fresh, other}) {
    fs::create_directories(base + "/" + name + "/step-1");
    fs::permissions(base + "/" + name, fs::perms(0700));
    if (name == used)
      holder = std::move(*CopyFolder::open({"bbbbbbbbbbbbbbbb", 0}, base));
    if (name != fresh)
      fs::last_write_time(base + "/" + name, fs::file_time_type::clock::now() -
                                                 std::chrono::hours(2));
  }
  auto folder = CopyFolder::open({kId, 0}, base);
  ASSERT_TRUE(folder.ok());
  ASSERT_TRUE((*folder)->removeLeftovers().ok());
  EXPECT_FALSE(fs::exists(base + "/" + old));
  for (const std::string &name : {used, fresh, other})
    EXPECT_TRUE(fs::exists(base + "/" + name + "/step-1")) << name;
}

} // namespace merak::runtime::test
