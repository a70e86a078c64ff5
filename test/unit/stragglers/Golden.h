// The golden vectors of test/data/golden/stragglers.json as problems and plans.
#pragma once

#include "passes/Stragglers/Replan.h"

#include <map>
#include <nlohmann/json.hpp>

namespace merak::stragglers {

const nlohmann::json &golden();

// Numbers of the file in ten-thousandths.
int64_t tenThousandths(const nlohmann::json &number);

// A model ("70B") on normal devices. `scale` times as many devices, pipelines
// and microbatches.
Problem goldenModel(const std::string &name, int64_t scale = 1);
// With the rates of a case.
Problem goldenProblem(const nlohmann::json &entry);
// Its plan "best".
Plan goldenBest(const nlohmann::json &entry);

} // namespace merak::stragglers
