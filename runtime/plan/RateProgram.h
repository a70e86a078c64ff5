// A learning rate that a model computes itself: numbers, the step and states
// that carry over from step to step, in reverse Polish notation. The rate
// 0.125 * 0.9^t, rounded to f32, is "0.125 0.9 t pow mul f32". Behind the rate
// stand the states, each its first value and the program of the next one:
// "s0 | 0.125 s0 0.9 mul". Instructions that update carry it as `rate`.
//
//   numbers    a double
//   t          the step, from 0
//   s0 s1 ...  a state: its first value in step 0, then what its program made
//              of the states and t of the step before
//   add sub mul div pow mod min max    (two operands; mod has the divisor's
//   lt le eq and or                     sign; comparisons give 0 or 1)
//   neg abs sqrt exp log sin cos floor ceil round not    (one operand)
//   where      condition, value, otherwise
//   f32 i64    rounds the value to the type (to nearest even, towards zero)
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace merak {

// Tokens of a program and all its states: a plan from anywhere is read and
// evaluated in a bounded time.
inline constexpr std::size_t kMaxRateTokens = 4096;

class RateProgram {
public:
  // An error names the token that does not fit.
  static Result<RateProgram> parse(const std::string &text);

  // The rate of `step`, from 0. Steps may come in any order; states are
  // computed from the last one asked for, or from the beginning.
  double at(int64_t step);

private:
  struct Token {
    int op = 0;
    double number = 0; // or the number of a state
  };
  using Program = std::vector<Token>;
  static Result<Program> read(const std::string &text, std::size_t states,
                              std::size_t &tokens);
  double run(const Program &program, int64_t step) const;

  Program rate_;
  std::vector<double> first_, now_;
  std::vector<Program> next_;
  int64_t step_ = 0; // of now_
};

} // namespace merak
