// Schedules by name, kept: a search simulates the same ones for thousands of
// cuts and models.
#pragma once

#include "passes/Planning/StepOrder.h"

#include <memory>
#include <string>

namespace merak::planning {

// As makeSchedule makes it. Those of many steps, and those that differ from
// stage to stage, are made again for whoever asks. Errors: as makeSchedule has
// them.
Result<std::shared_ptr<const OrderedSchedule>>
knownSchedule(const std::string &name, const ScheduleOptions &made);

} // namespace merak::planning
