// The answer to --frontier: what is kept, how a point is named, the file.
#include "passes/Planning/PlanFrontier.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

FrontierPoint point(int64_t bytes, double seconds) {
  FrontierPoint point;
  point.bytes = bytes;
  point.seconds = seconds;
  point.expectedBytes = double(bytes) + 8;
  point.expectedSeconds = seconds * 1.25;
  point.decisions = {"pp=1 dp=2 tp=1, 1 microbatch of 4 samples", "1f1b"};
  point.places = {"tp splits dimension 1 of 'w'"};
  point.strategy.mesh = {{"pp", 1}, {"dp", 2}, {"tp", 1}};
  point.strategy.microbatch = bytes;
  return point;
}

PlanFrontier example() {
  PlanFrontier frontier;
  frontier.model = "a.onnx";
  frontier.machine = "two";
  frontier.globalBatch = 8;
  frontier.memoryBytes = 1000;
  frontier.question = "00ff";
  frontier.leftOut = {{"zero", "off by default"}};
  FrontierCurve two, four, none;
  two.devices = 2;
  two.priced = 7;
  two.simulated = 4;
  two.points = {point(500, 1), point(300, 3), point(400, 3), point(600, 2)};
  four.devices = 4;
  four.points = {point(300, 0.5), point(200, 4)};
  none.devices = 3;
  none.problem = "no plan";
  frontier.curves = {four, none, two};
  frontier.reduce();
  return frontier;
}

TEST(PlanFrontier, KeepsWhatNothingBeats) {
  const PlanFrontier frontier = example();
  ASSERT_EQ(frontier.curves.size(), 3u);
  EXPECT_EQ(frontier.curves[0].devices, 2);
  EXPECT_EQ(frontier.curves[2].devices, 4);
  EXPECT_EQ(frontier.points(), 4u);
  std::vector<std::pair<int64_t, int64_t>> numbered;
  for (const FrontierCurve &curve : frontier.curves)
    for (const FrontierPoint &one : curve.points)
      numbered.emplace_back(one.number, one.bytes);
  EXPECT_EQ(numbered, (std::vector<std::pair<int64_t, int64_t>>{
                          {1, 300}, {2, 500}, {3, 200}, {4, 300}}));
}

TEST(PlanFrontier, PointsAreNamed) {
  const PlanFrontier frontier = example();
  auto picked = [&](const std::string &name) -> int64_t {
    Result<const FrontierPoint *> found = frontier.pick(name);
    return found.ok() ? (*found)->number : -1;
  };
  EXPECT_EQ(picked("2"), 2);
  EXPECT_EQ(picked("fastest"), 4);
  EXPECT_EQ(picked("smallest"), 3);
  EXPECT_EQ(picked("fastest@2"), 2);
  EXPECT_EQ(picked("smallest@2"), 1);
  EXPECT_EQ(
      frontier.pick("5").status().str(),
      "--pick: expected a point from 1 to 4, or fastest or smallest, with "
      "or without @DEVICES, found '5'");
  for (const char *name : {"0", "-1", "1x", "", "best", "fastest@3"})
    EXPECT_EQ(picked(name), -1) << name;
}

TEST(PlanFrontier, RoundTrip) {
  const PlanFrontier frontier = example();
  Result<PlanFrontier> again = PlanFrontier::parse(frontier.toJson(), "f.json");
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(again->toJson(), frontier.toJson());
  EXPECT_EQ(again->leftOut, frontier.leftOut);
  EXPECT_EQ(again->curves[0].points[0].strategy,
            frontier.curves[0].points[0].strategy);
  EXPECT_EQ(again->curves[1].problem, "no plan");
}

TEST(PlanFrontier, OtherFilesAreRefused) {
  const std::string good = example().toJson();
  for (const std::string &text :
       {std::string("{}"), std::string("no json"), std::string("[1]"),
        good.substr(0, good.size() / 2), "{\"version\": 2}" + good}) {
    Result<PlanFrontier> parsed = PlanFrontier::parse(text, "f.json");
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().str(), "f.json: expected what --frontier writes");
  }
}

} // namespace
} // namespace merak::planning
