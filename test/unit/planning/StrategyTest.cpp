// The strategy file: round trip, and all problems at once.
#include "passes/Planning/Strategy.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

Strategy example() {
  Strategy strategy;
  strategy.mesh = {{"pp", 2}, {"dp", 2}, {"tp", 2}};
  strategy.globalBatch = 16;
  strategy.microbatch = 2;
  strategy.schedule = "1f1b";
  strategy.recompute = "0.5";
  strategy.stageBegins = std::vector<std::string>{"h.1/ln_1"};
  strategy.parameters["fc.weight"] = {{{}, {"tp"}}};
  strategy.classes.resize(2);
  strategy.classes[0].anchor = {"c_attn.weight", 1, 3, 4};
  strategy.classes[0].axes.push_back("tp");
  strategy.classes[1].anchor = {"x", 0, 1, 16};
  strategy.classes[1].axes = {"mb", "dp"};
  return strategy;
}

TEST(Strategy, RoundTrip) {
  for (const Strategy &strategy : {example(), Strategy()}) {
    Result<Strategy> again = Strategy::parse(strategy.toJson(), "s.json");
    ASSERT_TRUE(again.ok()) << again.status().str();
    EXPECT_EQ(*again, strategy);
    EXPECT_EQ(again->toJson(), strategy.toJson());
  }
}

// A schedule that no name makes: its lists stand in the file.
TEST(Strategy, SearchedListsComeBack) {
  ScheduleOptions shape;
  shape.stages = 2;
  shape.microbatches = 3;
  shape.chunks = 1;
  shape.splitBackward = shape.update = true;
  Strategy strategy = example();
  strategy.lists = *makeSchedule("1f1b", shape);
  strategy.lists->name = "auto";
  strategy.schedule = "auto";
  Result<Strategy> again = Strategy::parse(strategy.toJson(), "s.json");
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, strategy);
  EXPECT_EQ(again->toJson(), strategy.toJson());

  std::string text = strategy.toJson();
  text.replace(text.find("B0"), 2, "X0");
  EXPECT_EQ(Strategy::parse(text, "s.json").status().str(),
            "s.json: 'schedule': stage 0, position 2: 'X0' is no action; "
            "expected one like F0, r1, B2.1 or U");
  EXPECT_EQ(Strategy::parse(R"({"schedule": 3})", "s.json").status().str(),
            "s.json: 'schedule' is neither a string nor an object");
  EXPECT_EQ(Strategy::parse(R"({"chunks": 2, "schedule": {"microbatches": 1,
                                "stages": ["F0 B0"]}})",
                            "s.json")
                .status()
                .str(),
            "s.json: 'chunks' is 2, the lists of 'schedule' have 1");
}

TEST(Strategy, AbsentFieldsStayOpen) {
  Result<Strategy> strategy = Strategy::parse("{}", "s.json");
  ASSERT_TRUE(strategy.ok());
  EXPECT_FALSE(strategy->schedule || strategy->microbatch ||
               strategy->stageBegins);
}

TEST(Strategy, AllProblemsAtOnce) {
  Result<Strategy> strategy = Strategy::parse(
      R"({"mesh": {"pp": 2, "tp": 0, "zp": 2}, "global_batch": 6,
          "microbatch": 4, "schedule": "fast", "recompute": "most",
          "stage_begins": ["a", "b"], "colour": 1, "version": 7,
          "parameters": {"w": [["tp"], "tp"], "v": [["pp"], ["pp"]]},
          "classes": [{"tensor": "x"}, {"tensor": "x", "size": 4, "dim": -1,
          "axes": ["dp"]}]})",
      "s.json");
  EXPECT_EQ(
      strategy.status().str(),
      "s.json: unknown field 'colour'\n"
      "s.json: version 7 is newer than this compiler's 2\n"
      "s.json: 'mesh.tp' is 0, expected a whole number of at least 1\n"
      "s.json: 'mesh' has the axis 'zp'; known are pp, dp, tp\n"
      "s.json: 'schedule' is 'fast', expected a file .json or one of gpipe, "
      "1f1b, early, last, scp, eager, interleaved, zb\n"
      "s.json: 'recompute' is \"most\", expected \"none\", \"full\", \"auto\" "
      "or a ratio from \"0\" to \"1\"\n"
      "s.json: 'parameters.w' is not a list of strings\n"
      "s.json: 'classes[0]' needs the fields tensor (or op) and axes\n"
      "s.json: 'classes[1].dim' is -1, expected a whole number of at least 0\n"
      "s.json: parameter 'v' is split over 'pp' twice\n"
      "s.json: parameter 'w' is split over 'tp', which 'mesh' lacks\n"
      "s.json: dimension 0 of 'x' is split over 'dp', which 'mesh' lacks\n"
      "s.json: 'stage_begins' makes 3 stages, 'mesh' has pp=2\n"
      "s.json: 'global_batch' 6 is not a multiple of microbatch 4 x dp 1");
  EXPECT_EQ(Strategy::parse("[]", "s.json").status().str(),
            "s.json: expected a JSON object");
}

} // namespace
} // namespace merak::planning
