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
  strategy.castWeights = "step";
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

const char *const kPipelines = R"({"pipelines": [{"microbatches": 4, "stages": [
  {"devices": "0-3", "mesh": "dp=2,tp=2"},
  {"devices": "6,4-5", "mesh": "dp=3", "begin": "h.1/ln_1"},
  {"devices": "7", "mesh": "", "begin": "h.2/ln_1"}]}]})";

TEST(Strategy, Pipelines) {
  Result<Strategy> read = Strategy::parse(kPipelines, "s.json");
  ASSERT_TRUE(read.ok()) << read.status().str();
  ASSERT_EQ(read->pipelines.size(), 1u);
  const PipelineStages &pipeline = read->pipelines[0];
  EXPECT_EQ(pipeline.microbatches, 4);
  EXPECT_EQ(pipeline.devices(), 8);
  EXPECT_EQ(pipeline.stages[1].devices, (std::vector<int64_t>{6, 4, 5}));
  EXPECT_EQ(pipeline.stages[0].tp, 2);
  EXPECT_EQ(pipeline.stages[2].dp, 1);
  EXPECT_FALSE(pipeline.isUniform());
  // What is priced has degrees that those of all stages divide.
  EXPECT_EQ(read->mesh,
            (std::map<std::string, int64_t>{{"pp", 3}, {"dp", 6}, {"tp", 2}}));
  EXPECT_EQ(read->stageBegins,
            (std::vector<std::string>{"h.1/ln_1", "h.2/ln_1"}));
  Result<Strategy> again = Strategy::parse(read->toJson(), "s.json");
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, *read);
  EXPECT_EQ(again->toJson(), read->toJson());
}

TEST(Strategy, EqualStagesInOrderAreAPlanOfOneMesh) {
  auto isUniform = [](const char *stages) {
    Result<Strategy> read = Strategy::parse(
        std::string(R"({"pipelines": [{"stages": [)") + stages + "]}]}", "s");
    EXPECT_TRUE(read.ok()) << read.status().str();
    return read.ok() && read->pipelines[0].isUniform();
  };
  EXPECT_TRUE(isUniform(R"({"devices": "0-1", "mesh": "tp=2"},
                           {"devices": "2-3", "mesh": "tp=2"})"));
  EXPECT_FALSE(isUniform(R"({"devices": "2-3", "mesh": "tp=2"},
                            {"devices": "0-1", "mesh": "tp=2"})"));
  EXPECT_FALSE(isUniform(R"({"devices": "0-1", "mesh": "tp=2"},
                            {"devices": "2-3", "mesh": "dp=2"})"));
}

TEST(Strategy, PipelinesThatDoNotFit) {
  auto errors = [](const char *json) {
    return Strategy::parse(json, "s.json").status().str();
  };
  EXPECT_EQ(errors(R"({"mesh": {"pp": 2}, "pipelines": [{"stages": [
      {"devices": "0-3", "mesh": "dp=2", "begin": "first"},
      {"devices": "3,5", "mesh": "dp=2", "begin": "A"},
      {"devices": "8", "begin": "A"}, {"devices": "10-11"},
      {"devices": "1-x"}, {"mesh": "dp=0"}]}]})"),
            "s.json: 'mesh' cannot stand beside 'pipelines'\n"
            "s.json: 'pipelines[0].stages[0].mesh' makes 2 places, 'devices' "
            "are 4\n"
            "s.json: 'pipelines[0].stages[3]' has 2 devices and no mesh\n"
            "s.json: 'pipelines[0].stages[4].devices' is \"1-x\", expected "
            "devices as \"0-3,7\"\n"
            "s.json: 'pipelines[0].stages[5]' needs the field devices\n"
            "s.json: the first stage begins at 'first', but it begins with the "
            "model\n"
            "s.json: device 3 is of two stages\n"
            "s.json: stage 1 has no layers: stage 2 begins at 'A' too\n"
            "s.json: some stages say where they begin and some do not\n"
            "s.json: devices 4,6-7,9 are of no stage, nor among 'spares'");
  EXPECT_EQ(errors(R"({"pipelines": [{"stages": [{"devices": "0"},
                {"devices": "3"}], "spares": "2-3"}]})"),
            "s.json: device 3 is spare and of a stage\n"
            "s.json: device 1 is of no stage, nor among 'spares'");
  EXPECT_EQ(errors(R"({"pipelines": [{"stages": [{"devices": "0"}],
                "spares": 1}]})"),
            "s.json: 'pipelines[0].spares' is 1, expected devices as "
            "\"0-3,7\"");
  EXPECT_EQ(errors(R"({"pipelines": [{"stages": [{"devices": "0"}]},
                                     {"stages": [{"devices": "1"}]}]})"),
            "s.json: 'pipelines[0]' needs the field microbatches, its share of "
            "a step, beside other pipelines\n"
            "s.json: 'pipelines[1]' needs the field microbatches, its share of "
            "a step, beside other pipelines");
  EXPECT_EQ(errors(R"({"pipelines": []})"),
            "s.json: 'pipelines' is not a list of pipelines");
  EXPECT_EQ(errors(R"({"pipelines": [{"stages": [
                {"devices": "0-1", "mesh": "dp=2,dp=1"}], "count": 2}]})"),
            "s.json: unknown field 'pipelines[0].count'\n"
            "s.json: 'pipelines[0].stages[0].mesh' is \"dp=2,dp=1\", expected "
            "degrees as \"dp=2,tp=2\"");
  EXPECT_EQ(errors(R"({"stage_begins": ["A"], "pipelines": [{"stages": [
                {"devices": "0"}, {"devices": "1", "begin": "B"}]}]})"),
            "s.json: 'stage_begins' cannot stand beside stages that say where "
            "they begin");
}

