// Who keeps what in memory, and who sends it: properties of random states.
#include "runtime/checkpoint/CopyPlan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace merak::runtime::test {
namespace {

struct Case {
  std::vector<CopyItem> items;
  std::vector<int> hostOfRank;
  int hosts = 1, copies = 1;
};

Case randomCase(std::mt19937 &random) {
  auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<>(least, most)(random);
  };
  Case c;
  c.hosts = draw(1, 6);
  c.copies = draw(1, 3);
  for (int host = 0; host < c.hosts; ++host)
    for (int n = draw(1, 3); n > 0; --n)
      c.hostOfRank.push_back(host);
  std::shuffle(c.hostOfRank.begin(), c.hostOfRank.end(), random);
  const int ranks = int(c.hostOfRank.size());
  // Few sets of ranks that hold the same, as in plans.
  std::vector<std::vector<int>> holders;
  for (int n = draw(1, 5); n > 0; --n) {
    std::set<int> chosen;
    for (int k = draw(1, ranks); k > 0; --k)
      chosen.insert(draw(0, ranks - 1));
    holders.emplace_back(chosen.begin(), chosen.end());
  }
  for (int n = draw(1, 30); n > 0; --n)
    c.items.push_back(
        {draw(0, 1000), holders[size_t(draw(0, int(holders.size()) - 1))]});
  return c;
}

std::set<int> hostsOf(const Case &c, const std::vector<int> &ranks) {
  std::set<int> hosts;
  for (int rank : ranks)
    hosts.insert(c.hostOfRank[size_t(rank)]);
  return hosts;
}

// Why a plan is none; empty: it is one.
std::string problem(const Case &c, const std::vector<CopyPart> &parts) {
  const size_t each = size_t(std::min(c.copies + 1, c.hosts));
  std::vector<int> seen(c.items.size(), 0);
  int64_t least = 0, sent = 0;
  for (const CopyPart &part : parts) {
    int64_t bytes = 0;
    std::set<int> hosts;
    const std::vector<int> &holders = c.items[size_t(part.items[0])].ranks;
    for (int item : part.items) {
      ++seen[size_t(item)];
      bytes += c.items[size_t(item)].bytes;
      if (c.items[size_t(item)].ranks != holders)
        return "a part of several ranks' boxes";
    }
    if (bytes != part.bytes)
      return "other bytes";
    for (const CopyKeeper &keeper : part.keepers) {
      if (!hosts.insert(keeper.host).second)
        return "a host keeps it twice";
      if (c.hostOfRank[size_t(keeper.rank)] != keeper.host)
        return "a process of another host writes";
      const bool holds =
          std::count(holders.begin(), holders.end(), keeper.rank) > 0;
      if (keeper.isSent() == holds)
        return "sent to who has it, or not to who has it not";
      if (!keeper.isSent())
        continue;
      sent += bytes;
      if (hostsOf(c, holders).count(keeper.host))
        return "sent to a host that has it";
      // From a process that has it in its file.
      if (std::none_of(part.keepers.begin(), part.keepers.end(),
                       [&](const CopyKeeper &other) {
                         return !other.isSent() && other.rank == keeper.from;
                       }))
        return "sent by who does not keep it";
    }
    if (hosts.size() != each)
      return "too many or too few hosts";
    const size_t own = hostsOf(c, holders).size();
    least += bytes * int64_t(each - std::min(own, each));
  }
  if (std::any_of(seen.begin(), seen.end(), [](int n) { return n != 1; }))
    return "an item is not in exactly one part";
  return sent == least ? "" : "more is sent than must be";
}

// A host that was sent a part keeps at most that part more than any host that
// could have been sent it instead.
bool isBalanced(const Case &c, const std::vector<CopyPart> &parts) {
  std::map<int, int64_t> kept;
  for (int host = 0; host < c.hosts; ++host)
    kept[host] = 0;
  for (const CopyPart &part : parts)
    for (const CopyKeeper &keeper : part.keepers)
      kept[keeper.host] += part.bytes;
  for (int host = 0; host < c.hosts; ++host) {
    bool any = false, fair = false;
    for (const CopyPart &part : parts) {
      std::set<int> keepers;
      bool sentHere = false;
      for (const CopyKeeper &keeper : part.keepers) {
        keepers.insert(keeper.host);
        sentHere |= keeper.host == host && keeper.isSent();
      }
      if (!sentHere)
        continue;
      any = true;
      bool here = true; // the last one that came to this host
      for (const auto &[other, bytes] : kept)
        here &= keepers.count(other) || bytes >= kept[host] - part.bytes;
      fair |= here;
    }
    if (any && !fair)
      return false;
  }
  return true;
}

} // namespace

TEST(CopyPlan, KeepsEverythingOnEnoughHostsAndSendsTheLeast) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Case c = randomCase(random);
    const auto parts = planCopies(c.items, c.hostOfRank, c.copies);
    ASSERT_EQ(problem(c, parts), "") << "case " << i;
    ASSERT_TRUE(isBalanced(c, parts)) << "case " << i;
  }
}

