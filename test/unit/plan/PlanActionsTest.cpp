// Enums of the schema: each value there and back, and what no value is.
#include "runtime/plan/Plan.h"

#include <gtest/gtest.h>

using namespace merak;
using planpb::Instruction;
using planpb::ScheduleStep;

namespace {

TEST(PlanActions, EveryActionAndBack) {
  for (int number = 0; number < kActions; ++number)
    EXPECT_EQ(actionOf(toProto(Action(number))), Action(number));
  for (int number : {-1, 0, kActions + 1})
    EXPECT_EQ(actionOf(ScheduleStep::Action(number)), std::nullopt);
}

TEST(PlanActions, NamesOfProcedures) {
  planpb::Procedure procedure;
  EXPECT_EQ(actionName(procedure), "?");
  procedure.set_action(ScheduleStep::EXCHANGE);
  EXPECT_EQ(actionName(procedure), "S");
}

TEST(PlanActions, ScheduleAndBack) {
  std::vector<CellProblem> problems;
  std::vector<Step> steps =
      parseCells(splitCells("P0.1 f0 R0 B0 r1.2 W12 S U"), problems);
  planpb::Program program;
  for (const Step &step : steps)
    *program.add_schedule() = toProto(step);
  EXPECT_EQ(scheduleOf(program), steps);
  program.add_schedule(); // no action
  EXPECT_EQ(scheduleOf(program), steps);
}

TEST(PlanActions, NamesOfCollectives) {
  Instruction instruction;
  instruction.set_op("einsum");
  EXPECT_EQ(opName(instruction), "einsum");
  instruction.set_kind(Instruction::COLLECTIVE);
  instruction.set_collective(Instruction::REDUCE_SCATTER);
  EXPECT_EQ(opName(instruction), "reduce_scatter");
  EXPECT_EQ(collectiveName(Instruction::Collective(17)), "collective 17");
  EXPECT_EQ(reductionName(Instruction::MAX), "max");
  EXPECT_EQ(reductionName(Instruction::Reduction(9)), "reduction 9");
}

} // namespace
