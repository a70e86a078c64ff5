#include "runtime/backends/cpu/Equation.h"

#include <fmt/format.h>
#include <map>

namespace merak::cpu {

namespace {

struct Letter {
  int64_t size = -1;
  int64_t strides[kOperands] = {0, 0, 0};
  bool in[kOperands] = {false, false, false};
};

// The letters of one operand; false (and a problem) if they do not fit.
bool readLetters(Request &request, const std::string &letters, const View &view,
                 Operand operand, const char *what,
                 std::map<char, Letter> &table) {
  if (!request.expect(letters.size() == view.shape.size(),
                      fmt::format("expected {} of rank {} for '{}', found {}",
                                  what, letters.size(), letters,
                                  view.shape.size())))
    return false;
  for (size_t d = 0; d < letters.size(); ++d) {
    Letter &letter = table[letters[d]];
    request.expect(
        !letter.in[operand],
        fmt::format("letter '{}' is a duplicate in '{}'", letters[d], letters));
    request.expect(letter.size < 0 || letter.size == view.shape[d],
                   fmt::format("letter '{}' has size {} and, in {}, {}",
                               letters[d], letter.size, what, view.shape[d]));
    letter.size = view.shape[d];
    letter.in[operand] = true;
    letter.strides[operand] = view.strides[d];
  }
  return request.ok();
}

} // namespace

bool readEquation(Request &request, Problem &problem) {
  std::string equation;
  for (char c : request.text("equation"))
    if (c != ' ')
      equation += c;
  size_t comma = equation.find(','), arrow = equation.find("->");
  if (!request.expect(comma != std::string::npos &&
                          arrow != std::string::npos && comma < arrow,
                      fmt::format("expected an equation \"ab,bc->ac\", "
                                  "found \"{}\"",
                                  equation)))
    return false;
  std::string a = equation.substr(0, comma);
  std::string b = equation.substr(comma + 1, arrow - comma - 1);
  std::string out = equation.substr(arrow + 2);
  std::map<char, Letter> table;
  readLetters(request, a, request.inputs[0], kA, "input 0", table);
  readLetters(request, b, request.inputs[1], kB, "input 1", table);
  readLetters(request, out, request.outputs[0], kOut, "the output", table);
  if (!request.ok())
    return false;
  // Letters in the order of the output, then of a, then of b.
  std::string order;
  for (char c : out + a + b)
    if (order.find(c) == std::string::npos)
      order += c;
  std::vector<int64_t> shapes[4];
  std::vector<std::vector<int64_t>> strides[4];
  for (auto &group : strides)
    group.resize(kOperands);
  for (char c : order) {
    const Letter &l = table[c];
    if (!request.expect(!l.in[kOut] || l.in[kA] || l.in[kB],
                        fmt::format("letter '{}' of the output stands in no "
                                    "input",
                                    c)))
      return false;
    int group = !l.in[kOut] ? 3 : l.in[kA] && l.in[kB] ? 0 : l.in[kA] ? 1 : 2;
    shapes[group].push_back(l.size);
    for (int o = 0; o < kOperands; ++o)
      strides[group][o].push_back(l.strides[o]);
  }
  problem.batch = Nest(shapes[0], strides[0]);
  problem.m = Nest(shapes[1], strides[1]);
  problem.n = Nest(shapes[2], strides[2]);
  problem.k = Nest(shapes[3], strides[3]);
  return true;
}

} // namespace merak::cpu
