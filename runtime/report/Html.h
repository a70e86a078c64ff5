// The report of a plan: one HTML page without any external resource. Its
// charts are drawn by the script in page/ from the numbers embedded here.
#pragma once

#include "runtime/report/Decisions.h"
#include "runtime/report/Simulate.h"

namespace merak::report {

// `measured`: of a run of the same plan, with the same rows; may be null.
std::string htmlReport(const LoadedPlan &plan, const Simulation &simulation,
                       const Timeline *measured = nullptr);

} // namespace merak::report
