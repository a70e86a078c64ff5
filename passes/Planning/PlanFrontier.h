// The answer to --frontier as a value and as a file: for each number of devices
// the plans of which none needs more memory and more time than another. Each
// was laid out and simulated; what the search had expected stands beside.
#pragma once

#include "passes/Planning/Strategy.h"

#include <string>
#include <vector>

namespace merak::planning {

struct FrontierPoint {
  int64_t number = 0; // over all curves, from 1
  int64_t bytes = 0;  // of the fullest rank, its buffers laid out
  double seconds = 0; // of a step, simulated
  double expectedBytes = 0, expectedSeconds = 0; // as the search priced it
  // In words: degrees, schedule, techniques; and where: what is split, where
  // stages begin (PlanWords.h).
  std::vector<std::string> decisions, places;
  Strategy strategy; // complete
  size_t take = 0;   // which of the plans found; not in the file
};

struct FrontierCurve {
  int64_t devices = 0;
  int64_t priced = 0, simulated = 0; // plans
  std::string problem;               // why there is no point
  std::vector<FrontierPoint> points; // bytes ascending, seconds descending
};

// A technique that the search left out.
struct LeftOut {
  std::string name, reason;
  bool operator==(const LeftOut &) const = default;
};

struct PlanFrontier {
  std::string model, machine; // file; name of the cluster
  int64_t globalBatch = 0;
  int64_t memoryBytes = 0; // of a device; 0: not limited
  std::string question;    // the same for all that decides the answer
  std::vector<LeftOut> leftOut;
  std::vector<FrontierCurve> curves; // devices ascending

  // Drops points that another one of the same curve beats, sorts the rest and
  // numbers all of them.
  void reduce();
  // A point by its number, or "fastest" or "smallest": of all, or with
  // "@DEVICES" of one curve. Of equals the one on fewer devices. Errors say
  // which points there are.
  Result<const FrontierPoint *> pick(const std::string &name) const;
  size_t points() const;

  std::string toJson() const;
  static Result<PlanFrontier> parse(const std::string &json,
                                    const std::string &fileName);
};

// Relative to what was found by laying out and simulating, e.g. 0.02.
double errorOf(double expected, double found);

} // namespace merak::planning
