// Hosts of a launcher, and the commands that are made of them.
#include "runtime/launch/Hosts.h"

#include <gtest/gtest.h>

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

} // namespace
} // namespace merak::runtime::test
