// Learning rates as programs: what they compute, and what is refused.
#include "runtime/plan/RateProgram.h"

#include <gtest/gtest.h>

#include <cmath>

namespace merak {
namespace {

double at(const std::string &text, int64_t step) {
  auto program = RateProgram::parse(text);
  EXPECT_TRUE(program.ok()) << program.status().str();
  return program.ok() ? program->at(step) : NAN;
}
double value(const std::string &rate) { return at(rate, 5); }

TEST(RateProgram, Operations) {
  EXPECT_EQ(value("0.5"), 0.5);
  EXPECT_EQ(value("t"), 5);
  EXPECT_EQ(value("7 2 add"), 9);
  EXPECT_EQ(value("7 2 sub"), 5);
  EXPECT_EQ(value("7 2 mul"), 14);
  EXPECT_EQ(value("7 2 div"), 3.5);
  EXPECT_EQ(value("7 2 pow"), 49);
  EXPECT_EQ(value("7 2 mod"), 1);
  EXPECT_EQ(value("-7 3 mod"), 2);
  EXPECT_EQ(value("7 -3 mod"), -2);
  EXPECT_EQ(value("7 2 min"), 2);
  EXPECT_EQ(value("7 2 max"), 7);
  EXPECT_EQ(value("7 2 lt 2 7 lt 2 2 lt add add"), 1);
  EXPECT_EQ(value("7 2 le 2 7 le 2 2 le add add"), 2);
  EXPECT_EQ(value("7 2 eq 2 2 eq add"), 1);
  EXPECT_EQ(value("1 0 and 1 1 and add"), 1);
  EXPECT_EQ(value("1 0 or 0 0 or add"), 1);
  EXPECT_EQ(value("0 not 3 not add"), 1);
  EXPECT_EQ(value("3 neg"), -3);
  EXPECT_EQ(value("-3 abs"), 3);
  EXPECT_EQ(value("16 sqrt"), 4);
  EXPECT_EQ(value("2 exp"), std::exp(2.0));
  EXPECT_EQ(value("2 log"), std::log(2.0));
  EXPECT_EQ(value("2 sin"), std::sin(2.0));
  EXPECT_EQ(value("2 cos"), std::cos(2.0));
  EXPECT_EQ(value("-2.5 floor"), -3);
  EXPECT_EQ(value("-2.5 ceil"), -2);
  EXPECT_EQ(value("2.5 round 3.5 round add"), 6);
  EXPECT_EQ(value("0 1 2 where"), 2);
  EXPECT_EQ(value("4 1 2 where"), 1);
  EXPECT_EQ(value("0.1 f32"), double(0.1f));
  EXPECT_EQ(value("-2.9 i64"), -2);
}

TEST(RateProgram, StatesGoOnFromStepToStep) {
  // Fibonacci's numbers: both are computed from what was before the step.
  auto program = RateProgram::parse("s0 | 0 s1 | 1 s0 s1 add");
  ASSERT_TRUE(program.ok());
  const double expected[] = {0, 1, 1, 2, 3, 5, 8, 13};
  for (int64_t step = 0; step < 8; ++step)
    EXPECT_EQ(program->at(step), expected[step]);
  // In any order, and as often as asked for.
  EXPECT_EQ(program->at(3), 2);
  EXPECT_EQ(program->at(3), 2);
  EXPECT_EQ(program->at(7), 13);
  EXPECT_EQ(at("s0 | 10 s0 t sub", 4), 10 - 0 - 1 - 2 - 3);
}

TEST(RateProgram, RefusesWhatIsNoProgram) {
  auto error = [](const std::string &text) {
    return RateProgram::parse(text).status().str();
  };
  const std::string start = "the program of the learning rate ";
  EXPECT_EQ(error(""), start + "leaves 0 values, expected one");
  EXPECT_EQ(error("1 2"), start + "leaves 2 values, expected one");
  EXPECT_EQ(error("1 add"), start + "has too few operands for 'add'");
  EXPECT_EQ(error("1 grow"), start + "has the unknown token 'grow'");
  EXPECT_EQ(error("inf"), start + "has the unknown token 'inf'");
  EXPECT_EQ(error("s0"), start + "reads 's0' of 0 states");
  EXPECT_EQ(error("s0.5 | 1 s0"), start + "reads 's0.5' of 1 states");
  EXPECT_EQ(error("s0 | 1 s1"), start + "reads 's1' of 1 states");
  EXPECT_EQ(error("s0 | 1 s0 s0"), start + "leaves 2 values, expected one");
  EXPECT_EQ(error("s0 | t"), start + "has no first value for s0");
  EXPECT_EQ(error("1 |"), start + "has no first value for s0");
  std::string longest = "1";
  for (size_t i = 0; i < kMaxRateTokens / 2; ++i)
    longest += " 1 add";
  EXPECT_EQ(error(longest), start + "has more than " +
                                std::to_string(kMaxRateTokens) + " tokens");
}

} // namespace
} // namespace merak
