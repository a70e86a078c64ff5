// Stage cuts against brute force over all cuts, and their special cases.
#include "passes/Planning/StageCut.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

// A chain of ops with the given times; tensor i is the result of op i.
CutProblem chain(const std::vector<double> &seconds, int stages) {
  CutProblem problem;
  problem.stages = stages;
  for (size_t i = 0; i < seconds.size(); ++i) {
    problem.tensors.push_back({fmt::format("t{}", i), 8, 8});
    problem.ops.push_back({fmt::format("op{}", i), seconds[i], {}, {int(i)}});
    if (i > 0)
      problem.ops.back().operands = {int(i) - 1};
  }
  return problem;
}

TEST(StageCut, BalancesAChain) {
  Result<StageCut> cut = cutStages(chain({1, 1, 4, 1, 1, 1, 1, 2}, 3));
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->seconds, (std::vector<double>{2, 5, 5}));
  EXPECT_EQ(cut->begin, (std::vector<int>{0, 2, 4, 8}));
}

// The tie between equal balances goes to the cheaper boundary.
TEST(StageCut, PrefersTheNarrowCut) {
  CutProblem problem = chain({2, 0, 2}, 2);
  problem.tensors[0].bytes = 1000;
  Result<StageCut> cut = cutStages(problem);
  EXPECT_EQ(cut->begin, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(cut->crossingBytes, std::vector<double>{16});
}

TEST(StageCut, SkipConnectionsAreThreaded) {
  CutProblem problem = chain({1, 1, 1, 1}, 4);
  problem.ops[3].operands.push_back(0); // op0 -> op3
  Result<StageCut> cut = cutStages(problem);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->crossing,
            (std::vector<std::vector<int>>{{0}, {0, 1}, {0, 2}}));
  EXPECT_EQ(cut->crossingBytes, (std::vector<double>{16, 32, 32}));
}

TEST(StageCut, CheapMasksAreComputedAgain) {
  CutProblem problem = chain({1, 1, 1, 1}, 2);
  // A mask from an input, used on both sides; it has no gradient.
  problem.tensors.push_back({"ids", 0, 0, true});
  problem.tensors.push_back({"mask", 100, 0});
  problem.ops.insert(problem.ops.begin(), {"mask", 0.01, {4}, {5}});
  problem.ops[2].operands.push_back(5);
  problem.ops[4].operands.push_back(5);
  Result<StageCut> sent = cutStages(problem);
  EXPECT_EQ(sent->crossing[0], (std::vector<int>{1, 5}));
  problem.duplicateSeconds = 0.1;
  Result<StageCut> again = cutStages(problem);
  EXPECT_EQ(again->crossing[0], std::vector<int>{1});
  EXPECT_EQ(again->duplicated, (std::vector<std::vector<int>>{{}, {0}}));
  EXPECT_NE(again->str(problem).find("1 ops computed again"),
            std::string::npos);
}

TEST(StageCut, EmbeddingAndHeadMayStandAlone) {
  Result<StageCut> cut = cutStages(chain({5, 1, 1, 1, 1, 5}, 3));
  EXPECT_EQ(cut->begin, (std::vector<int>{0, 1, 5, 6}));
}

TEST(StageCut, UserCuts) {
  CutProblem problem = chain({1, 1, 1, 1}, 3);
  problem.begins = {"op1", "op3"};
  Result<StageCut> cut = cutStages(problem);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->begin, (std::vector<int>{0, 1, 3, 4}));
  problem.begins = {"op3", "op1", "nobody"};
  EXPECT_EQ(cutStages(problem).status().str(),
            "the stage that begins at 'op1' would be empty: its begin is not "
            "after the one before\n"
            "no operation 'nobody' to begin a stage at");
  problem.begins = {"op2"};
  EXPECT_EQ(cutStages(problem).status().str(),
            "3 stages have 2 begins after the first, found 1");
}

TEST(StageCut, MoreStagesThanOps) {
  EXPECT_EQ(cutStages(chain({1, 1}, 3)).status().str(),
            "3 stages need at least as many operations, found 2");
}

// Price of cuts by definition, for the comparison.
double worstStage(const CutProblem &problem, const std::vector<int> &begin) {
  double worst = 0;
  for (size_t s = 0; s + 1 < begin.size(); ++s) {
    double seconds = 0;
    for (int i = begin[s]; i < begin[s + 1]; ++i)
      seconds += problem.ops[i].seconds;
    for (int boundary : {begin[s], begin[s + 1]})
      for (size_t t = 0; t < problem.tensors.size(); ++t) {
        bool made = false, used = false;
        for (int i = 0; i < int(problem.ops.size()); ++i) {
          const CutOp &op = problem.ops[i];
          auto has = [&](const std::vector<int> &ids) {
            return std::find(ids.begin(), ids.end(), int(t)) != ids.end();
          };
          made |= i < boundary && has(op.results);
          used |= i >= boundary && has(op.operands);
        }
        if (made && used)
          seconds +=
              (problem.tensors[t].bytes + problem.tensors[t].gradientBytes) *
              problem.secondsPerByte;
      }
    worst = std::max(worst, seconds);
  }
  return worst;
}

TEST(StageCut, EqualsBruteForceOnRandomGraphs) {
  std::mt19937 random(11);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    int n = pick(3, 9);
    CutProblem problem = chain(std::vector<double>(n, 1), pick(1, 3));
    problem.secondsPerByte = 0.125;
    for (int i = 0; i < n; ++i) {
      problem.ops[i].seconds = pick(0, 8);
      problem.tensors[i].bytes = pick(0, 16);
      problem.tensors[i].gradientBytes = pick(0, 1) * pick(0, 16);
      if (i > 0)
        problem.ops[i].operands = {pick(0, i - 1), pick(0, i - 1)};
    }
    double best = 1e9;
    std::vector<int> begin = {0};
    std::function<void()> tryAll = [&] {
      if (int(begin.size()) == problem.stages) {
        begin.push_back(n);
        best = std::min(best, worstStage(problem, begin));
        begin.pop_back();
        return;
      }
      for (int next = begin.back() + 1; next < n; ++next) {
        begin.push_back(next);
        tryAll();
        begin.pop_back();
      }
    };
    tryAll();
    Result<StageCut> cut = cutStages(problem);
    ASSERT_TRUE(cut.ok());
    EXPECT_EQ(worstStage(problem, cut->begin), best);
    EXPECT_EQ(*std::max_element(cut->seconds.begin(), cut->seconds.end()),
              best);
  }
}

} // namespace
} // namespace merak::planning