// Devices that do nothing: ranks are numbered without them.
TEST(Strategy, SparesComeBack) {
  Result<Strategy> read = Strategy::parse(
      R"({"pipelines": [{"spares": "5,1", "stages": [
          {"devices": "2,0"  , "mesh": "dp=2"}, {"devices": "3-4",
           "mesh": "dp=2"}]}]})",
      "s.json");
  ASSERT_TRUE(read.ok()) << read.status().str();
  const PipelineStages &pipeline = read->pipelines[0];
  EXPECT_EQ(pipeline.spares, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(pipeline.sparesStr(), "1,5");
  EXPECT_EQ(pipeline.str(), "2,0 dp=2,tp=1; 3-4 dp=2,tp=1");
  EXPECT_EQ(pipeline.devices(), 4);
  EXPECT_FALSE(pipeline.isUniform());
  for (auto [device, rank] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {2, 1}, {3, 2}, {4, 3}})
    EXPECT_EQ(pipeline.rankOf(device), rank);
  EXPECT_EQ(Strategy::parse(read->toJson(), "s.json")->pipelines,
            read->pipelines);
}

// Each pipeline as a strategy of its own, on degrees that all have in common.
TEST(Strategy, SeveralPipelinesComeBack) {
  Result<Strategy> read = Strategy::parse(
      R"({"global_batch": 16, "pipelines": [
          {"microbatches": 5, "stages": [
            {"devices": "0-3", "mesh": "tp=4"},
            {"devices": "4-5", "mesh": "dp=2", "begin": "B"}],
           "recompute_ops": ["A"]},
          {"microbatches": 3, "spares": "7", "chunks": 2,
           "stage_begins": ["C"], "stages": [{"devices": "6"}]}]})",
      "s.json");
  ASSERT_TRUE(read.ok()) << read.status().str();
  EXPECT_EQ(read->mesh,
            (std::map<std::string, int64_t>{{"pp", 3}, {"dp", 2}, {"tp", 4}}));
  EXPECT_FALSE(read->stageBegins);
  EXPECT_EQ(read->firstMicrobatch(1), 5);
  Result<Strategy> again = Strategy::parse(read->toJson(), "s.json");
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, *read);

  const Strategy first = read->ofPipeline(0), last = read->ofPipeline(1);
  EXPECT_EQ(first.mesh.at("pp"), 2);
  EXPECT_EQ(last.mesh,
            (std::map<std::string, int64_t>{{"pp", 1}, {"dp", 2}, {"tp", 4}}));
  EXPECT_EQ(first.stageBegins, std::vector<std::string>{"B"});
  EXPECT_EQ(last.stageBegins, std::vector<std::string>{"C"});
  EXPECT_EQ(first.recomputeOps, std::vector<std::string>{"A"});
  EXPECT_FALSE(last.recomputeOps);
  EXPECT_EQ(last.chunks, 2);
  const PipelineStages all = joined(read->pipelines);
  EXPECT_EQ(all.microbatches, 8);
  EXPECT_EQ(all.devices(), 7);
  EXPECT_EQ(all.spares, std::vector<int64_t>{7});
  EXPECT_EQ(all.stages.back().devices, std::vector<int64_t>{6});
}

TEST(Strategy, SeveralPipelinesThatDoNotFit) {
  EXPECT_EQ(Strategy::parse(R"({"stage_begins": ["A"], "pipelines": [
                {"microbatches": 1, "stages": [{"devices": "0-1",
                 "mesh": "dp=2"}]},
                {"microbatches": 2, "stages": [{"devices": "1"}],
                 "spares": "3"}]})",
                            "s.json")
                .status()
                .str(),
            "s.json: 'stage_begins' cannot stand beside several pipelines, "
            "each of which has its own\n"
            "s.json: device 1 is of two stages\n"
            "s.json: device 2 is of no stage, nor among 'spares'");
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
          "cast_weights": true,
          "stage_begins": ["a", "b"], "colour": 1, "version": 7,
          "parameters": {"w": [["tp"], "tp"], "v": [["pp"], ["pp"]]},
          "classes": [{"tensor": "x"}, {"tensor": "x", "size": 4, "dim": -1,
          "axes": ["dp"]}]})",
      "s.json");
  EXPECT_EQ(
      strategy.status().str(),
      "s.json: unknown field 'colour'\n"
      "s.json: version 7 is newer than this compiler's 3\n"
      "s.json: 'mesh.tp' is 0, expected a whole number of at least 1\n"
      "s.json: 'mesh' has the axis 'zp'; known are pp, dp, tp\n"
      "s.json: 'schedule' is 'fast', expected a file .json or one of gpipe, "
      "1f1b, early, last, scp, eager, interleaved, zb\n"
      "s.json: 'recompute' is \"most\", expected \"none\", \"full\", \"auto\" "
      "or a ratio from \"0\" to \"1\"\n"
      "s.json: 'parameters.w' is not a list of strings\n"
      "s.json: 'cast_weights' is true, expected \"step\", \"use\" or "
      "\"auto\"\n"
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
