// Computation and communication of a rank that go on at the same time, and how
// much longer that makes both.
#pragma once

#include "runtime/plan/Execution.h"

#include <functional>
#include <map>
#include <tuple>
#include <vector>

namespace merak::report {

// How much of a span of time something goes on: the integral of a sum of
// intervals with weights, nowhere more than 1.
class Activity {
public:
  void add(double begin, double end, double weight);
  // After the last add.
  void close();
  // Seconds between `begin` and `end`.
  double between(double begin, double end) const;

private:
  double until(double time) const;
  std::vector<std::pair<double, double>> changes_; // time, weight
  struct Point {
    double time, seconds, slope;
  };
  std::vector<Point> points_;
};

// A computation of w undisturbed seconds that is disturbed for a share x of its
// time, when it is s times slower, lasts w / (1 - x (1 - 1/s)). Which share
// that is depends on how long everything lasts, so a plan is executed again and
// again, each time with the shares of the time before, until the step takes as
// long as before.
class Overlap {
public:
  // How much slower at least; both at least 1.
  Overlap(int classes, double compute, double communication);
  bool needed() const { return compute_ > 1 || communication_ > 1; }

  // Of an instruction in the execution that goes on now.
  double factor(const ExecutionSite &site) const;

  // `share`: of its time, in which a communication keeps its device at work.
  void add(const ExecutionSpan &span, bool communicates, double share);
  // Ends an execution: what was added decides the factors of the next one.
  // `partners`: classes of the communication.
  using Partners = std::function<std::vector<int>(const ExecutionSite &)>;
  void next(const Partners &partners);

private:
  using Key = std::tuple<int, int, int>;
  static Key key(const ExecutionSite &site) {
    return {site.rankClass, site.call, site.instruction};
  }
  struct Span {
    ExecutionSpan span;
    bool communicates;
    double share;
  };
  int classes_;
  double compute_, communication_;
  std::vector<Span> spans_;
  std::map<Key, double> factors_;
};

} // namespace merak::report
