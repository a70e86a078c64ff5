#include "runtime/plan/RateProgram.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <sstream>

namespace merak {
namespace {

// An operation on the topmost values of the stack.
struct Op {
  const char *name;
  int operands;
  double (*run)(const double *x);
};

double toInteger(const double *x) {
  // Outside of the type's range no conversion has a meaning.
  constexpr double kLimit = 9223372036854775808.0;
  return std::isfinite(x[0]) ? std::clamp(std::trunc(x[0]), -kLimit, kLimit)
                             : 0;
}

double modulo(const double *x) {
  const double rest = std::fmod(x[0], x[1]);
  return rest != 0 && (rest < 0) != (x[1] < 0) ? rest + x[1] : rest;
}

constexpr Op kOps[] = {
    {"add", 2, [](const double *x) { return x[0] + x[1]; }},
    {"sub", 2, [](const double *x) { return x[0] - x[1]; }},
    {"mul", 2, [](const double *x) { return x[0] * x[1]; }},
    {"div", 2, [](const double *x) { return x[0] / x[1]; }},
    {"pow", 2, [](const double *x) { return std::pow(x[0], x[1]); }},
    {"mod", 2, modulo},
    {"min", 2, [](const double *x) { return std::min(x[0], x[1]); }},
    {"max", 2, [](const double *x) { return std::max(x[0], x[1]); }},
    {"lt", 2, [](const double *x) { return double(x[0] < x[1]); }},
    {"le", 2, [](const double *x) { return double(x[0] <= x[1]); }},
    {"eq", 2, [](const double *x) { return double(x[0] == x[1]); }},
    {"and", 2, [](const double *x) { return double(x[0] != 0 && x[1] != 0); }},
    {"or", 2, [](const double *x) { return double(x[0] != 0 || x[1] != 0); }},
    {"not", 1, [](const double *x) { return double(x[0] == 0); }},
    {"neg", 1, [](const double *x) { return -x[0]; }},
    {"abs", 1, [](const double *x) { return std::fabs(x[0]); }},
    {"sqrt", 1, [](const double *x) { return std::sqrt(x[0]); }},
    {"exp", 1, [](const double *x) { return std::exp(x[0]); }},
    {"log", 1, [](const double *x) { return std::log(x[0]); }},
    {"sin", 1, [](const double *x) { return std::sin(x[0]); }},
    {"cos", 1, [](const double *x) { return std::cos(x[0]); }},
    {"floor", 1, [](const double *x) { return std::floor(x[0]); }},
    {"ceil", 1, [](const double *x) { return std::ceil(x[0]); }},
    {"round", 1, [](const double *x) { return std::nearbyint(x[0]); }},
    {"where", 3, [](const double *x) { return x[0] != 0 ? x[1] : x[2]; }},
    {"f32", 1,
     [](const double *x) { return double(static_cast<float>(x[0])); }},
    {"i64", 1, toInteger},
};

// Tokens that are no operation.
enum : int { kNumber = -1, kStep = -2, kState = -3 };

bool isNumber(const std::string &word, double &value) {
  const char *end = word.data() + word.size();
  auto [last, error] = std::from_chars(word.data(), end, value);
  return last == end && error == std::errc() && std::isfinite(value);
}

} // namespace

Result<RateProgram::Program> RateProgram::read(const std::string &text,
                                               std::size_t states,
                                               std::size_t &tokens) {
  auto fail = [](const std::string &what) {
    return Status::error("the program of the learning rate " + what);
  };
  Program program;
  size_t depth = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (++tokens > kMaxRateTokens)
      return fail(fmt::format("has more than {} tokens", kMaxRateTokens));
    Token token;
    size_t operands = 0;
    auto op = std::find_if(std::begin(kOps), std::end(kOps),
                           [&](const Op &o) { return word == o.name; });
    if (op != std::end(kOps)) {
      token.op = static_cast<int>(op - std::begin(kOps));
      operands = op->operands;
    } else if (word == "t") {
      token.op = kStep;
    } else if (word[0] == 's' && isNumber(word.substr(1), token.number)) {
      token.op = kState;
      if (!(token.number >= 0 && token.number < double(states)) ||
          token.number != std::trunc(token.number))
        return fail(fmt::format("reads '{}' of {} states", word, states));
    } else if (isNumber(word, token.number)) {
      token.op = kNumber;
    } else {
      return fail(fmt::format("has the unknown token '{}'", word));
    }
    if (depth < operands)
      return fail(fmt::format("has too few operands for '{}'", word));
    depth += 1 - operands;
    program.push_back(token);
  }
  if (depth != 1)
    return fail(fmt::format("leaves {} values, expected one", depth));
  return program;
}

Result<RateProgram> RateProgram::parse(const std::string &text) {
  std::vector<std::string> parts(1);
  for (char c : text)
    if (c == '|')
      parts.emplace_back();
    else
      parts.back() += c;
  RateProgram result;
  const size_t states = parts.size() - 1;
  size_t tokens = 0;
  auto rate = read(parts[0], states, tokens);
  if (!rate.ok())
    return rate.status();
  result.rate_ = std::move(*rate);
  for (size_t i = 1; i < parts.size(); ++i) {
    std::istringstream words(parts[i]);
    std::string word, rest;
    double first = 0;
    if (!(words >> word) || !isNumber(word, first))
      return Status::error(fmt::format("the program of the learning rate has "
                                       "no first value for s{}",
                                       i - 1));
    std::getline(words, rest);
    auto next = read(rest, states, tokens);
    if (!next.ok())
      return next.status();
    result.first_.push_back(first);
    result.next_.push_back(std::move(*next));
  }
  result.now_ = result.first_;
  return result;
}

double RateProgram::run(const Program &program, int64_t step) const {
  std::vector<double> stack;
  for (const Token &token : program) {
    if (token.op == kNumber) {
      stack.push_back(token.number);
    } else if (token.op == kStep) {
      stack.push_back(static_cast<double>(step));
    } else if (token.op == kState) {
      stack.push_back(now_[static_cast<size_t>(token.number)]);
    } else {
      const Op &op = kOps[token.op];
      const size_t base = stack.size() - op.operands;
      const double value = op.run(&stack[base]);
      stack.resize(base);
      stack.push_back(value);
    }
  }
  return stack.back();
}

double RateProgram::at(int64_t step) {
  if (step < step_) {
    now_ = first_;
    step_ = 0;
  }
  for (; step_ < step && !next_.empty(); ++step_) {
    std::vector<double> next;
    for (const Program &program : next_)
      next.push_back(run(program, step_));
    now_ = std::move(next);
  }
  return run(rate_, step);
}

} // namespace merak
