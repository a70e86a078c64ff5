// Two streams against an independent simulation, and the closed forms.
#include "passes/Planning/OverlapModel.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

namespace merak::planning {
namespace {

TEST(OverlapModel, TotalsEqualGolden) {
  std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/schedules.json");
  nlohmann::json golden =
      nlohmann::json::parse(file)["sub_pipelined_tp_forward"];
  int compared = 0;
  for (const auto &entry : golden) {
    LayerTimes times{entry["A"], entry["M"], entry["D"], entry["AR"]};
    for (int level : {0, 2, 3}) {
      EXPECT_EQ(runStreams(layerProgram(level, entry["layers"], times)),
                entry["total_level" + std::to_string(level)].get<double>())
          << entry;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 45);
}

// The increase from one more layer, in long programs.
TEST(OverlapModel, SteadyLayerIsTheIncrease) {
  std::mt19937 random(31);
  for (int round = 0; round < 400; ++round) {
    auto number = [&] { return double(2 * (1 + random() % 50)); };
    LayerTimes times{number(), number(), number(), number()};
    // Half of the communication cannot hide under less than half a block.
    for (int level : {0, 2, 3}) {
      double increase = runStreams(layerProgram(level, 41, times)) -
                        runStreams(layerProgram(level, 40, times));
      EXPECT_NEAR(increase, steadyLayer(level, times), 1e-9)
          << level << " " << times.attention << " " << times.mlp << " "
          << times.join << " " << times.allReduce;
    }
  }
}

// Overlap never takes longer, and hides everything under long blocks.
TEST(OverlapModel, LevelsAreOrdered) {
  std::mt19937 random(37);
  for (int round = 0; round < 200; ++round) {
    auto number = [&] { return double(1 + random() % 50); };
    LayerTimes times{number(), number(), number(), number()};
    int layers = 1 + int(random() % 6);
    double none = runStreams(layerProgram(0, layers, times));
    double inside = runStreams(layerProgram(2, layers, times));
    double across = runStreams(layerProgram(3, layers, times));
    EXPECT_LE(inside, none + 1e-9);
    EXPECT_LE(across, inside + 1e-9);
    double compute = layers * (times.attention + times.mlp + 2 * times.join);
    EXPECT_GE(across, compute);
  }
  EXPECT_TRUE(layerProgram(7, 2, {1, 1, 1, 1}).empty());
}

} // namespace
} // namespace merak::planning
