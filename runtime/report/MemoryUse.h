// Memory over the time of a simulated step: which buffers hold a value when,
// from what the instructions touch and the slots of the calls.
#pragma once

#include "runtime/plan/Execution.h"

#include <array>
#include <string>
#include <vector>

namespace merak::report {

inline constexpr int kCategories = planpb::Buffer::Category_ARRAYSIZE;
using CategoryBytes = std::array<double, kCategories>; // by Buffer.Category

// Of one rank of a class.
struct MemoryUse {
  double arenaBytes = 0; // what the runtime allocates
  // From `time` to the next point; the first is at 0.
  struct Point {
    double time = 0;
    CategoryBytes bytes{};
    double total() const;
  };
  std::vector<Point> points;
  Point peak; // the first one with the most bytes
  struct Tensor {
    std::string name;   // of the buffer
    std::string origin; // the tensor it holds, or the nodes that compute it
    planpb::Buffer::Category category = planpb::Buffer::PARAMETERS;
    double bytes = 0; // of all its copies that hold a value
    int copies = 1;
  };
  std::vector<Tensor> atPeak; // largest first
};

// Collects what a simulated step touches. A value lives from the instruction
// that writes it to the last one that reads it before it is written anew; one
// that is read before it is written comes from the step before, and lives
// through the end of this one.
class MemoryTracker {
public:
  MemoryTracker(const LoadedPlan &plan, const CommunicationMap &map);
  void add(const ExecutionSpan &span);
  // By class. `seconds`: of the step.
  std::vector<MemoryUse> finish(double seconds);

private:
  struct Access {
    double begin, end;
    int call, instruction;
    bool defines; // overwrites without having read
  };
  struct Life {
    double begin, end;
    int buffer;
  };
  std::vector<Life> livesOf(int rankClass, double seconds);
  static std::vector<std::string> originsOf(const planpb::Program &program);

  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  // By class, then first slot of the buffer + slot.
  std::vector<std::vector<std::vector<Access>>> accesses_;
  std::vector<std::vector<int>> firstSlot_; // by class, buffer
};

} // namespace merak::report