// What a neighbour keeps of each other: state in equal parts on equal hosts.
TEST(CopyPlan, EqualHostsKeepEqualShares) {
  for (int hosts : {2, 3, 4, 8})
    for (int copies : {1, 2}) {
      Case c;
      c.hosts = hosts;
      c.copies = copies;
      for (int rank = 0; rank < 2 * hosts; ++rank) {
        c.hostOfRank.push_back(rank / 2);
        for (int64_t bytes : {100, 20, 3})
          c.items.push_back({bytes, {rank}});
      }
      const auto parts = planCopies(c.items, c.hostOfRank, copies);
      ASSERT_EQ(problem(c, parts), "");
      std::map<int, int64_t> kept, sent, sentByRank;
      for (const CopyPart &part : parts)
        for (const CopyKeeper &keeper : part.keepers) {
          kept[keeper.host] += part.bytes;
          if (keeper.isSent()) {
            sent[c.hostOfRank[size_t(keeper.from)]] += part.bytes;
            sentByRank[keeper.from] += part.bytes;
          }
        }
      const int64_t others = std::min(copies, hosts - 1);
      for (int host = 0; host < hosts; ++host) {
        EXPECT_EQ(kept[host], 246 * (1 + others));
        EXPECT_EQ(sent[host], 246 * others);
      }
      for (int rank = 0; rank < 2 * hosts; ++rank)
        EXPECT_EQ(sentByRank[rank], 123 * others);
    }
}

// What all hosts hold is kept by two of them, in turns, and never sent.
TEST(CopyPlan, ReplicasAreDivided) {
  Case c;
  c.hosts = 8;
  c.copies = 1;
  for (int rank = 0; rank < 8; ++rank)
    c.hostOfRank.push_back(rank);
  for (int i = 0; i < 800; ++i)
    c.items.push_back({10, {0, 1, 2, 3, 4, 5, 6, 7}});
  const auto parts = planCopies(c.items, c.hostOfRank, 1);
  ASSERT_EQ(problem(c, parts), "");
  std::map<int, int64_t> kept;
  for (const CopyPart &part : parts)
    for (const CopyKeeper &keeper : part.keepers)
      kept[keeper.host] += part.bytes;
  for (int host = 0; host < 8; ++host)
    EXPECT_EQ(kept[host], 2000);
  EXPECT_TRUE(transfersOf(parts).empty());
}

TEST(CopyPlan, OneHostSendsNothing) {
  const auto parts = planCopies({{5, {0}}, {7, {0, 1}}}, {0, 0}, 2);
  EXPECT_TRUE(transfersOf(parts).empty());
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].keepers.size(), 1u);
}

// A plan that forgets a host, sends twice or favours one is seen to be none.
TEST(CopyPlan, TheChecksFindWhatIsWrong) {
  Case c;
  c.hosts = 4;
  c.copies = 1;
  for (int rank = 0; rank < 4; ++rank) {
    c.hostOfRank.push_back(rank);
    c.items.push_back({10, {rank}});
  }
  const auto good = planCopies(c.items, c.hostOfRank, 1);
  ASSERT_EQ(problem(c, good), "");
  auto bad = good;
  bad[2].keepers.pop_back();
  EXPECT_EQ(problem(c, bad), "too many or too few hosts");
  bad = good;
  bad.pop_back();
  EXPECT_NE(problem(c, bad), "");
  bad = good; // all to the last host
  for (CopyPart &part : bad)
    for (CopyKeeper &keeper : part.keepers)
      if (keeper.isSent() && c.items[size_t(part.items[0])].ranks[0] != 3)
        keeper.host = keeper.rank = 3;
  EXPECT_FALSE(isBalanced(c, bad));
}

TEST(CopyPlan, FetchesOnceToEachHostFromThoseThatHaveIt) {
  // Host 0 has ranks 0 and 1, which want the same; host 2 has nothing.
  const std::vector<int> hostOfRank{0, 0, 1, 2};
  const auto moves =
      planFetches({10, 10, 10}, {{0, 1}, {0, 1, 2}, {1}, {0, 1, 2}},
                  {{2}, {0, 1}, {}}, hostOfRank);
  const std::vector<CopyTransfer> wanted{
      {0, 2, 0}, {1, 2, 0}, {0, 2, 3}, {1, 2, 3}, {2, 0, 3}};
  EXPECT_EQ(moves, wanted);
  // Two hosts that have it send half each.
  const auto shared = planFetches({5, 5, 5, 5}, {{}, {}, {0, 1, 2, 3}},
                                  {{0, 1, 2, 3}, {0, 1, 2, 3}, {}}, {0, 1, 2});
  EXPECT_EQ(std::count_if(shared.begin(), shared.end(),
                          [](const CopyTransfer &t) { return t.from == 0; }),
            2);
}

} // namespace merak::runtime::test
