// What the ranks of a run computed in a step: seconds by class of kernel, as
// their instructions took and as they should take for their shapes.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/plan/LibraryKernels.h"
#include "runtime/plan/Plan.h"

#include <array>
#include <functional>

namespace merak::rates {

using Seconds = std::array<double, kRateClasses>;

struct Work {
  Seconds measured{}, expected{};
};

// The class of what an instruction computes; none: it communicates, reads data
// or orders streams, which says nothing of its device.
std::optional<RateClass> classOf(const planpb::Instruction &instruction);

// Of all instructions of a step, which take `seconds` each.
Seconds expectedSeconds(
    const planpb::Program &program,
    const std::function<double(const planpb::Instruction &)> &seconds);

// What processes tell each other: numbers of `measured` by rank.
std::string toText(const std::vector<Seconds> &ranks);
// Errors: not such a text.
Result<std::vector<Seconds>> parseSeconds(const std::string &text);

} // namespace merak::rates
