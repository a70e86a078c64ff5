// Agents of one run over TCP: what those that stand by hear, and what the end
// of a connection means.
#include "runtime/comm/rendezvous/AgentHub.h"
#include "runtime/core/SecondsSince.h"

#include <gtest/gtest.h>

#include <functional>
#include <sys/wait.h>
#include <unistd.h>

namespace merak::runtime::test {
namespace {

using End = AgentLink::End;

const std::string kToken(32, 'a'), kRun = "0123456789abcdef";
constexpr double kSilence = 1.5;

std::unique_ptr<AgentHub> lead(double silence = 60) {
  return std::make_unique<AgentHub>(AgentHub::Options{kToken, kRun, silence},
                                    std::move(*StoreListener::open(0)));
}

std::unique_ptr<AgentLink> join(const AgentHub &hub, int port,
                                const std::string &run = "",
                                const std::string &token = kToken) {
  bool final = false;
  auto link = AgentLink::join("127.0.0.1", hub.port(), {token, run, port, 60},
                              5, final);
  EXPECT_TRUE(link.ok()) << link.status().str();
  return link ? std::move(*link) : nullptr;
}

// Listens until it is so, 10 s at most.
bool hears(AgentLink &link, const std::function<bool()> &what) {
  const auto begin = std::chrono::steady_clock::now();
  while (!what() && secondsSince(begin) < 10)
    EXPECT_EQ(link.listen(0.05), End::none);
  return what();
}
End endOf(AgentLink &link) {
  const auto begin = std::chrono::steady_clock::now();
  End end = End::none;
  while (end == End::none && secondsSince(begin) < 10)
    end = link.listen(0.05);
  return end;
}
bool happens(const std::function<bool()> &what) {
  const auto begin = std::chrono::steady_clock::now();
  while (!what() && secondsSince(begin) < 10)
    usleep(10'000);
  return what();
}

TEST(AgentHub, TellsAllWhatTheLeaderKnows) {
  auto hub = lead();
  hub->publish("one");
  auto first = join(*hub, 11);
  EXPECT_TRUE(hears(*first, [&] { return first->state() == "one"; }));
  EXPECT_EQ(first->leader(), hostName());
  auto second = join(*hub, 12, kRun);
  EXPECT_TRUE(hears(*second, [&] { return second->members().size() == 2; }));
  EXPECT_EQ(second->place(), 1u);
  EXPECT_EQ(second->members(),
            (std::vector<AgentMember>{{hostName(), 11}, {hostName(), 12}}));
  EXPECT_EQ(hub->members(), second->members());
  hub->publish("two");
  for (AgentLink *link : {first.get(), second.get()})
    EXPECT_TRUE(hears(*link, [&] { return link->state() == "two"; }));
  EXPECT_EQ(first->place(), 0u);
  first->leave();
  first.reset();
  EXPECT_TRUE(hears(*second, [&] { return second->members().size() == 1; }));
  EXPECT_EQ(second->place(), 0u);
}

TEST(AgentHub, SaysThatTheRunIsOver) {
  auto hub = lead();
  auto link = join(*hub, 11);
  EXPECT_TRUE(happens([&] { return hub->members().size() == 1; }));
  std::thread end([&] { hub->finish(3); });
  EXPECT_EQ(endOf(*link), End::over);
  EXPECT_EQ(link->code(), 3);
  link->leave();
  end.join();
  EXPECT_TRUE(happens([&] { return hub->members().empty(); }));
}

TEST(AgentHub, RefusesAgentsOfAnotherRun) {
  auto hub = lead();
  auto link = join(*hub, 11, "fedcba9876543210");
  EXPECT_EQ(endOf(*link), End::refused);
  EXPECT_EQ(link->why(),
            "the agent on host " + hostName() + " leads another run");
  EXPECT_TRUE(hub->members().empty());
}

TEST(AgentHub, RefusesWhoDoesNotKnowTheSecret) {
  auto hub = lead();
  bool final = false;
  auto link = AgentLink::join("127.0.0.1", hub->port(),
                              {std::string(32, 'b'), "", 11, 60}, 5, final);
  ASSERT_FALSE(link.ok());
  EXPECT_TRUE(final);
  EXPECT_NE(link.status().str().find("know different secrets"),
            std::string::npos);
  EXPECT_TRUE(hub->members().empty());
}

// The leader's process ends: its system says so.
TEST(AgentHub, TellsAProcessThatIsGone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto hub = lead();
    const int port = hub->port();
    (void)!write(ends[1], &port, sizeof port);
    for (;;)
      pause();
  }
  int port = 0;
  ASSERT_EQ(read(ends[0], &port, sizeof port), ssize_t(sizeof port));
  bool final = false;
  auto link =
      AgentLink::join("127.0.0.1", port, {kToken, "", 11, 60}, 5, final);
  ASSERT_TRUE(link.ok());
  EXPECT_TRUE(hears(**link, [&] { return (*link)->members().size() == 1; }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const End end = endOf(**link);
  // Signs that it had not read make it a connection that broke.
  EXPECT_TRUE(end == End::gone || end == End::broken);
  close(ends[0]);
  close(ends[1]);
}

TEST(AgentHub, TellsSilentOnesFromThoseThatAreGone) {
  auto hub = lead(kSilence);
  auto silent = join(*hub, 11);
  auto gone = join(*hub, 12);
  EXPECT_TRUE(happens([&] { return hub->members().size() == 2; }));
  EXPECT_TRUE(hears(*gone, [&] { return gone->members().size() == 2; }));
  gone.reset();
  EXPECT_TRUE(happens([&] { return hub->members().size() == 1; }));
  EXPECT_TRUE(happens([&] { return hub->silent().size() == 1; }));
  EXPECT_EQ(hub->silent(), hub->members());
  // It was only slow.
  EXPECT_TRUE(hears(*silent, [&] { return hub->silent().empty(); }));
  hub->drop(hub->members());
  EXPECT_TRUE(hub->members().empty());
  // So it does not take the leader for gone.
  EXPECT_EQ(endOf(*silent), End::refused);
}

TEST(AgentHub, KnowsAnAgentThatComesAgain) {
  auto hub = lead(kSilence);
  auto old = join(*hub, 11), other = join(*hub, 12);
  EXPECT_TRUE(happens([&] { return hub->members().size() == 2; }));
  auto link = join(*hub, 11, kRun);
  EXPECT_TRUE(hears(*link, [&] { return link->place() == 1u; }));
  EXPECT_EQ(hub->members(),
            (std::vector<AgentMember>{{hostName(), 12}, {hostName(), 11}}));
}

TEST(AgentHub, HearsWhoHasTakenOver) {
  auto hub = lead();
  auto link = join(*hub, 11);
  EXPECT_TRUE(happens([&] { return hub->members().size() == 1; }));
  EXPECT_EQ(hub->successor(), "");
  link->takeOver();
  link.reset();
  EXPECT_TRUE(happens([&] { return !hub->successor().empty(); }));
  EXPECT_EQ(hub->successor(), hostName());
}

} // namespace
} // namespace merak::runtime::test
