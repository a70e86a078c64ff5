// Procedures of a program that no call of a step names: a run calls them by
// their names, between steps, on one stream, on all ranks at once.
#pragma once

#include <string_view>

namespace merak {

// After the state was loaded: sets what only this program keeps beside it.
inline constexpr const char *kBeginEntry = "entry:begin";
// Before the state is read by anything else than steps: gives rows of tables
// the steps that they were left out of, and what the last step left for the
// next one. The scalars "step" and "step_before" are those of the last step,
// and "lr_before" is its rate.
inline constexpr const char *kFlushEntry = "entry:flush";

inline bool isEntry(std::string_view procedure) {
  return procedure == kBeginEntry || procedure == kFlushEntry;
}

} // namespace merak
