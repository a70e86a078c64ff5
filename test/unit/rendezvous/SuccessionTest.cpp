// Who goes on with a run whose agent is lost: order, votes of hosts, and what
// agents tell each other of the run.
#include "runtime/launch/Succession.h"
#include "runtime/launch/AgentState.h"
#include "runtime/launch/StartVote.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <unistd.h>

namespace merak::runtime::test {
namespace {

TEST(Succession, FirstAsksAtOnceIfTheLeaderIsGone) {
  EXPECT_EQ(secondsToTurn(0, true, 5), 0);
  EXPECT_EQ(secondsToTurn(1, true, 5), 15);
  EXPECT_EQ(secondsToTurn(2, true, 5), 30);
}

// A leader that is cut off knows after one silence, and has asked all hosts
// and ended its run after two.
TEST(Succession, WaitsForALeaderThatIsCutOffToEnd) {
  EXPECT_GT(secondsToTurn(0, false, 5), 2 * 5);
  EXPECT_EQ(secondsToTurn(0, false, 5), 15);
  EXPECT_EQ(secondsToTurn(1, false, 5), 30);
}

TEST(Succession, ReadsWhereAgentsAre) {
  EXPECT_EQ(
      *parseAgents("a:1,b.c:29600,[::1]:65535"),
      (std::vector<AgentPlace>{{"a", 1}, {"b.c", 29600}, {"::1", 65535}}));
  EXPECT_EQ(parseAgents("a,b:0,:3,c:65536,d:2x").status().str(),
            "--standby: expected HOST:PORT, found \"a\"\n"
            "--standby: expected HOST:PORT, found \"b:0\"\n"
            "--standby: expected HOST:PORT, found \":3\"\n"
            "--standby: expected HOST:PORT, found \"c:65536\"\n"
            "--standby: expected HOST:PORT, found \"d:2x\"");
}

// However hosts fall apart, and whoever asks them: no two agents may lead.
TEST(MayLead, NoTwoSides) {
  for (size_t hosts = 1; hosts <= 8; ++hosts)
    for (size_t mine = 0; mine <= hosts; ++mine) {
      const size_t others = hosts - mine;
      EXPECT_FALSE(mayLead(mine, hosts, true) && mayLead(others, hosts, false))
          << mine << " of " << hosts;
      EXPECT_FALSE(mayLead(mine, hosts, false) &&
                   mayLead(others, hosts, false));
    }
  EXPECT_TRUE(mayLead(1, 2, true)); // of two hosts one is lost
  EXPECT_FALSE(mayLead(1, 2, false));
  EXPECT_TRUE(mayLead(2, 3, false));
  EXPECT_FALSE(mayLead(0, 0, true));
}

class Votes : public testing::Test {
protected:
  void SetUp() override {
    base_ = testing::TempDir() + "votes" + std::to_string(getpid());
    std::filesystem::create_directories(base_);
  }
  void TearDown() override { std::filesystem::remove_all(base_); }
  std::string grant(int64_t start, const std::string &agent) {
    const std::string word = grantArgument({{id_, start}, agent});
    return grantStart(word.substr(word.find('=') + 1), base_).str();
  }
  std::string base_, id_ = "0123456789abcdef";
};

TEST_F(Votes, AStartIsGrantedToOneAgent) {
  EXPECT_EQ(grant(3, "a"), "");
  EXPECT_EQ(grant(3, "a"), ""); // who asks again
  EXPECT_EQ(grant(3, "b"), "start 3 of the run was granted to the agent on "
                           "host a, not start 3 to that on host b");
  EXPECT_EQ(grant(4, "b"), "");
  EXPECT_EQ(grant(3, "a"), "start 4 of the run was granted to the agent on "
                           "host b, not start 3 to that on host a");
  id_ = "fedcba9876543210"; // another run
  EXPECT_EQ(grant(0, "c"), "");
}

// An agent that was cut off asks when others are silent and when its ranks have
// ended; it is answered when the first that stands by has long been granted the
// start.
TEST_F(Votes, WhoAsksAgainIsNotGrantedALaterStart) {
  int64_t next = 0;
  StartClaim leader;
  EXPECT_TRUE(leader.make(next));
  leader.begin();
  int64_t known = next; // to who stands by
  StartClaim standby;
  EXPECT_TRUE(leader.make(next)); // nobody answers
  EXPECT_TRUE(standby.make(known));
  EXPECT_EQ(grant(standby.number(), "h1"), "");
  standby.begin();
  EXPECT_FALSE(leader.make(next)); // it asks again
  EXPECT_EQ(grant(leader.number(), "h0"),
            "start 1 of the run was granted to the agent on host h1, not start "
            "1 to that on host h0");
  EXPECT_TRUE(standby.make(known)); // which leads, and starts the run again
  EXPECT_EQ(grant(standby.number(), "h1"), "");
}

TEST_F(Votes, RefusesWhatIsNoVote) {
  for (const char *text :
       {"", "x", "0123456789abcdef", "0123456789abcdef:1", "short:1:a",
        "0123456789abcdeX:1:a", "0123456789abcdef:-1:a",
        "0123456789abcdef:1:", "0123456789abcdef:1x:a",
        "0123456789abcdef:1:a b", "../../../../../xy:1:a"})
    EXPECT_EQ(grantStart(text, base_).str(),
              "--grant: expected ID:NUMBER:AGENT, found \"" +
                  std::string(text) + "\"");
  EXPECT_TRUE(std::filesystem::is_empty(base_));
}

AgentState someState() {
  AgentState state;
  state.task.run.arguments = {"--data=\"a b\"", "--threads=1"};
  state.task.run.plan = "out/x.plan";
  state.task.run.source = {"a", "b", "c", "d"};
  state.task.run.steps = 77;
  state.task.run.copies = true;
  state.task.options = {.restarts = 9, .launcher = "l {hosts}", .hosts = "a:2"};
  state.task.folder = "/x";
  state.task.environment = {{"MERAK_X", "1=2"}};
  state.task.digest = "00";
  AgentSituation &now = state.situation;
  now.leader = "a";
  now.id = "0123456789abcdef";
  now.next = 4;
  now.first = {"ckpt", "r", 5};
  now.before = AgentPosition{"ckpt", "q", 3};
  now.last = 82;
  now.lost = {"b", "c"};
  now.plan = "y.plan";
  now.restarts = 2;
  now.furthest = 40;
  now.inVain = 1;
  now.rates = {1, 2.5};
  now.leftOut = {{1, 1, "a", 2.5, 0.25, 0}};
  now.restart = "{}";
  now.saver = "merak-run x";
  return state;
}

TEST(AgentState, ArrivesAsItWas) {
  AgentState state = someState();
  const std::string text = encodeState(state);
  auto read = decodeState(text);
  ASSERT_TRUE(read.ok()) << read.status().str();
  EXPECT_EQ(encodeState(*read), text);
  EXPECT_EQ(read->situation.before, state.situation.before);
  EXPECT_EQ(read->situation.lost, state.situation.lost);
  EXPECT_EQ(read->situation.leftOut, state.situation.leftOut);
  EXPECT_EQ(read->task.run.source.cluster, "d");
  EXPECT_EQ(read->task.options.hosts, "a:2");
  EXPECT_EQ(read->task.environment, state.task.environment);
  state.situation.before.reset();
  read = decodeState(encodeState(state));
  EXPECT_FALSE(read->situation.before);
}

TEST(AgentState, RefusesWhatIsNone) {
  const std::string text = encodeState(someState());
  for (const std::string &other :
       {std::string(), std::string("[]"), text.substr(1)})
    EXPECT_EQ(decodeState(other).status().str(),
              "the agent that leads is of another version of merak-run");
  for (const auto &[what, with] :
       {std::pair("\"lost\"", "\"los\""),
        std::pair("\"next\":4", "\"next\":\"\""),
        std::pair("\"rates\":[1.0,2.5]", "\"rates\":[[]]"),
        std::pair("[\"ckpt\",\"q\",3]", "[\"ckpt\"]")}) {
    std::string damaged = text;
    ASSERT_NE(damaged.find(what), std::string::npos) << what << " " << text;
    damaged.replace(damaged.find(what), std::string(what).size(), with);
    EXPECT_TRUE(decodeState(damaged).status().str().starts_with(
        "the agent that leads sent what is no state of a run: "))
        << what;
  }
}

} // namespace
} // namespace merak::runtime::test
