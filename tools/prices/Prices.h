// What merak-run knows of costs: by the cost model of the compiler.
#pragma once

#include "runtime/launch/RunMain.h"

namespace merak {

struct RunPrices {
  runtime::ExpectedSeconds expected;   // what --rates compares with
  runtime::PredictedSeconds predicted; // what MERAK_PACE is relative to
  runtime::PlanPrices prices;          // what --replan chooses plans by
};

RunPrices runPrices();

} // namespace merak
