// The option --links: texts, units, cluster files, and what is wrong with them.
#include "runtime/launch/LinkOption.h"

#include <gtest/gtest.h>

namespace merak::runtime {
namespace {

TEST(LinkOption, Texts) {
  auto links = parseLinks("5us/200MB/s");
  ASSERT_TRUE(links.ok());
  EXPECT_DOUBLE_EQ(links->intra.latency, 5e-6);
  EXPECT_DOUBLE_EQ(links->intra.bandwidth, 200e6);
  EXPECT_EQ(links->inter, links->intra);
  links = parseLinks("250ns/1.5GB,2ms/1e3kB/s@4");
  ASSERT_TRUE(links.ok());
  EXPECT_EQ(links->perNode, 4);
  EXPECT_DOUBLE_EQ(links->intra.latency, 250e-9);
  EXPECT_DOUBLE_EQ(links->intra.bandwidth, 1.5e9);
  EXPECT_DOUBLE_EQ(links->inter.latency, 2e-3);
  EXPECT_DOUBLE_EQ(links->inter.bandwidth, 1e6);
}

TEST(LinkOption, WrongTexts) {
  for (const char *text :
       {"", "5us", "/", "5us/", "5/200MB/s", "5us/200", "5us/200Mb/s",
        "-5us/200MB/s", "5us/0MB/s", "5us/inf MB", "5us/2GB/s,5us/2GB/s",
        "5us/2GB/s,5us/2GB/s@0", "5us/2GB/s,5us/2GB/s@x", "5us/2GB/s,@2",
        "5us/2GB/s,5us/2GB/s@2 ", "nanus/1GB/s", "nan us/1GB/s"}) {
    auto links = parseLinks(text);
    EXPECT_FALSE(links.ok()) << text;
    EXPECT_EQ(links.status().str().rfind("--links: expected LATENCY/", 0), 0u);
  }
}

TEST(LinkOption, ClusterTextsAreReadByTheTool) {
  std::string seen;
  const ClusterLinks reader = [&](const std::string &json,
                                  const std::string &name) -> Result<Links> {
    seen = name + " = " + json;
    return Links{8, {}, {}, true};
  };
  auto links = linksOf("plan", "{}", reader);
  ASSERT_TRUE(links.ok());
  EXPECT_EQ(links->perNode, 8);
  EXPECT_EQ(seen, "the plan's cluster = {}");
  EXPECT_EQ(linksOf("plan", "", reader).status().str(),
            "--links=plan: the plan names no cluster");
  EXPECT_EQ(linksOf("/nowhere/c.json", "", reader).status().str(),
            "cannot read the cluster file \"/nowhere/c.json\": no such file or "
            "directory");
  EXPECT_EQ(linksOf("plan", "{}", nullptr).status().str(),
            "--links: this build reads no cluster files");
  EXPECT_TRUE(linksOf("1us/1GB/s", "", nullptr).ok());
}

} // namespace
} // namespace merak::runtime
