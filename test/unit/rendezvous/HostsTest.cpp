// Hosts of a launcher, and the commands that are made of them.
#include "runtime/launch/Hosts.h"
#include "runtime/launch/HostLooks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace merak::runtime::test {
namespace {

TEST(Hosts, AreRead) {
  EXPECT_EQ(*parseHosts("a:4,b,c.d:1"),
            (std::vector<Host>{{"a", 4}, {"b", 1}, {"c.d", 1}}));
  EXPECT_TRUE(parseHosts("")->empty());
  EXPECT_EQ(parseHosts("a:0,b:x,a,:2,,c:2x").status().str(),
            "--hosts: expected a number of ranks behind \"a:\", found \"0\"\n"
            "--hosts: expected a number of ranks behind \"b:\", found \"x\"\n"
            "--hosts: \"a\" is there twice\n"
            "--hosts: expected HOST:RANKS, found \":2\"\n"
            "--hosts: expected HOST:RANKS, found \"\"\n"
            "--hosts: expected a number of ranks behind \"c:\", found \"2x\"");
}

TEST(Hosts, HavePlacesInTheirOrder) {
  const std::vector<Host> hosts = *parseHosts("a:2,b:3,c:1");
  EXPECT_EQ(slotsOf(hosts), 6);
  EXPECT_EQ(placesOf(hosts, 6), "a:2,b:3,c:1");
  EXPECT_EQ(placesOf(hosts, 3), "a:2,b:1");
  EXPECT_EQ(placesOf(without(hosts, {"a"}), 4), "b:3,c:1");
  EXPECT_EQ(slotsOf(without(hosts, {"a", "b", "c"})), 0);
}

TEST(Hosts, CommandsAreThoseOfAShell) {
  EXPECT_EQ(launch("srun -n {ranks} -w '{hosts}'", 3, "a:2,b:1",
                   {"merak-run", "my plan", "it's"}),
            (std::vector<std::string>{
                "/bin/sh", "-c",
                "exec srun -n 3 -w 'a:2,b:1' 'merak-run' 'my plan' "
                "'it'\\''s'"}));
}

TEST(Hosts, AnswerOrAreLost) {
  const std::string launcher =
      "/bin/sh -c 'case {hosts} in b:1) exit 1 ;; esac' sh";
  EXPECT_EQ(HostLooks(launcher, {"a", "b", "c"}).wait(),
            (std::set<std::string>{"a", "c"}));
  EXPECT_FALSE(HostLooks().isWaiting());
}

// One answers, later the other one; then the first is lost again.
TEST(Hosts, ThatAreLostAreAskedAgain) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       ("hosts-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string launcher =
      "/bin/sh -c 'test -e " + folder.string() + "/{hosts}' sh";
  LostHosts lost(launcher, {"a", "b"}, 0);
  const auto next = [&] {
    for (int i = 0; i < 1000; ++i) {
      if (lost.look())
        return lost.lost();
      usleep(10'000);
    }
    return lost.lost();
  };
  const auto there = [&](const char *name) {
    std::ofstream(folder / (std::string(name) + ":1"));
  };
  EXPECT_EQ(lost.lost(), (std::set<std::string>{"a", "b"}));
  there("a");
  EXPECT_EQ(next(), (std::set<std::string>{"b"}));
  there("b");
  EXPECT_EQ(next(), (std::set<std::string>{}));
  std::filesystem::remove(folder / "a:1");
  EXPECT_EQ(next(), (std::set<std::string>{"a"}));
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace merak::runtime::test
