// The timeline of a run, from the trace that merak-run wrote, with the rows of
// the prediction, so that both can be laid over each other.
#pragma once

#include "runtime/plan/Plan.h"
#include "runtime/report/Timeline.h"

namespace merak::report {

// Takes the step of median length; of runs of several steps the first, which
// warms up, does not count. One rank of each class is shown. As in the
// prediction, a communication begins when all its partners are there. Errors:
// no trace in Chrome's format, or not of this plan.
Result<Timeline> measuredTimeline(const LoadedPlan &plan,
                                  const std::string &trace);
// Of a file; the path opens the messages.
Result<Timeline> readMeasured(const LoadedPlan &plan, const std::string &path);

} // namespace merak::report
