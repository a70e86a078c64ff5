// Schedules as text: what is printed is read back, and what is no cell is not.
#include "runtime/plan/Actions.h"

#include <gtest/gtest.h>
#include <random>

using namespace merak;

namespace {

std::vector<Step> parsed(const std::string &line) {
  std::vector<CellProblem> problems;
  std::vector<Step> steps = parseCells(splitCells(line), problems);
  for (const CellProblem &problem : problems)
    ADD_FAILURE() << line << ": " << problem.text;
  return steps;
}

// "position: sentence" a line.
std::string problemsOf(const std::string &line) {
  std::vector<CellProblem> problems;
  parseCells(splitCells(line), problems);
  std::string text;
  for (const CellProblem &problem : problems)
    text += std::to_string(problem.position) + ": " + problem.text + "\n";
  return text;
}

TEST(Actions, LettersAndBack) {
  for (int number = 0; number < kActions; ++number) {
    char name = letter(Action(number));
    EXPECT_EQ(parseAction({&name, 1}), Action(number));
  }
  for (const char *text : {"", "X", "f", "FF"})
    EXPECT_FALSE(parseAction(text)) << text;
}

TEST(Actions, EachCellOfAList) {
  EXPECT_EQ(parsed("P0.1 f0 F1 R0 B0 r12.3 W7 S U"),
            (std::vector<Step>{{Action::P, 0, 1},
                               {Action::F, 0},
                               {Action::F, 1},
                               {Action::R, 0, 0, true},
                               {Action::B, 0},
                               {Action::R, 12, 3, false},
                               {Action::W, 7},
                               {Action::S},
                               {Action::U}}));
  EXPECT_EQ(parsed(""), std::vector<Step>());
}

TEST(Actions, ChunksAndLateRecomputations) {
  std::vector<Step> steps = parsed("R3.1 r3.1 B3");
  EXPECT_EQ(str(steps[0].id()), "R.1");
  EXPECT_EQ(str(steps[2].id()), "B");
  EXPECT_FALSE(steps[0].isLate());
  EXPECT_TRUE(steps[1].isLate());
  EXPECT_FALSE(steps[2].isLate());
}

// A forward whose recomputation is early is marked, however it was written.
TEST(Actions, MarksForwardsOfEarlyRecomputations) {
  for (const char *line : {"f0 R0 B0 F1 r1 B1", "F0 R0 B0 F1 r1 B1"})
    EXPECT_EQ(str(parsed(line)), "f0 R0 B0 F1 r1 B1");
  EXPECT_EQ(str(parsed("F0 F0.1 R0.1")), "F0 f0.1 R0.1");
}

TEST(Actions, AllProblemsAtOnce) {
  std::string sentence = "is no action; expected one like F0, r1, B2.1 or U\n";
  EXPECT_EQ(problemsOf("F0 X1 B W1a F1. F.1 F1.b U f1 f2x F1234567 r"),
            "1: 'X1' " + sentence + "2: 'B' " + sentence + "3: 'W1a' " +
                sentence + "4: 'F1.' " + sentence + "5: 'F.1' " + sentence +
                "6: 'F1.b' " + sentence + "9: 'f2x' " + sentence +
                "10: 'F1234567' " + sentence + "11: 'r' " + sentence +
                "8: f1 announces an early recomputation R1 that is not "
                "there\n");
  for (const char *cell : {"U0", "S1", "s", "u", "b0", "F-1", "F+1", "F0.-1",
                           "F0.1.2", "F0,", "U.1", "f", "rr0"})
    EXPECT_EQ(problemsOf(cell), "0: '" + std::string(cell) + "' " + sentence);
}

// A list of any actions, also one that no stage could run.
std::vector<Step> randomSteps(std::mt19937 &random) {
  auto below = [&](int n) { return int(random() % uint32_t(n)); };
  std::vector<Step> steps(below(40));
  for (Step &step : steps) {
    step.action = Action(below(kActions));
    if (isOncePerStep(step.action))
      continue;
    step.microbatch = below(below(4) ? 8 : 1000000);
    step.chunk = below(3) ? 0 : below(1000000);
    step.early = step.action == Action::R && below(2);
  }
  return steps;
}

TEST(Actions, WhatIsPrintedIsReadBack) {
  std::mt19937 random(15);
  for (int k = 0; k < 2000; ++k) {
    std::vector<Step> steps = randomSteps(random);
    std::vector<CellProblem> problems;
    EXPECT_EQ(parseCells(cellsOf(steps), problems), steps) << str(steps);
    EXPECT_TRUE(problems.empty()) << str(steps);
    EXPECT_EQ(parsed(str(steps)), steps);
  }
}

} // namespace
