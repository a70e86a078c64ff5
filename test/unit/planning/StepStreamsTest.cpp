#include "passes/Planning/StepStreams.h"

#include <gtest/gtest.h>

namespace merak::planning {

// The example of the header.
TEST(StepStreams, EndsOfAMessageWaitForEachOther) {
  StreamProgram program;
  program.rows = 2;
  program.messages = {{{1, 2}, true, 2, 0, 0}};
  program.tasks = {{0, 0, 3, {}, -1},
                   {0, 1, 0, {0}, 0},
                   {1, 1, 0, {}, 0},
                   {1, 0, 2, {2}, -1}};
  const StepTimes times = simulateProgram(program);
  EXPECT_TRUE(times.finished);
  EXPECT_EQ(times.finish, (std::vector<double>{3, 5, 5, 7}));
  EXPECT_EQ(times.seconds, 7);
}

// Latency does not occupy the link, but its stream.
TEST(StepStreams, MessagesOfOneStreamPayTheirLatencyInTurn) {
  StreamProgram program;
  program.rows = 2;
  program.messages = {{{0, 2}, true, 3, 2, 0}, {{1, 3}, true, 3, 2, 0}};
  program.tasks = {
      {0, 1, 0, {}, 0}, {0, 1, 0, {}, 1}, {1, 1, 0, {}, 0}, {1, 1, 0, {}, 1}};
  EXPECT_EQ(simulateProgram(program).seconds, 6);
  program.tasks[1].stream = program.tasks[3].stream = 2;
  EXPECT_EQ(simulateProgram(program).seconds, 4);
}

// One row's links carry one collective after the other, the one that is ready
// first before it; levels are links of their own.
TEST(StepStreams, LinksCarryInTheOrderOfReadiness) {
  StreamProgram program;
  program.messages = {{{1}, false, 5, 0, 0}, {{2}, false, 1, 0, 0}};
  program.tasks = {{0, 0, 2, {}, -1}, {0, 1, 0, {0}, 0}, {0, 2, 0, {}, 1}};
  EXPECT_EQ(simulateProgram(program).finish, (std::vector<double>{2, 7, 1}));
  program.tasks[2].needs = {0}; // the first of equals
  EXPECT_EQ(simulateProgram(program).finish, (std::vector<double>{2, 7, 8}));
  program.messages[1].level = 1;
  EXPECT_EQ(simulateProgram(program).finish, (std::vector<double>{2, 7, 3}));
}

TEST(StepStreams, ACycleNeverFinishes) {
  StreamProgram program;
  program.tasks = {{0, 0, 1, {1}, -1}, {0, 1, 1, {0}, -1}};
  EXPECT_FALSE(simulateProgram(program).finished);
}

} // namespace merak::planning
