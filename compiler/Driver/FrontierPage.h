// The answer to --frontier as a page without any external resource: the curves
// as SVG, time over memory, and a table of the points. XML besides HTML, so
// that any reader of either takes it.
#pragma once

#include "passes/Planning/PlanFrontier.h"

namespace merak {

std::string frontierPage(const planning::PlanFrontier &frontier);

// The JSON inside of such a page; any other text is returned as it is.
std::string unpackPage(const std::string &text);

} // namespace merak
