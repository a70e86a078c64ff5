// Runs the kernel cases of test/unit/conformance on a backend.
#include "runtime/core/DType.h"
#include "test/conformance/Targets.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace merak::conformance {
namespace {

// A 16-bit result carries its type's rounding, besides that of the sums.
double typeTolerance(planpb::DType dtype) {
  return dtype == planpb::BF16 ? 2e-2 : dtype == planpb::F16 ? 3e-3 : 0;
}

std::string difference(const Case &c, const Tensors &found,
                       const Tensors &expected, double slack) {
  for (size_t i = 0; i < found.size(); ++i) {
    double magnitude = 1;
    for (double value : expected[i].v)
      if (std::isfinite(value))
        magnitude = std::max(magnitude, std::fabs(value));
    const double tolerance =
        std::max(slack * c.tolerance, typeTolerance(expected[i].dtype));
    const double bound = c.exact ? 0 : tolerance * magnitude;
    for (int64_t j = 0; j < found[i].size(); ++j) {
      const double a = found[i].v[size_t(j)], b = expected[i].v[size_t(j)];
      if (a == b || (std::isnan(a) && std::isnan(b)) ||
          std::fabs(a - b) <= bound)
        continue;
      return fmt::format("output {} element {}: found {}, expected {}, bound "
                         "{}",
                         i, j, a, b, bound);
    }
  }
  return {};
}

Tensors expectedOf(const Case &c, bool accumulate) {
  Tensors expected = c.reference(c);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i].dtype = c.outputs[i].dtype; // references compute in f64
    roundToType(expected[i]);
    for (int64_t j = 0; accumulate && j < expected[i].size(); ++j) {
      double &value = expected[i].v[size_t(j)];
      const double before = c.outputs[i].v[size_t(j)];
      value = expected[i].dtype == planpb::BOOL ? value != 0 || before != 0
                                                : value + before;
    }
    roundToType(expected[i]);
  }
  return expected;
}

// What is wrong with a case in one layout. `refused`: the backend does not do
// it, and says why.
std::string runOnce(const Case &original, MemoryLayout layout, bool accumulate,
                    double slack, std::string &refused) {
  const Case c = forLayout(original, layout);
  const Outcome outcome = runCase(c, layout, 1, accumulate);
  if (!outcome.status.ok()) {
    refused = outcome.status.messages().front();
    return {};
  }
  if (!outcome.gapsUntouched)
    return "writes between the elements";
  return difference(c, outcome.outputs, expectedOf(c, accumulate), slack);
}

void add(Tally &tally, const std::string &what, const std::string &wrong) {
  if (wrong.empty())
    ++tally.passed;
  else if (++tally.failed <= 3)
    tally.failures.push_back(what + ": " + wrong);
}

// The case with f32 operands in another type; false if it has none.
bool retype(Case &c, planpb::DType dtype) {
  bool changed = false;
  for (Tensors *tensors : {&c.inputs, &c.outputs})
    for (Tensor &tensor : *tensors)
      if (tensor.dtype == planpb::F32) {
        tensor.dtype = dtype;
        roundToType(tensor);
        changed = true;
      }
  return changed;
}

} // namespace

Column runKernels(const BackendTarget &target) {
  backendMaker() = [&target](runtime::ThreadPool &pool) {
    return std::move(*target.make(pool));
  };
  Column column;
  std::set<std::string> seen;
  for (const Case &c : allCases()) {
    Tally &tally = column[c.op];
    for (MemoryLayout layout : kLayouts)
      for (bool accumulate : {false, true}) {
        const std::string what =
            fmt::format("{} {}{}", c.name, layoutName(layout),
                        accumulate ? " accumulate" : "");
        std::string refused;
        std::string wrong =
            runOnce(c, layout, accumulate, target.slack, refused);
        if (!refused.empty() && accumulate && c.updates) {
          ++tally.unsupported[refused];
          continue;
        }
        if (!refused.empty())
          wrong = "refused: " + refused;
        add(tally, what, wrong);
      }
    if (!seen.insert(c.op).second)
      continue;
    // Other types may be refused with a sentence; if not, they must be right.
    for (planpb::DType dtype : {planpb::F64, planpb::BF16, planpb::F16}) {
      Case other = c;
      if (!retype(other, dtype))
        continue;
      std::string refused;
      const std::string wrong =
          runOnce(other, MemoryLayout::Dense, false, target.slack, refused);
      if (!refused.empty())
        ++tally.unsupported[refused];
      else
        add(tally, c.name + " in " + runtime::dtypeName(dtype), wrong);
    }
  }
  return column;
}

} // namespace merak::conformance
