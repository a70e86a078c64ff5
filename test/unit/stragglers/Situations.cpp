#include "Situations.h"

namespace merak::stragglers {

namespace {

// Rates of the devices from the first of a node on.
struct Slow {
  int64_t node = 0;
  std::vector<int64_t> rates;
};
struct Situation {
  std::string name;
  std::vector<Slow> slow;
};

const std::vector<Situation> &situations() {
  static const std::vector<int64_t> wholeNode(8, 68700);
  static const std::vector<Situation> all = {
      {"S1: one 2.57", {{0, {25700}}}},
      {"S2: one 5.42", {{0, {54200}}}},
      {"S3: 5.42 and 2.57 on two nodes", {{0, {54200}}, {1, {25700}}}},
      {"S4: 12.53, 12.53 and 2.57 on three nodes",
       {{0, {125300}}, {1, {125300}}, {2, {25700}}}},
      {"S5: a node of 6.87", {{0, wholeNode}}},
      {"S6: a node of 6.87 and one 5.42", {{0, wholeNode}, {1, {54200}}}}};
  return all;
}

} // namespace

const std::string &situationName(int situation) {
  return situations()[size_t(situation - 1)].name;
}

Problem situationProblem(int situation, int64_t devices) {
  Problem problem =
      devices == 32 ? goldenModel("32B") : goldenModel("70B", devices / 64);
  for (int64_t first = 0; first < devices; first += 64)
    for (const Slow &slow : situations()[size_t(situation - 1)].slow)
      for (size_t i = 0; i < slow.rates.size(); ++i)
        problem.devices[size_t(first + slow.node * 8) + i].rate = slow.rates[i];
  return problem;
}

} // namespace merak::stragglers
