// Reshardings for people and programs: text, tables, JSON, timelines to draw.
#pragma once

#include "passes/Resharding/Resharding.h"
#include "runtime/report/Timeline.h"

namespace merak::resharding {

// Unit tasks in the order of their execution, bound and prediction.
std::string describe(const std::string &name, const Resharding &resharding,
                     const costmodel::Cluster &cluster);
// An object.
std::string toJson(const std::string &name, const Resharding &resharding,
                   const costmodel::Cluster &cluster);
// A row for each interface between nodes (inside them, if all stays there), a
// bar for each transfer that occupies it, with the number of its task.
report::Timeline timelineOf(const std::string &name,
                            const Resharding &resharding,
                            const costmodel::Cluster &cluster);

// A resharding in the ways that are compared: predicted seconds of broadcasts
// in each order, of messages, of Alpa's local all-gather, and of what is
// chosen.
struct Comparison {
  std::string name;
  int tasks = 0;
  double bound = 0, sendRecv = 0, alpa = 0, naive = 0, shared = 0, size = 0,
         sorted = 0, ordered = 0, chosen = 0;
};
Result<Comparison> compare(const std::string &name, const Placement &source,
                           const Placement &target, int64_t elementBytes,
                           const costmodel::Cluster &cluster);
// A table in seconds; the last column is the chosen one over the bound.
std::string tableStr(const std::vector<Comparison> &comparisons);

} // namespace merak::resharding
